"""Kernels over the columns of a matrix whose rows are tokens: GELU, and the gradients of biases, as Triton kernels.

The gradient of a bias is a sum over tokens. It is made where its terms pass anyway: each program adds up a share of
the rows of some columns, then `add_parts` adds the shares, always in the same order. Import this module only where
Triton is.
"""
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# Triton has no types, and is not installed on machines without a GPU.

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.kernels.dropout import Drop, factors, mix64, nothing

PARTS = 256
"""Most shares into which rows are divided: a GPU has about half as many multiprocessors."""
Tile = tuple[int, int, int]
"""Rows and columns that a program has in hand at once, and its warps; those below were the fastest on an H200."""
GELU_TILE: Tile = (16, 128, 4)
SUM_TILE: Tile = (16, 64, 2)
JOIN_TILE: Tile = (64, 64, 4)
SLOTS = 64
"""Places for the largest values of a tensor: one would be fought over by all programs."""
LINEAR = 2048
"""Values of a kernel that goes through a tensor from its beginning to its end."""


@triton.jit
def keep_largest(values, largest, SLOTS: tl.constexpr):
    """Raise one of the slots to the largest magnitude of these values; do nothing without slots."""
    if SLOTS:
        most = tl.max(tl.abs(values.to(tl.float32)), 0)
        if len(values.shape) == 2:
            most = tl.max(most, 0)
        tl.atomic_max(largest + tl.program_id(0) % SLOTS, most, sem="relaxed")


@triton.jit
def _gelu(x):
    """Return the tanh GELU of x, and its slope: tanh(u) is 2 sigmoid(2u) - 1."""
    inner = 1.5957691216057308 * x * (1.0 + 0.044715 * x * x)
    gate = 1.0 / (1.0 + tl.exp(-inner))
    return x * gate, gate + x * gate * (1.0 - gate) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)


@triton.jit
def _gelu_kernel(x, out, largest, count, BLOCK: tl.constexpr, SLOTS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values, _ = _gelu(tl.load(x + at, mask=at < count, other=0.0).to(tl.float32))
    kept = values.to(out.dtype.element_ty)
    tl.store(out + at, kept, mask=at < count)
    keep_largest(kept, largest, SLOTS)


@triton.jit
def _add_kernel(
    x, added, bias, out, keys, site, threshold, scale, count, width,
    TERMS: tl.constexpr, DROPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    more = tl.load(added + at, mask=at < count, other=0.0).to(tl.float32)
    of_term = at
    for _ in tl.static_range(1, TERMS):
        of_term = of_term + count
        more += tl.load(added + of_term, mask=at < count, other=0.0).to(tl.float32)
    more += tl.load(bias + at % width, mask=at < count, other=0.0).to(tl.float32)
    if DROPS:
        key = mix64(tl.load(keys + at // width, mask=at < count, other=0) + site)
        more *= factors(key, at % width, threshold, scale)
    tl.store(out + at, (values + more).to(out.dtype.element_ty), mask=at < count)


@triton.jit
def _gelu_gradient_kernel(
    x, above, below, parts, largest, rows, width, share, strips,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a share of the rows of some columns, and their sums."""
    part, strip = tl.program_id(0).to(tl.int64) // strips, tl.program_id(0) % strips
    column = strip * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    most = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, share, ROWS):
        row = part * share + start + tl.arange(0, ROWS)
        here = ((row < rows) & (start + tl.arange(0, ROWS) < share))[:, None] & (column < width)[None, :]
        at = row[:, None] * width + column[None, :]
        _, slope = _gelu(tl.load(x + at, mask=here, other=0.0).to(tl.float32))
        gradient = tl.load(above + at, mask=here, other=0.0).to(tl.float32) * slope
        kept = gradient.to(below.dtype.element_ty)
        tl.store(below + at, kept, mask=here)
        kept = tl.where(here, kept.to(tl.float32), 0.0)
        total += kept
        if SLOTS:
            most = tl.maximum(most, tl.abs(kept))
    tl.store(parts + part * width + column, tl.sum(total, 0), mask=column < width)
    keep_largest(most, largest, SLOTS)


@triton.jit
def _sum_kernel(
    x, dropped, parts, largest, keys, site, threshold, scale, rows, width, share, strips,
    DROPS: tl.constexpr, WRITES: tl.constexpr, SLOTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add up a share of the rows of some columns, after dropout if any; write that, too, if it is another tensor."""
    part, strip = tl.program_id(0).to(tl.int64) // strips, tl.program_id(0) % strips
    column = strip * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    most = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, share, ROWS):
        row = part * share + start + tl.arange(0, ROWS)
        here = ((row < rows) & (start + tl.arange(0, ROWS) < share))[:, None] & (column < width)[None, :]
        at = row[:, None] * width + column[None, :]
        values = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        if DROPS:
            key = mix64(tl.load(keys + row, mask=row < rows, other=0) + site)
            values *= factors(key[:, None], column[None, :], threshold, scale)
        if WRITES:
            tl.store(dropped + at, values.to(dropped.dtype.element_ty), mask=here)
        total += values
        if SLOTS:
            most = tl.maximum(most, tl.abs(values))
    tl.store(parts + part * width + column, tl.sum(total, 0), mask=column < width)
    keep_largest(most, largest, SLOTS)


@triton.jit
def _join_kernel(
    query, key, value, out, parts, largest, rows, length, heads, head_width, share, strips,
    by_sample, by_head, by_position, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Write a share of the rows of some columns of joined queries, keys and values, and their sums.

    Columns are ordered by head; in each the query's come first, then the key's and the value's.
    """
    part, strip, kind = (
        tl.program_id(0).to(tl.int64) // (3 * strips),
        tl.program_id(0) // 3 % strips,
        tl.program_id(0) % 3,
    )
    source = query
    if kind == 1:
        source = key
    if kind == 2:
        source = value
    width = heads * head_width * 3
    place = strip * COLUMNS + tl.arange(0, COLUMNS)
    head, inside = place // head_width, place < heads * head_width
    column = head * (3 * head_width) + kind * head_width + place % head_width
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    most = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, share, ROWS):
        row = part * share + start + tl.arange(0, ROWS)
        here = ((row < rows) & (start + tl.arange(0, ROWS) < share))[:, None] & inside[None, :]
        base = (row // length) * by_sample + (row % length) * by_position
        values = tl.load(source + base[:, None] + (head * by_head + place % head_width)[None, :], mask=here, other=0.0)
        tl.store(out + row[:, None] * width + column[None, :], values, mask=here)
        total += values.to(tl.float32)
        if SLOTS:
            most = tl.maximum(most, tl.abs(values.to(tl.float32)))
    tl.store(parts + part * width + column, tl.sum(total, 0), mask=inside)
    keep_largest(most, largest, SLOTS)


@triton.jit
def _add_parts_kernel(
    parts, first, second, third, count, stride, width, strips, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Add all shares of some columns to their total: of up to three totals, whose columns lie one after the other."""
    which, strip = tl.program_id(0) // strips, tl.program_id(0) % strips
    total = first
    if which == 1:
        total = second
    if which == 2:
        total = third
    column = strip * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        here = (row < count)[:, None] & (column < width)[None, :]
        sums += tl.load(parts + which * width + row[:, None] * stride + column[None, :], mask=here, other=0.0)
    before = tl.load(total + column, mask=column < width, other=0.0)
    tl.store(total + column, before + tl.sum(sums, 0), mask=column < width)


def gelu(x: Tensor, largest: Tensor | None) -> Tensor:
    """Return the tanh GELU; leave its largest magnitudes in the slots of `largest`, if there are any."""
    out, count = torch.empty_like(x), x.numel()
    if count:
        slots, number = tracked(largest, x)
        _gelu_kernel[-(-count // LINEAR),](x, out, slots, count, BLOCK=LINEAR, SLOTS=number, num_warps=8)
    return out


def terms(x: Tensor) -> int:
    """Return how many terms x has, (P, N, D), whose sum is meant: one if it is (N, D)."""
    return len(x) if x.dim() == 3 else 1


def add(x: Tensor, added: Tensor, bias_D: Tensor, drop: Drop | None) -> Tensor:
    """Return x + drop(added + bias), in the type and shape of x, (..., D).

    `added`: (N, D), or terms whose sum is meant, (P, N, D).
    """
    out, count = torch.empty_like(x), x.numel()
    if count:
        arguments = (x, added, bias_D, out, *(drop or nothing(x)), count, x.shape[-1])
        options = {"TERMS": terms(added), "DROPS": drop is not None}
        _add_kernel[-(-count // LINEAR),](*arguments, **options, BLOCK=LINEAR, num_warps=8)
    return out


def gelu_gradient(
    x_NF: Tensor, above_NF: Tensor, bias_total_F: Tensor | None, largest: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return the gradient of x in the place of `above`, that of its GELU, and its sum over rows as `add_parts` does.

    `largest`: see `gelu`.
    """
    share, strips, parts_PF = _shares(x_NF, GELU_TILE)
    if len(parts_PF):
        slots, number = tracked(largest, x_NF)
        arguments = (x_NF, above_NF, above_NF, parts_PF, slots, *x_NF.shape, share, strips)
        _gelu_gradient_kernel[len(parts_PF) * strips,](*arguments, SLOTS=number, **_options(GELU_TILE))
    return above_NF, add_parts(parts_PF[:, None], [bias_total_F])[0]


def sum_rows(
    x_NF: Tensor, total_F: Tensor | None, largest: Tensor | None, drop: Drop | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Return x in `dtype` and after dropout, and its sum over rows as `add_parts` does. `largest`: see `gelu`."""
    writes = drop is not None or x_NF.dtype != dtype
    dropped_NF = torch.empty_like(x_NF, dtype=dtype) if writes else x_NF
    share, strips, parts_PF = _shares(x_NF, SUM_TILE)
    if len(parts_PF):
        slots, number = tracked(largest, x_NF)
        arguments = (x_NF, dropped_NF, parts_PF, slots, *(drop or nothing(x_NF)), *x_NF.shape, share, strips)
        options = {"DROPS": drop is not None, "WRITES": writes, "SLOTS": number, **_options(SUM_TILE)}
        _sum_kernel[len(parts_PF) * strips,](*arguments, **options)
    return dropped_NF, add_parts(parts_PF[:, None], [total_F])[0]


def join_heads(
    query_BHTK: Tensor, key_BHTK: Tensor, value_BHTK: Tensor, bias_total_F: Tensor | None, largest: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return (N, H x 3 x K): queries, keys and values side by side, by head; and their sums as `add_parts` does.

    `largest`: see `gelu`.
    """
    batch, heads, length, width = query_BHTK.shape
    strides = query_BHTK.stride()
    if strides[3] != 1 or any(each.stride() != strides for each in (key_BHTK, value_BHTK)):
        query_BHTK, key_BHTK, value_BHTK = (each.contiguous() for each in (query_BHTK, key_BHTK, value_BHTK))
        strides = query_BHTK.stride()
    out_NF = query_BHTK.new_empty(batch * length, heads * 3 * width)
    share, _, parts_PF = _shares(out_NF, JOIN_TILE)
    if len(parts_PF):
        slots, number = tracked(largest, out_NF)
        strips = -(-heads * width // JOIN_TILE[1])
        sizes = (batch * length, length, heads, width, share, strips, *strides[:3])
        arguments = (query_BHTK, key_BHTK, value_BHTK, out_NF, parts_PF, slots, *sizes)
        _join_kernel[3 * len(parts_PF) * strips,](*arguments, SLOTS=number, **_options(JOIN_TILE))
    return out_NF, add_parts(parts_PF[:, None], [bias_total_F])[0]


def add_parts(parts_PnF: Tensor, totals: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Return the sums of the shares, for up to three vectors; or add them to the fp32 `totals`, and return Nones."""
    count, _, width = parts_PnF.shape
    into = [parts_PnF.new_zeros(width) if total is None else total for total in totals]
    if count:
        strips = -(-width // 16)
        arguments = (parts_PnF, into[0], into[-1] if len(into) < 3 else into[1], into[-1])
        sizes = (count, parts_PnF.stride(0), width, strips)
        _add_parts_kernel[len(into) * strips,](*arguments, *sizes, ROWS=128, COLUMNS=16, num_warps=4)
    return tuple(new if total is None else None for new, total in zip(into, totals, strict=True))


def _shares(x_NF: Tensor, tile: Tile) -> tuple[int, int, Tensor]:
    """Return the rows of a share, the strips of columns, and room for each share's sums."""
    rows, width = x_NF.shape
    share = max(tile[0], -(-rows // PARTS))
    return share, -(-width // tile[1]), x_NF.new_empty(-(-rows // share), width, dtype=torch.float32)


def _options(tile: Tile) -> dict[str, Any]:
    rows, columns, warps = tile
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": warps}


def tracked(largest: Tensor | None, other: Tensor) -> tuple[Tensor, int]:
    """Return the slots for the largest values and their number; without slots, any tensor and 0."""
    return (other, 0) if largest is None else (largest, SLOTS)
