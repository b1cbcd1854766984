"""Keyed dropout as Triton kernels, for GPUs; `trainer.dropout` has the same in plain torch.

Plain, a place takes some 45 small kernels and keeps a mask in memory for the backward pass. Here it takes one, and the
backward pass makes the mask again. Masks are equal to the bit. Import this module only where Triton is.
"""
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# Triton has no types, and is not installed on machines without a GPU.

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Most values of a vector that a program has in hand at once."""


class Drop(NamedTuple):
    """What to drop at one site: of each vector, the channels that the hash of its key at this site says."""

    keys_N: Tensor  # noqa: N815 (a shape)
    """One for each vector, not yet of the site."""
    site: int
    """What `trainer.dropout.at_site` adds to the keys."""
    threshold: int
    """The least hash of a channel that stays."""
    scale: float
    """What the values that stay are multiplied by."""

    @classmethod
    def of(cls, keys: Tensor, site: int, probability: float, dtype: torch.dtype) -> "Drop":
        """Return what to drop of values of `dtype`. `site`: its `trainer.dropout.site_constant`."""
        return cls(keys.contiguous().flatten(), site, *mask_of(probability, dtype))


def nothing(other: Tensor) -> tuple[Tensor, int, int, float]:
    """Return arguments in the place of a `Drop`, for a kernel that drops nothing. `other`: any tensor."""
    return other, 0, 0, 1.0


MOST_POSITIONS = 4096
"""Most positions of a sample whose row of attention a program holds whole."""


@triton.jit
def mix64(x):
    """Return the hash of `trainer.dropout`."""
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * -49064778989728563
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * -4265267296055464877
    return x ^ ((x >> 33) & 0x7FFFFFFF)


@triton.jit
def _mix32(x):
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)


@triton.jit
def factors(key, channels, threshold, scale):
    """Return `scale` for the channels that stay and 0 for the others; `key`: that of the vector at its site."""
    bits = _mix32((key >> 32).to(tl.int32) + channels.to(tl.int32) * -1640531527)
    return tl.where(bits >= threshold, scale, 0.0)


@triton.jit
def _drop_kernel(x, keys, out, site, width, threshold, scale, BLOCK: tl.constexpr):
    """Drop values of one vector."""
    number = tl.program_id(0).to(tl.int64)
    key = mix64(tl.load(keys + number) + site)
    for start in range(0, width, BLOCK):
        channels = start + tl.arange(0, BLOCK)
        values = tl.load(x + number * width + channels, mask=channels < width, other=0.0).to(tl.float32)
        values = values * factors(key, channels, threshold, scale)
        tl.store(out + number * width + channels, values.to(out.dtype.element_ty), mask=channels < width)


@triton.jit
def _head_key(keys, number, length, heads, first_head, site):
    """Return the key of one row of attention: of a head and a position."""
    position, head, sample = number % length, (number // length) % heads + first_head, number // (length * heads)
    key = tl.load(keys + sample * length + position)
    return mix64(key + (((head + 1) << 32) + site) * -7046029254386353131), position


@triton.jit
def _softmax(scores, columns, position, root):
    """Return the softmax over the positions that one sees, from its row of products."""
    logits = tl.load(scores + columns, mask=columns <= position, other=float("-inf")).to(tl.float32) / root
    powers = tl.exp(logits - tl.max(logits, 0))
    return powers / tl.sum(powers, 0)


@triton.jit
def _attention_kernel(scores, keys, out, length, heads, first_head, site, root, threshold, scale, BLOCK: tl.constexpr):
    """Write one row of attention probabilities after dropout."""
    number = tl.program_id(0).to(tl.int64)
    key, position = _head_key(keys, number, length, heads, first_head, site)
    columns = tl.arange(0, BLOCK)
    shares = _softmax(scores + number * length, columns, position, root)
    shares = shares.to(out.dtype.element_ty).to(tl.float32) * factors(key, columns, threshold, scale)
    tl.store(out + number * length + columns, shares.to(out.dtype.element_ty), mask=columns < length)


@triton.jit
def _attention_gradient_kernel(
    scores, keys, gradients, out, length, heads, first_head, site, root, threshold, scale, BLOCK: tl.constexpr
):
    """Write the gradient of one row of products."""
    number = tl.program_id(0).to(tl.int64)
    key, position = _head_key(keys, number, length, heads, first_head, site)
    columns = tl.arange(0, BLOCK)
    shares = _softmax(scores + number * length, columns, position, root)
    above = tl.load(gradients + number * length + columns, mask=columns <= position, other=0.0).to(tl.float32)
    above = (above * factors(key, columns, threshold, scale)).to(out.dtype.element_ty).to(tl.float32)
    below = shares * (above - tl.sum(shares * above, 0)) / root
    tl.store(out + number * length + columns, below.to(out.dtype.element_ty), mask=columns < length)


def drop(x: Tensor, probability: float, keys: Tensor, site: int) -> Tensor:
    """Return `keyed_dropout` of x, (..., C); `keys`: int64, (...), not yet of a site; `site`: what `at_site` adds."""
    return _Drop.apply(x, probability, keys, site)  # pyright: ignore[reportReturnType]


def attention(
    scores_BHTT: Tensor, probability: float, keys_BT: Tensor, site: int, first_head: int, width: int
) -> Tensor:
    """Return causal attention probabilities after dropout, from products of queries and keys of heads `width` wide."""
    return _Attention.apply(scores_BHTT, probability, keys_BT, site, first_head, width)  # pyright: ignore


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float, keys: Tensor, site: int) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.probability, ctx.site = probability, site
        return _dropped(x, probability, keys, site)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (keys,) = ctx.saved_tensors
        return _dropped(gradients[0], ctx.probability, keys, ctx.site), None, None, None


def _dropped(x: Tensor, probability: float, keys: Tensor, site: int) -> Tensor:
    x, keys = x.contiguous(), keys.contiguous()
    out, width = torch.empty_like(x), x.shape[-1]
    if x.numel():
        options: dict[str, Any] = {"BLOCK": min(BLOCK, power(width)), "num_warps": 4}
        _drop_kernel[x.numel() // width,](x, keys, out, site, width, *mask_of(probability, x.dtype), **options)
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores_BHTT: Tensor, probability: float, keys_BT: Tensor, site: int, first_head: int, width: int
    ) -> Tensor:
        scores_BHTT, keys_BT = scores_BHTT.contiguous(), keys_BT.contiguous()
        heads, length = scores_BHTT.shape[1:3]
        ctx.save_for_backward(scores_BHTT, keys_BT)
        ctx.constants = (length, heads, first_head, site, math.sqrt(width), *mask_of(probability, scores_BHTT.dtype))
        out_BHTT = torch.empty_like(scores_BHTT)
        _attention_kernel[_rows(scores_BHTT),](scores_BHTT, keys_BT, out_BHTT, *ctx.constants, **_options(length))
        return out_BHTT

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        scores_BHTT, keys_BT = ctx.saved_tensors
        out_BHTT = torch.empty_like(scores_BHTT)
        _attention_gradient_kernel[_rows(scores_BHTT),](
            scores_BHTT, keys_BT, gradients[0].contiguous(), out_BHTT, *ctx.constants, **_options(ctx.constants[0])
        )
        return out_BHTT, None, None, None, None, None


def _rows(scores_BHTT: Tensor) -> int:
    return scores_BHTT.shape[0] * scores_BHTT.shape[1] * scores_BHTT.shape[2]


def _options(length: int) -> dict[str, Any]:
    return {"BLOCK": power(length), "num_warps": 1 if length <= 256 else 4}


@functools.cache
def mask_of(probability: float, dtype: torch.dtype) -> tuple[int, float]:
    """Return the least hash that stays, and what a value is multiplied by then, as the values' type holds it."""
    scale = torch.ones((), dtype=dtype) / (1 - probability)
    return int(probability * 2**32) - 2**31, float(scale)


def power(number: int) -> int:
    """Return the least power of two that is not smaller, 16 at least."""
    return max(16, 1 << (number - 1).bit_length())
