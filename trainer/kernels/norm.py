"""LayerNorm as Triton kernels, with what stands beside it in a block: the sum that it norms, and gradients of biases.

Rows are tokens. Values are computed in fp32 and kept in their tensors' own types. Sums over tokens are made in two
steps, in a fixed order, so that they have the same bits in every run. Import this module only where Triton is.
"""
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# Triton has no types, and is not installed on machines without a GPU.

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.columns import add_parts, keep_largest, terms, tracked
from trainer.kernels.dropout import Drop, factors, mix64, nothing, power

TILE, SHARES, STAGES = 2048, 512, 3
"""Of the backward pass: values of each tensor that a program has in hand at once, most programs, and how many tiles are
on their way from memory together. With 3 stages it takes two thirds of the time with 1, on an H200."""

SHARED = 96 * 1024
"""Bytes of shared memory that every GPU has for the tiles that are on their way."""


@triton.jit
def _norm_kernel(
    x, added, bias, weight, shift, total, normed, statistics, largest, keys, site, threshold, scale,
    rows, width, epsilon, TERMS: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Norm one token's vector, or write the sum of it, `added` and `bias`, which may be dropped, and norm that.

    TERMS: how many tensors `added` is the sum of; 0: nothing is added.
    """
    number = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(x + number * width + columns, mask=inside, other=0.0).to(tl.float32)
    if TERMS:
        more = tl.load(added + number * width + columns, mask=inside, other=0.0).to(tl.float32)
        for term in tl.static_range(1, TERMS):
            more += tl.load(added + (number + term * rows) * width + columns, mask=inside, other=0.0).to(tl.float32)
        more += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
        if DROPS:
            more *= factors(mix64(tl.load(keys + number) + site), columns, threshold, scale)
        values += more
        kept = values.to(total.dtype.element_ty)
        tl.store(total + number * width + columns, kept, mask=inside)
        values = kept.to(tl.float32)  # as the backward pass will read it
    mean = tl.sum(values, 0) / width
    centred = tl.where(inside, values - mean, 0.0)
    root = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + epsilon)
    tl.store(statistics + number, mean)
    tl.store(statistics + rows + number, root)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    centre = tl.load(shift + columns, mask=inside, other=0.0).to(tl.float32)
    result = (centred * root * factor + centre).to(normed.dtype.element_ty)
    tl.store(normed + number * width + columns, result, mask=inside)
    keep_largest(result, largest, SLOTS)


@triton.jit
def _gradient_kernel(
    above, x, statistics, weight, beside, below, dropped, parts, largest, keys, site, threshold, scale,
    rows, width, share, TERMS: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr, WRITES: tl.constexpr,
    SLOTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a share of the tokens, and sums for the norm's weight, its shift, and the bias before it.

    `above` is the sum of TERMS tensors. `beside`: the gradient that the residual stream brings past the norm. The bias,
    and what it was added to, get the gradient of what was not dropped.
    """
    part = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)[None, :]
    inside = columns < width
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    for_weight = tl.zeros([ROWS, BLOCK], tl.float32)
    for_shift = tl.zeros([ROWS, BLOCK], tl.float32)
    for_bias = tl.zeros([ROWS, BLOCK], tl.float32)
    most = tl.zeros([ROWS], tl.float32)
    for start in tl.range(0, share, ROWS, num_stages=STAGES):
        row = part * share + start + tl.arange(0, ROWS)
        here = (row < rows)[:, None] & ((start + tl.arange(0, ROWS)) < share)[:, None] & inside
        at = row[:, None] * width + columns
        mean = tl.load(statistics + row, mask=row < rows, other=0.0)[:, None]
        root = tl.load(statistics + rows + row, mask=row < rows, other=0.0)[:, None]
        gradient = tl.load(above + at, mask=here, other=0.0).to(tl.float32)
        for term in tl.static_range(1, TERMS):
            of_term = (row + term * rows)[:, None] * width + columns
            gradient += tl.load(above + of_term, mask=here, other=0.0).to(tl.float32)
        values = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        normed = tl.where(here, (values - mean) * root, 0.0)
        for_weight += gradient * normed
        for_shift += gradient
        scaled = gradient * factor
        average = tl.sum(scaled, 1)[:, None] / width
        slope = tl.sum(scaled * normed, 1)[:, None] / width
        result = (scaled - average - normed * slope) * root
        if ADDS:
            result += tl.load(beside + at, mask=here, other=0.0).to(tl.float32)
        kept = result.to(below.dtype.element_ty)
        tl.store(below + at, kept, mask=here)
        kept = tl.where(here, kept.to(tl.float32), 0.0)
        if DROPS:
            key = mix64(tl.load(keys + row, mask=row < rows, other=0) + site)
            kept *= factors(key[:, None], columns, threshold, scale)
        if WRITES:
            tl.store(dropped + at, kept.to(dropped.dtype.element_ty), mask=here)
        for_bias += kept
        if SLOTS:
            most = tl.maximum(most, tl.max(tl.abs(kept), 1))
    to = parts + part * 3 * width + tl.arange(0, BLOCK)
    fits = tl.arange(0, BLOCK) < width
    tl.store(to, tl.sum(for_weight, 0), mask=fits)
    tl.store(to + width, tl.sum(for_shift, 0), mask=fits)
    tl.store(to + 2 * width, tl.sum(for_bias, 0), mask=fits)
    keep_largest(most, largest, SLOTS)


def norm(
    x_ND: Tensor,
    weight_D: Tensor,
    shift_D: Tensor,
    epsilon: float,
    dtype: torch.dtype,
    largest: Tensor | None,
    normed_ND: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return LayerNorm(x) in `dtype`, and each row's mean and reciprocal standard deviation, (2, N).

    `largest`: slots for the largest magnitudes of the result, if they are needed. `normed_ND`: where the result is
    written, if that matters.
    """
    normed_ND = torch.empty_like(x_ND, dtype=dtype) if normed_ND is None else normed_ND
    statistics_2N = x_ND.new_empty(2, len(x_ND), dtype=torch.float32)
    unused = x_ND, weight_D  # in the places of what is added
    _norm((x_ND, *unused, weight_D, shift_D, x_ND, normed_ND, statistics_2N), epsilon, largest, None, added=0)
    return normed_ND, statistics_2N


def add_and_norm(
    x_ND: Tensor,
    added: Tensor,
    bias_D: Tensor,
    weight_D: Tensor,
    shift_D: Tensor,
    epsilon: float,
    largest: Tensor | None,
    drop: Drop | None,
    normed_ND: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return x + drop(added + bias) in the type of x, its LayerNorm in that of `added`, and its statistics.

    `added`: (N, D), or terms whose sum is meant, (P, N, D). `normed_ND`: as of `norm`.
    """
    total_ND = torch.empty_like(x_ND)
    normed_ND = torch.empty_like(x_ND, dtype=added.dtype) if normed_ND is None else normed_ND
    statistics_2N = x_ND.new_empty(2, len(x_ND), dtype=torch.float32)
    tensors = (x_ND, added, bias_D, weight_D, shift_D, total_ND, normed_ND, statistics_2N)
    _norm(tensors, epsilon, largest, drop, added=terms(added))
    return total_ND, normed_ND, statistics_2N


def _norm(
    tensors: tuple[Tensor, ...], epsilon: float, largest: Tensor | None, drop: Drop | None, *, added: int
) -> None:
    """Run the kernel. `tensors`: its arguments up to the statistics, the first being x; `added`: its TERMS."""
    x_ND = tensors[0]
    rows, width = x_ND.shape
    slots, number = tracked(largest, x_ND)
    if rows:
        block = power(width)
        options: dict[str, Any] = {"TERMS": added, "DROPS": drop is not None, "BLOCK": block, "SLOTS": number}
        arguments = (*tensors, slots, *(drop or nothing(x_ND)), rows, width, epsilon)
        _norm_kernel[rows,](*arguments, **options, num_warps=max(1, min(8, block // 1024)))


def gradients(
    above: Tensor,
    x_ND: Tensor,
    statistics_2N: Tensor,
    weight_D: Tensor,
    beside_ND: Tensor | None,
    totals: Sequence[Tensor | None],
    largest: Tensor | None = None,
    drop: Drop | None = None,
) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
    """Return the gradient of x: through its norm, from `above`, and past it, `beside`, if any.

    `above`: (N, D), or terms whose sum is meant, (P, N, D).
    Second, in the type of `above`, the gradient of what x is the sum with: the same if nothing was dropped. Third,
    those of the norm's weight and shift, and that of a bias which x is the sum with, as far as there are `totals` and
    as `add_parts` does. `largest`: slots for the largest magnitudes of the second.
    """
    below_ND, (rows, width) = torch.empty_like(x_ND), x_ND.shape
    # Without a bias, x is not a sum.
    writes = len(totals) == 3 and (drop is not None or x_ND.dtype != above.dtype)
    dropped_ND = torch.empty_like(x_ND, dtype=above.dtype) if writes else below_ND
    block = power(width)
    together = max(1, TILE // block)
    share = max(together, -(-rows // SHARES))
    parts_P3D = x_ND.new_empty(-(-rows // share), 3, width, dtype=torch.float32)
    if rows:
        other = x_ND if beside_ND is None else beside_ND
        slots, number = tracked(largest, x_ND)
        tensors = (above, x_ND, statistics_2N, weight_D, other, below_ND, dropped_ND, parts_P3D, slots)
        options: dict[str, Any] = {"ADDS": beside_ND is not None, "DROPS": drop is not None, "WRITES": writes}
        options["TERMS"] = terms(above)
        loaded = together * block * (terms(above) * above.element_size() + x_ND.element_size() + other.element_size())
        stages = STAGES if loaded * STAGES <= SHARED else 1
        tile: dict[str, Any] = {"ROWS": together, "BLOCK": block, "STAGES": stages, "num_warps": max(2, block // 1024)}
        sizes = (rows, width, share)
        _gradient_kernel[len(parts_P3D),](*tensors, *(drop or nothing(x_ND)), *sizes, **options, **tile, SLOTS=number)
    return below_ND, dropped_ND, add_parts(parts_P3D, totals)
