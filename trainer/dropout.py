"""Dropout whose mask is a pure function of the seed and of the position of a value.

The key of a vector is a hash of (seed, id of the sample in the run, position in the sample, site in the model); the
mask of a channel is a hash of that and of the channel's index. So masks do not depend on processes, micro batches,
padding or earlier steps, and a resumed run needs no generator state. The hashes are MurmurHash3's 64-bit finalizer and
Chris Wellons' `lowbias32` (github.com/skeeto/hash-prospector).

Shapes: B samples, T positions, C channels.
"""

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64


def vector_keys(seed: int, rows_B: Tensor, length: int) -> Tensor:
    """Return one int64 key per sample and position, (B, T). `rows_B`: id of each sample in the run, int64."""
    samples_B = _mix64(rows_B + _wrap(seed * _GOLDEN))
    positions_T = torch.arange(length, device=rows_B.device)
    return _mix64(samples_B[:, None] + positions_T * _GOLDEN)


def at_site(keys: Tensor, site: int) -> Tensor:
    """Derive the keys of one site in the model."""
    return _mix64(keys + _wrap(site * _GOLDEN))


def at_heads(keys_BT: Tensor, site: int, heads: range) -> Tensor:
    """Derive the keys of one site in each of these attention heads, (B, H, T)."""
    # Not with a tensor of heads: torch.compile would treat it as an index, and overflow differently.
    return torch.stack([at_site(keys_BT, (head + 1 << 32) + site) for head in heads], 1)


def keyed_dropout(x: Tensor, probability: float, keys: Tensor) -> Tensor:
    """Set each value to 0 with `probability` and scale up the rest. x: (..., C); keys: int64, (...)."""
    if probability == 0:
        return x
    channels_C = torch.arange(x.shape[-1], device=x.device, dtype=torch.int32) * -1640531527
    bits = _mix32((keys >> 32).to(torch.int32)[..., None] + channels_C)
    keep = bits >= int(probability * 2**32) - 2**31
    return x * (keep.to(x.dtype) / (1 - probability))


def _mix64(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * -49064778989728563
    x = (x ^ ((x >> 33) & 0x7FFFFFFF)) * -4265267296055464877
    return x ^ ((x >> 33) & 0x7FFFFFFF)


def _mix32(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    return x ^ ((x >> 16) & 0xFFFF)


def _wrap(number: int) -> int:
    """Wrap around to a signed 64-bit integer, as tensors overflow."""
    return (number + 2**63) % 2**64 - 2**63
