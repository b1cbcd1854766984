"""Token and position embeddings as Triton kernels.

Plain, the vectors are looked up, added and rounded one after the other in fp32, and tokens are sorted to add up
their gradients. Here a kernel does the first three at once, and another adds each gradient where it belongs, in any order: not
for results that must have the same bits in every run. Import this module only where Triton is.
"""
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# Triton has no types, and is not installed on machines without a GPU.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.columns import power


@triton.jit
def _embed_kernel(ids, tokens, positions, out, length, width, BLOCK: tl.constexpr):
    """Add one token's vector and its position's."""
    number = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    token = tl.load(ids + number)
    values = tl.load(tokens + token * width + columns, mask=columns < width, other=0.0).to(tl.float32)
    values += tl.load(positions + number % length * width + columns, mask=columns < width, other=0.0).to(tl.float32)
    tl.store(out + number * width + columns, values.to(out.dtype.element_ty), mask=columns < width)


@triton.jit
def _gradient_kernel(ids, gradients, for_tokens, for_positions, samples, length, width, BLOCK: tl.constexpr):
    """Add the gradients of all samples at one position to their tokens' rows, and their sum to the position's row."""
    position = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    total = tl.load(for_positions + position * width + columns, mask=columns < width, other=0.0)
    for sample in range(samples):
        number = sample * length + position
        token = tl.load(ids + number)
        values = tl.load(gradients + number * width + columns, mask=columns < width, other=0.0).to(tl.float32)
        tl.atomic_add(for_tokens + token * width + columns, values, mask=columns < width, sem="relaxed")
        total += values
    tl.store(for_positions + position * width + columns, total, mask=columns < width)


def embed(ids_BT: Tensor, tokens_VD: Tensor, positions_TD: Tensor, dtype: torch.dtype, *, adds: bool) -> Tensor:
    """Return (B, T, D) in `dtype`: the vector of each token plus that of its position.

    `adds`: whether the backward pass adds gradients to the tables' fp32 `grad` itself, which must be there.
    """
    totals = (tokens_VD.grad, positions_TD.grad) if adds else (None, None)
    return _Embed.apply(ids_BT, tokens_VD, positions_TD, dtype, totals)  # pyright: ignore[reportReturnType]


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids_BT: Tensor, tokens_VD: Tensor, positions_TD: Tensor, dtype: torch.dtype, totals: Any
    ) -> Tensor:
        samples, length = ids_BT.shape
        width = tokens_VD.shape[1]
        ids_BT = ids_BT.contiguous()
        ctx.save_for_backward(ids_BT)
        ctx.tables = totals, tokens_VD.shape, positions_TD.shape
        out_BTD = tokens_VD.new_empty(samples, length, width, dtype=dtype)
        if ids_BT.numel():
            block = power(width)
            arguments = (ids_BT, tokens_VD, positions_TD, out_BTD, length, width)
            _embed_kernel[ids_BT.numel(),](*arguments, BLOCK=block, num_warps=4)
        return out_BTD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (ids_BT,) = ctx.saved_tensors
        totals, *shapes = ctx.tables
        into = [
            torch.zeros(shape, device=ids_BT.device) if total is None else total
            for total, shape in zip(totals, shapes, strict=True)
        ]
        samples, length = ids_BT.shape
        if ids_BT.numel():
            width = gradients[0].shape[-1]
            arguments = (ids_BT, gradients[0].contiguous(), *into, samples, length, width)
            _gradient_kernel[length,](*arguments, BLOCK=power(width), num_warps=4)
        mine = [each if total is None else None for each, total in zip(into, totals, strict=True)]
        return None, *mine, None, None
