"""How far a fused block is from fp64, beside the plain block in the same precision.

`python -m benchmarks.layouts WORK --blocks` prints the table on a GPU: of a block's result, and of the gradients of its
input and its parameters, the error relative to the norm. Sizes are GPT-2's, an odd width of heads, and one token.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.config import Precision
from trainer.loop.precision import DTYPES
from trainer.model import Architecture, Block

Errors = dict[str, float]


@dataclass(frozen=True, slots=True)
class Size:
    """A block, and the samples that it gets."""

    name: str
    n_head: int
    head_width: int
    samples: int
    length: int

    @property
    def shape(self) -> Architecture:
        """The model that it is a block of."""
        return Architecture(
            n_layer=1,
            n_head=self.n_head,
            n_embd=self.n_head * self.head_width,
            n_positions=self.length,
            vocab_size=64,
        )


SIZES = [
    Size("124M", 12, 64, 8, 1024),
    Size("1.5B", 25, 64, 4, 1024),
    Size("heads 33 wide", 16, 33, 8, 256),
    Size("one token", 12, 64, 16, 1),
    Size("heads 33 wide, one token", 16, 33, 16, 1),
]
PRECISIONS: list[Precision] = ["bf16", "fp16", "fp8"]
MORE = 1.1
"""Times the plain block's error that a fused one's may be, in half precision."""
MOST_IN_FP8 = 0.2
HEAD = [
    "| block | precision | result: fused | plain | gradients: fused | plain | |",
    "| --- | --- | --- | --- | --- | --- | --- |",
]


def rows(sizes: Sequence[Size], device: torch.device) -> list[str]:
    """A row of the table for each size and precision."""
    return [row(size, precision, device) for size in sizes for precision in PRECISIONS]


def row(size: Size, precision: Precision, device: torch.device) -> str:
    """One row, printed at once."""
    fused, plain = compare(size, precision, device)
    fits = all(error <= (MOST_IN_FP8 if precision == "fp8" else MORE * plain[name]) for name, error in fused.items())
    cells = [f"{errors['result']:.1e} | {span(errors)}" for errors in (fused, plain)]
    (ours, our_gradients), (theirs, their_gradients) = (each.split(" | ") for each in cells)
    line = f"| {size.name} | {precision} | {ours} | {theirs} | {our_gradients} | {their_gradients} | "
    line += "ok |" if fits else "FAILED |"
    print(line, flush=True)
    return line


def span(errors: Errors) -> str:
    """The least and the largest error of a gradient."""
    gradients = [error for name, error in errors.items() if name != "result"]
    return f"{min(gradients):.1e} to {max(gradients):.1e}"


def compare(size: Size, precision: Precision, device: torch.device) -> tuple[Errors, Errors]:
    """Errors of the fused and of the plain block, by what they are of; beside fp8, the plain one is in bf16."""
    from trainer.kernels.block import FusedBlock
    from trainer.kernels.products import Fp8, Half

    dtype = DTYPES[precision]
    plain = seeded(Block(size.shape)).to(device)
    truth = passes(copy.deepcopy(plain).double(), size, torch.float64)
    fused = copy.deepcopy(plain)
    fused.__class__ = FusedBlock
    assert isinstance(fused, FusedBlock)
    fused.adds, fused.compute_dtype = True, dtype
    fused.first = fused.second = Fp8() if precision == "fp8" else Half()
    for parameter in fused.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return errors(passes(fused, size, dtype), truth), errors(passes(plain, size, dtype), truth)


def seeded(block: Block) -> Block:
    """Give a block weights that keep values around 1."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in block.named_parameters():
        spread = 1 / math.sqrt(parameter.shape[1]) if parameter.ndim == 2 else 0.3
        nn.init.normal_(parameter, float("ln_" in name and name.endswith("weight")), spread, generator=generator)
    return block


def passes(block: Block, size: Size, dtype: torch.dtype) -> dict[str, Tensor]:
    """The result for seeded samples, and all gradients, in fp64."""
    generator, width = torch.Generator().manual_seed(1), size.n_head * size.head_width
    device = next(block.parameters()).device
    x, above = torch.randn(2, size.samples, size.length, width, generator=generator).to(device, dtype)
    x.requires_grad_()
    y = block(x, None)
    y.backward(above)
    found = {"result": y.detach(), "input": x.grad, **{name: one.grad for name, one in block.named_parameters()}}
    return {name: value.double() for name, value in found.items() if value is not None}


def errors(found: dict[str, Tensor], truth: dict[str, Tensor]) -> Errors:
    """The norm of each difference, relative to that of the truth."""
    return {name: float((found[name] - one).norm() / one.norm()) for name, one in truth.items()}
