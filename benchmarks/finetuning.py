"""Fine-tuning's time per step on a GPU: pass by pass, as CUDA graphs, and compiled.

    python -m benchmarks.finetuning WORK

Makes a GPT-2 of 124 M parameters with random weights, and rows as long as those of MRPC; compares the kernels with
plain torch on this GPU, and graphs with the passes they repeat; fine-tunes in each of CASES; prints one table, with the
GPU's kernels and busy time in a step, from a trace of a few. Needs one GPU, and nothing but the packages of `trainer/`.
WORK is a folder for what the runs write.
"""

import csv
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from pipelines import store
from tests.trainer import small
from trainer import dropout
from trainer.config import ModelConfig
from trainer.model import Architecture, LanguageModel
from trainer.weights import huggingface

ROOT = Path(__file__).parents[1]
STEPS, BATCH = 120, 32
TRACED = (100, 101)
LENGTHS = (53, 15, 20, 104)
"""Mean, standard deviation, least and most tokens of a row, about as MRPC's pairs have them."""
EAGER = ("--parallel.cuda-graphs", "off")
CASES: dict[str, tuple[str, ...]] = {
    "torch's kernels, eager": (*EAGER, "--parallel.kernels", "torch"),
    "Triton kernels, eager": EAGER,
    "Triton kernels, graphs": (),
    "compiled by torch, graphs": ("--compile", "--parallel.kernels", "torch"),  # fused blocks are not compiled
}
"""All in bf16, which is the default on GPUs that have it."""
REFERENCE = ("--precision", "fp32", *EAGER, "--parallel.kernels", "torch")
"""What the losses of all cases are compared with."""
COMPARED = 20
"""Steps whose losses graphs and eager passes must share, to the bit with deterministic kernels."""


def write_rows(folder: Path, tokenizer: Path) -> Path:
    """Write the splits of a task with labels that follow from the first token."""
    meta, random = small.token_meta(tokenizer), np.random.default_rng(0)
    folder.mkdir(parents=True)
    mean, deviation, least, most = LENGTHS
    for split, rows in (("train", 8000), ("validation", 320)):
        lengths = random.normal(mean, deviation, rows).clip(least, most).astype(int)
        ids = [random.integers(meta.vocab_size - 1, size=length).tolist() for length in lengths]
        columns = {
            "input_ids": pa.array(ids, pa.list_(pa.int32())),
            "label": pa.array([row[0] % 2 for row in ids], pa.int64()),
            "index": pa.array(range(rows), pa.int64()),
            "sentence": pa.array(["made up"] * rows),
        }
        described = {"task": "toy", "num_labels": "2", "labels": "[]", "pad_token_id": str(meta.vocab_size)}
        table = pa.table(columns).replace_schema_metadata({**meta.to_schema(), **described})
        with pa.ipc.new_file(str(folder / f"{split}.arrow"), table.schema) as writer:
            writer.write_table(table)
    return small.publish(folder)


def write_base(folder: Path, tokenizer: Path) -> Path:
    """Write a Hugging Face folder with random weights."""
    shape = Architecture.of(ModelConfig(n_layer=12, n_head=12, n_embd=768), small.token_meta(tokenizer).vocab_size)
    model = LanguageModel(shape)
    small.initialise(model, 0)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    weights["transformer.wte.weight"] = weights["transformer.wte.weight"][: shape.vocab_size]
    huggingface.save_folder(folder, shape, weights, {})
    huggingface.save_tokenizer(tokenizer, folder, shape.n_positions)
    return folder


def finetune(work: Path, name: str, steps: int, *flags: str) -> tuple[Path, dict[str, Any], list[float]]:
    """Run the stage; return its output, its last segment and its losses."""
    out = work / re.sub(r"\W+", "-", name)
    stats = work / f"{out.name}.json"
    words = [sys.executable, "-m", "trainer.finetune", "toy", work / "base", work / "rows", out, "--stats", stats]
    more = ("--steps", steps, "--epochs", 0, "--lr", 1e-4, "--global-batch-size", BATCH, "--checkpoint-every", steps)
    command = [str(word) for word in (*words, *more, "--scored-train-rows", 0, "--overwrite", *flags)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-5000:]}")
    for line in done.stderr.splitlines():
        if "WARNING" in line or "warning" in line:
            print(f"{name}: {line}", flush=True)
    segment = json.loads(stats.with_suffix(".provenance.json").read_text())["segments"][-1]
    with (out / "curve.csv").open() as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file) if row["loss"]]
    return out, segment, losses


def measure(work: Path, name: str, *flags: str) -> dict[str, Any]:
    """Return what a run and a trace of it say of a step."""
    traced = ("--profile", f"{TRACED[0]}:{TRACED[1]}")
    out, segment, losses = finetune(work, name, STEPS, *traced, *flags)
    (trace,) = out.with_name(f"{out.name}.watch").rglob("*.json*")
    with store.open_read(trace) as file:
        events = json.loads(file.read())["traceEvents"]
    kernels = [event["dur"] for event in events if event.get("cat") == "kernel"]
    number = TRACED[1] - TRACED[0] + 1
    return {
        "ms": segment["median_step_seconds"] * 1e3,
        "first": segment["seconds"] - STEPS * segment["median_step_seconds"],
        "kernels": len(kernels) // number,
        "busy": sum(kernels) / number / 1e3,
        "allocated": segment["peak_memory"]["allocated_gb"],
        "reserved": segment["peak_memory"]["reserved_gb"],
        "losses": losses,
    }


def apart(first: list[float], second: list[float]) -> str:
    """Say how far the losses of two runs are apart."""
    off = [a - b for a, b in zip(first, second, strict=True)]
    most, mean = max(map(abs, off)), statistics.fmean(map(abs, off))
    return f"{most:.1e} apart at most, {mean:.1e} on average, their means {statistics.fmean(off):+.1e}"


def compare_graphs(work: Path) -> str:
    """Compare losses with graphs and without, with deterministic kernels."""
    exact = ("--parallel.determinism", "exact")
    graphs = finetune(work, "parity, graphs", COMPARED, *exact)[-1]
    eager = finetune(work, "parity, eager", COMPARED, *exact, *EAGER)[-1]
    return f"graphs and eager, {COMPARED} steps, deterministic kernels: losses {apart(graphs, eager)}"


def compare_kernels() -> list[str]:
    """Compare the project's kernels with plain torch on this GPU; return a line for each type of values."""
    gpu = torch.device("cuda")
    keys = dropout.vector_keys(7, torch.tensor([5, 10**12, 1], device=gpu), 77)
    cases: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
        "values": ((3, 77, 1600), lambda x: dropout.drop_at(x, 0.1, keys, 3)),
        "attention": (
            (3, 12, 77, 77),
            lambda x: dropout.drop_attention(x, 0.1, keys, 1, first_head=4, width=64, mask_B1TT=None),
        ),
    }
    lines: list[str] = []
    for name, (shape, function) in cases.items():
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(gpu, dtype) * 3
            above = torch.randn(shape, generator=torch.Generator().manual_seed(2)).to(gpu, dtype)
            results: list[tuple[Tensor, Tensor]] = []
            for wanted in (True, False):
                dropout.choose_kernels(wanted=wanted, gpu=gpu)
                leaf = x.clone().requires_grad_()
                found = function(leaf)
                results.append((found.detach(), torch.autograd.grad(found, leaf, above)[0]))
            (ours, ours_below), (plain, plain_below) = results
            equal = torch.equal(ours, plain) and torch.equal(ours_below, plain_below)
            masks = torch.equal(ours == 0, plain == 0)
            off = max(float((a - b).abs().max()) for a, b in ((ours, plain), (ours_below, plain_below)))
            lines.append(f"{name}, {dtype}: masks equal {masks}, all bits equal {equal}, largest difference {off:.1e}")
    return lines


def main() -> None:
    """Make the inputs, run all cases, and print the table."""
    work = Path(sys.argv[1]).resolve()
    tokenizer = small.write_tokenizer(work / "tokenizer")
    write_base(work / "base", tokenizer)
    write_rows(work / "rows", tokenizer)
    print(*compare_kernels(), sep="\n", flush=True)
    print(compare_graphs(work), flush=True)
    found: dict[str, dict[str, Any]] = {}
    for name, flags in CASES.items():
        found[name] = measure(work, name, *flags)
        print(name, {key: value for key, value in found[name].items() if key != "losses"}, flush=True)
    truth = finetune(work, "torch's kernels in fp32", STEPS, *REFERENCE)[-1]
    for name, each in found.items():
        print(f"{name} and fp32, {STEPS} steps: losses {apart(each['losses'], truth)}")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {BATCH} rows of {LENGTHS[0]} tokens on average\n"
    )
    print(
        "| fine-tuning 124M in bf16 | ms per step | kernels per step | GPU busy, ms | first steps, s | GB (reserved) |",
        "| --- | --- | --- | --- | --- | --- |",
        sep="\n",
    )
    for name, each in found.items():
        figures = f"{each['ms']:.1f} | {each['kernels']:,} | {each['busy']:.1f} | {each['first']:.1f}"
        print(f"| {name} | {figures} | {each['allocated']:.1f} ({each['reserved']:.1f}) |")


if __name__ == "__main__":
    main()
