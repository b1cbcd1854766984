"""Token and position embeddings as Triton kernels.

Plain, the vectors are looked up, added and rounded one after the other in fp32, and tokens are sorted to add up
their gradients. Here a kernel does the first three at once, and another adds each gradient where it belongs, in any
order: not for results that must have the same bits in every run. Import this module only where Triton is.
"""
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# Triton has no types, and is not installed on machines without a GPU.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.columns import power
from trainer.kernels.dropout import Drop, factors, mix64, nothing


@triton.jit
def _embed_kernel(
    ids, tokens, positions, out, keys, site, threshold, scale, length, width, DROPS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add one token's vector and its position's."""
    number = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    token = tl.load(ids + number)
    values = tl.load(tokens + token * width + columns, mask=columns < width, other=0.0).to(tl.float32)
    values += tl.load(positions + number % length * width + columns, mask=columns < width, other=0.0).to(tl.float32)
    if DROPS:
        values *= factors(mix64(tl.load(keys + number) + site), columns, threshold, scale)
    tl.store(out + number * width + columns, values.to(out.dtype.element_ty), mask=columns < width)


@triton.jit
def _gradient_kernel(
    ids, gradients, for_tokens, for_positions, keys, site, threshold, scale, samples, length, width,
    DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the gradients of all samples at one position to their tokens' rows, and their sum to the position's row."""
    position = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    total = tl.load(for_positions + position * width + columns, mask=columns < width, other=0.0)
    for sample in range(samples):
        number = sample * length + position
        token = tl.load(ids + number)
        values = tl.load(gradients + number * width + columns, mask=columns < width, other=0.0).to(tl.float32)
        if DROPS:
            values *= factors(mix64(tl.load(keys + number) + site), columns, threshold, scale)
        tl.atomic_add(for_tokens + token * width + columns, values, mask=columns < width, sem="relaxed")
        total += values
    tl.store(for_positions + position * width + columns, total, mask=columns < width)


def embed(
    ids_BT: Tensor,
    tokens_VD: Tensor,
    positions_TD: Tensor,
    dtype: torch.dtype,
    keys_BT: Tensor | None,
    probability: float,
    *,
    adds: bool,
) -> Tensor:
    """Return (B, T, D) in `dtype`: the vector of each token plus that of its position, dropped where there are keys.

    `adds`: whether the backward pass adds gradients to the tables' fp32 `grad` itself, which must be there.
    """
    drop = Drop.of(keys_BT, 0, probability, tokens_VD.dtype) if keys_BT is not None and probability else None
    totals = (tokens_VD.grad, positions_TD.grad) if adds else (None, None)
    return _Embed.apply(ids_BT, tokens_VD, positions_TD, dtype, drop, totals)  # pyright: ignore[reportReturnType]


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids_BT: Tensor,
        tokens_VD: Tensor,
        positions_TD: Tensor,
        dtype: torch.dtype,
        drop: Drop | None,
        totals: tuple[Tensor | None, Tensor | None],
    ) -> Tensor:
        samples, length = ids_BT.shape
        width = tokens_VD.shape[1]
        ids_BT = ids_BT.contiguous()
        ctx.save_for_backward(ids_BT)
        ctx.drop, ctx.totals, ctx.shapes = drop, totals, (tokens_VD.shape, positions_TD.shape)
        out_BTD = tokens_VD.new_empty(samples, length, width, dtype=dtype)
        if ids_BT.numel():
            arguments = (ids_BT, tokens_VD, positions_TD, out_BTD, *(drop or nothing(ids_BT)), length, width)
            _embed_kernel[ids_BT.numel(),](*arguments, DROPS=drop is not None, BLOCK=power(width), num_warps=4)
        return out_BTD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (ids_BT,) = ctx.saved_tensors
        into = [
            torch.zeros(shape, device=ids_BT.device) if total is None else total
            for total, shape in zip(ctx.totals, ctx.shapes, strict=True)
        ]
        samples, length = ids_BT.shape
        if ids_BT.numel():
            width = gradients[0].shape[-1]
            arguments = (ids_BT, gradients[0].contiguous(), *into, *(ctx.drop or nothing(ids_BT)))
            options: dict[str, Any] = {"DROPS": ctx.drop is not None, "BLOCK": power(width), "num_warps": 4}
            _gradient_kernel[length,](*arguments, samples, length, width, **options)
        mine = [each if total is None else None for each, total in zip(into, ctx.totals, strict=True)]
        return None, *mine, None, None, None
