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

from trainer.dropout import site_constant
from trainer.kernels.dropout import Drop, factors, mix64, nothing, power


@triton.jit
def _embed_kernel(
    ids, starts, tokens, positions, out, keys, site, threshold, scale, length, width,
    RESTARTS: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add one token's vector and its position's."""
    number = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    position = number % length
    if RESTARTS:
        position -= tl.load(starts + number)
    token = tl.load(ids + number)
    values = tl.load(tokens + token * width + columns, mask=columns < width, other=0.0).to(tl.float32)
    values += tl.load(positions + position * width + columns, mask=columns < width, other=0.0).to(tl.float32)
    if DROPS:
        values *= factors(mix64(tl.load(keys + number) + site), columns, threshold, scale)
    tl.store(out + number * width + columns, values.to(out.dtype.element_ty), mask=columns < width)


@triton.jit
def _gradient_kernel(
    ids, starts, gradients, for_tokens, for_positions, keys, site, threshold, scale, samples, length, width,
    RESTARTS: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add the gradients of all samples at one place to their tokens' rows, and to those of their positions."""
    place = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for sample in range(samples):
        number = sample * length + place
        token = tl.load(ids + number)
        values = tl.load(gradients + number * width + columns, mask=columns < width, other=0.0).to(tl.float32)
        if DROPS:
            values *= factors(mix64(tl.load(keys + number) + site), columns, threshold, scale)
        tl.atomic_add(for_tokens + token * width + columns, values, mask=columns < width, sem="relaxed")
        if RESTARTS:
            row = for_positions + (place - tl.load(starts + number)) * width
            tl.atomic_add(row + columns, values, mask=columns < width, sem="relaxed")
        else:
            total += values
    if not RESTARTS:
        total += tl.load(for_positions + place * width + columns, mask=columns < width, other=0.0)
        tl.store(for_positions + place * width + columns, total, mask=columns < width)


def embed(
    ids_BT: Tensor,
    starts_BT: Tensor | None,
    tokens_VD: Tensor,
    positions_TD: Tensor,
    dtype: torch.dtype,
    keys_BT: Tensor | None,
    probability: float,
    *,
    adds: bool,
) -> Tensor:
    """Return (B, T, D) in `dtype`: the vector of each token plus that of its position, dropped where there are keys.

    `starts_BT`: where in the sample each token's document begins, from where positions count; None: at its beginning.
    `adds`: whether the backward pass adds gradients to the tables' fp32 `grad` itself, which must be there.
    """
    drop = (
        Drop.of(keys_BT, site_constant(0), probability, tokens_VD.dtype)
        if keys_BT is not None and probability
        else None
    )
    totals = (tokens_VD.grad, positions_TD.grad) if adds else (None, None)
    return _Embed.apply(ids_BT, starts_BT, tokens_VD, positions_TD, dtype, drop, totals)  # pyright: ignore[reportReturnType]


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        ids_BT: Tensor,
        starts_BT: Tensor | None,
        tokens_VD: Tensor,
        positions_TD: Tensor,
        dtype: torch.dtype,
        drop: Drop | None,
        totals: tuple[Tensor | None, Tensor | None],
    ) -> Tensor:
        samples, length = ids_BT.shape
        width = tokens_VD.shape[1]
        ids_BT = ids_BT.contiguous()
        starts_BT = None if starts_BT is None else starts_BT.contiguous()
        ctx.save_for_backward(ids_BT, starts_BT)
        ctx.drop, ctx.totals, ctx.shapes = drop, totals, (tokens_VD.shape, positions_TD.shape)
        out_BTD = tokens_VD.new_empty(samples, length, width, dtype=dtype)
        if ids_BT.numel():
            tensors = (ids_BT, ids_BT if starts_BT is None else starts_BT, tokens_VD, positions_TD, out_BTD)
            options = {**_options(starts_BT, drop), "BLOCK": power(width)}
            _embed_kernel[ids_BT.numel(),](*tensors, *(drop or nothing(ids_BT)), length, width, **options)
        return out_BTD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        ids_BT, starts_BT = ctx.saved_tensors
        into = [
            torch.zeros(shape, device=ids_BT.device) if total is None else total
            for total, shape in zip(ctx.totals, ctx.shapes, strict=True)
        ]
        samples, length = ids_BT.shape
        if ids_BT.numel():
            width = gradients[0].shape[-1]
            tensors = (ids_BT, ids_BT if starts_BT is None else starts_BT, gradients[0].contiguous(), *into)
            options = {**_options(starts_BT, ctx.drop), "BLOCK": power(width)}
            _gradient_kernel[length,](*tensors, *(ctx.drop or nothing(ids_BT)), samples, length, width, **options)
        mine = [each if total is None else None for each, total in zip(into, ctx.totals, strict=True)]
        return None, None, *mine, None, None, None


def _options(starts_BT: Tensor | None, drop: Drop | None) -> dict[str, Any]:
    return {"RESTARTS": starts_BT is not None, "DROPS": drop is not None, "num_warps": 4}
