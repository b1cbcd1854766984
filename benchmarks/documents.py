"""What attention inside documents costs on a GPU, beside whole rows and beside a mask, and whether it is right.

    python -m benchmarks.documents [--rows 32] [--mean 1000] [--rounds 3] [--blocks fused]

Random documents, of log-normal lengths around `--mean` tokens, cut into rows of 1,024 as `packing: stream` does. Prints
the largest differences of attention from the mask's, values and gradients, and whether two backward passes of
`determinism: exact` have the same bits; then the time of GPT-2's forward and backward pass in bf16, with the blocks of
`parallel.kernels: triton` (fused) or those that torch compiles.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from trainer import attention
from trainer.config import ParallelConfig
from trainer.data.batch import Batch, token_rows
from trainer.model import Architecture, LanguageModel
from trainer.parallel import fastest_loss, fuse

SHAPE = Architecture(
    n_layer=12, n_head=12, n_embd=768, n_positions=1024, vocab_size=50257, dropout=0.0, pad_vocab_to=64
)
ROW, HEADS, WIDTH = SHAPE.n_positions, SHAPE.n_head, SHAPE.n_embd // SHAPE.n_head
STEPS = 20


def main() -> None:
    """Compare and time."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.documents", description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--mean", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", choices=["fused", "compiled"], default="fused")
    options = parser.parse_args()
    gpu = torch.device("cuda", 0)
    attention.choose_kernels(exact=False, gpu=gpu)
    print(torch.cuda.get_device_name(gpu), torch.__version__, "kernel for lengths:", attention.takes_lengths)
    batches = [batch_of(options.rows, options.mean, seed).to(gpu) for seed in range(4)]
    compare(batches[0])
    speeds(batches, options.rounds, fused=options.blocks == "fused")


def batch_of(rows: int, mean: int, seed: int) -> Batch:
    """Random tokens of whole rows, in the host's memory."""
    rng = np.random.default_rng(seed)
    lengths = np.maximum(2, rng.lognormal(np.log(mean) - 0.5, 1.0, size=8 + 4 * rows * ROW // mean)).astype(np.int64)
    begins = np.zeros(rows * (ROW + 1), bool)
    ends = np.cumsum(lengths)
    begins[ends[ends < len(begins)]] = True
    marks = np.where(begins.reshape(rows, -1), np.arange(ROW + 1), 0)
    starts = np.maximum.accumulate(marks, axis=1).astype(np.int16)
    tokens = rng.integers(0, SHAPE.vocab_size, starts.shape).astype(np.uint16)
    return token_rows(tokens, np.arange(rows), starts, masked=True).to(torch.device("cpu"))


def compare(batch: Batch) -> None:
    """Print differences from the mask, and of repetitions."""
    assert batch.starts is not None
    together = torch.randn(len(batch.ids), ROW, HEADS, 3, WIDTH, device=batch.ids.device).bfloat16()
    exact = attention.document_mask(batch.starts)

    def results(documents: Tensor, dtype: torch.dtype) -> list[Tensor]:
        leaves = [part.transpose(1, 2).to(dtype).detach().requires_grad_() for part in together.unbind(3)]
        y = attention.attend(leaves[0], leaves[1], leaves[2], documents)
        y.backward(torch.linspace(-1, 1, WIDTH, device=y.device, dtype=y.dtype).expand_as(y))
        return [y.detach().float(), *(leaf.grad.float() for leaf in leaves if leaf.grad is not None)]

    truth = results(exact, torch.float32)
    for name, documents in (("lengths", lengths_of(batch)), ("mask", exact)):
        found = results(documents, torch.bfloat16)
        off = [float((each - true).abs().max() / true.abs().max()) for each, true in zip(found, truth, strict=True)]
        print(
            f"{name} in bf16 against the mask in fp32, largest difference / largest value:", *(f"{x:.1e}" for x in off)
        )
    torch.use_deterministic_algorithms(True)
    first, second = (results(lengths_of(batch), torch.bfloat16) for _ in range(2))
    torch.use_deterministic_algorithms(False)
    print("exact: same bits twice:", all(map(torch.equal, first, second)))


def lengths_of(batch: Batch) -> Tensor:
    """Where its documents begin."""
    assert batch.starts is not None
    found = attention.documents_of(batch.starts, batch.room(), torch.bfloat16, WIDTH)
    assert found.dtype == torch.int32, "this GPU has no such kernel"
    return found


def speeds(batches: list[Batch], rounds: int, *, fused: bool) -> None:
    """Time passes over rows as a whole, over documents with the kernel, and with the mask, in turns."""
    gpu, parallel = batches[0].ids.device, ParallelConfig(kernels="triton" if fused else "torch")
    model = LanguageModel(SHAPE).to(gpu)
    model.transformer.compute_dtype = torch.bfloat16
    assert model.lm_head is not None
    model.lm_head.differentiate = fastest_loss(gpu, parallel)
    if fused:
        fuse(model, parallel)
        for weight in model.parameters():
            weight.grad = torch.zeros_like(weight)
    else:
        for block in model.transformer.h.values():
            block.compile(dynamic=False)
    graphs = torch._dynamo.utils.counters["stats"]  # pyright: ignore
    kinds: dict[str, Callable[[Batch], dict[str, object]]] = {
        "whole rows": lambda batch: {"targets_BT": batch.targets},
        "lengths": lambda batch: batch.inputs(),
        "mask": lambda batch: {**batch.inputs(), "room": 0},
    }
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, inputs in kinds.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for step in range(STEPS):
                batch = batches[step % len(batches)]
                model(batch.ids, **inputs(batch)).backward()
            torch.cuda.synchronize()
            if number:  # the first compiles
                times[name].append((time.perf_counter() - begun) / STEPS)
    medians = {name: statistics.median(each) for name, each in times.items()}
    print("documents per batch:", [int(batch.documents.sum()) for batch in batches if batch.documents is not None])
    print("room for", [batch.room() for batch in batches], "- compiled graphs of blocks:", graphs["unique_graphs"])
    for name, seconds in medians.items():
        share, rate = medians["whole rows"] / seconds, batches[0].ids.numel() / seconds
        print(f"{name}: {1000 * seconds:.2f} ms, {rate:,.0f} tokens/s, {share:.1%} of whole rows")


if __name__ == "__main__":
    main()
