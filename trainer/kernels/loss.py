"""The loss's work on the logits as Triton kernels, for GPUs; `trainer.loss` has the same in plain torch.

A kernel reads each logit twice and writes its gradient in its place. Between the two readings a row stays in the GPU's
cache, so that memory sees one. Import this module only where Triton is.
"""
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# Triton has no types, and is not installed on machines without a GPU.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from trainer.loss import WHOLE, VocabPart

BLOCK, WARPS = 8192, 16
"""Logits of a row that a program has in hand at once, and its warps."""
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)
"""GPUs have powers of 2; with this factor outside of the difference, it costs no operation of its own."""
TOGETHER = 4
"""Neighbouring logits that share a running maximum, which then costs a quarter of the exponentials."""


@triton.jit
def _statistics(row, target, limit, BLOCK: tl.constexpr, TOGETHER: tl.constexpr):
    """Return a row's largest logit, the sum of exp(logit - largest), and the target's logit: 0 if it is not here."""
    lanes: tl.constexpr = BLOCK // TOGETHER
    columns = tl.arange(0, lanes)[:, None] * TOGETHER + tl.arange(0, TOGETHER)[None, :]
    largest = tl.full([lanes], float("-inf"), tl.float32)
    sums = tl.zeros([lanes], tl.float32)
    for start in range(0, limit, BLOCK):
        logits = tl.load(row + start + columns, mask=start + columns < limit, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.max(logits, 1))
        # -inf - -inf would be NaN in lanes that have seen no logit.
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        powers = tl.exp2(logits * LOG2_E - (shift * LOG2_E)[:, None])
        sums = sums * tl.exp(largest - shift) + tl.sum(powers, 1)
        largest = larger
    top = tl.max(largest, 0)
    total = tl.sum(sums * tl.exp(largest - tl.where(top == float("-inf"), 0.0, top)), 0)
    at_target = tl.load(row + target, mask=(target >= 0) & (target < limit), other=0.0).to(tl.float32)
    return top, total, at_target


@triton.jit
def _differentiate(row, target, limit, width, top, total, factor, BLOCK: tl.constexpr):
    """Replace a row's logits by (softmax - one-hot) * factor; columns from `limit` on are padding and get 0."""
    columns = tl.arange(0, BLOCK)
    for start in range(0, width, BLOCK):
        at = start + columns
        logits = tl.load(row + at, mask=at < limit, other=float("-inf")).to(tl.float32)
        gradient = tl.exp2(logits * LOG2_E - top * LOG2_E) * (factor / total) - tl.where(at == target, factor, 0.0)
        tl.store(row + at, gradient.to(row.dtype.element_ty), mask=at < width)


@triton.jit
def _whole_kernel(logits, targets, losses, stride, limit, width, factor, BLOCK: tl.constexpr, TOGETHER: tl.constexpr):
    """Both for one row, which has all logits; and its loss."""
    number = tl.program_id(0).to(tl.int64)
    row, target = logits + number * stride, tl.load(targets + number)
    top, total, at_target = _statistics(row, target, limit, BLOCK, TOGETHER)
    tl.store(losses + number, tl.where(target >= 0, tl.log(total) + top - at_target, 0.0))
    _differentiate(row, target, limit, width, top, total, tl.where(target >= 0, tl.load(factor), 0.0), BLOCK)


@triton.jit
def _statistics_kernel(
    logits, targets, tops, totals, at_targets, stride, limit, BLOCK: tl.constexpr, TOGETHER: tl.constexpr
):
    number = tl.program_id(0).to(tl.int64)
    top, total, at_target = _statistics(logits + number * stride, tl.load(targets + number), limit, BLOCK, TOGETHER)
    tl.store(tops + number, top)
    tl.store(totals + number, total)
    tl.store(at_targets + number, at_target)


@triton.jit
def _gradient_kernel(logits, targets, tops, totals, factors, stride, limit, width, BLOCK: tl.constexpr):
    number = tl.program_id(0).to(tl.int64)
    top, total, factor = tl.load(tops + number), tl.load(totals + number), tl.load(factors + number)
    _differentiate(logits + number * stride, tl.load(targets + number), limit, width, top, total, factor, BLOCK)


def loss_and_gradient(
    product_NV: Tensor, targets_N: Tensor, vocab_size: int, part: VocabPart, factor: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the chunk's summed loss, and `product_NV`, overwritten with the gradient of the logits times `factor`."""
    rows, width = product_NV.shape
    stride, limit = product_NV.stride(0), max(0, min(width, vocab_size - part.first))
    options: dict[str, Any] = {"BLOCK": BLOCK, "num_warps": WARPS}
    lanes: dict[str, Any] = {**options, "TOGETHER": TOGETHER}
    tops_N, sums_2N = targets_N.new_empty(rows, dtype=torch.float32), targets_N.new_empty(2, rows, dtype=torch.float32)
    factor = torch.ones((), device=product_NV.device) if factor is None else factor
    if part is WHOLE:
        _whole_kernel[rows,](product_NV, targets_N, tops_N, stride, limit, width, factor, **lanes)
        return tops_N.sum(), product_NV
    real_N = targets_N >= 0
    columns_N = targets_N - part.first
    _statistics_kernel[rows,](product_NV, columns_N, tops_N, sums_2N[0], sums_2N[1], stride, limit, **lanes)
    here_N = (columns_N >= 0) & (columns_N < limit)
    own_N, tops_N = tops_N, part.largest(tops_N.clone())
    sums_2N[0] *= (own_N - tops_N).exp()
    sums_2N[1] -= tops_N.where(here_N, 0.0)
    totals_N, at_targets_N = part.total(sums_2N)
    factors_N = real_N * factor
    _gradient_kernel[rows,](product_NV, columns_N, tops_N, totals_N, factors_N, stride, limit, width, **options)
    return ((totals_N.log() - at_targets_N) * real_N).sum(), product_NV
