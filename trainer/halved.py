"""Weights in half precision, made once for all passes of a step."""

import torch
from torch import Tensor

_ATTRIBUTE = "_millrace_halved"
"""Of a weight: its version, and itself in half precision."""


def halved(weight: Tensor, dtype: torch.dtype, *, keep: bool) -> Tensor:
    """Return a weight in `dtype`, outside of autograd.

    `keep`: whether later passes get the same tensor until the weight changes. Not for weights of ZeRO, which changes
    them without counting it. While a CUDA graph is captured nothing is kept either, since replays run no Python that
    could notice a change.
    """
    if weight.dtype == dtype:
        return weight.detach()
    if not keep or (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
        return weight.detach().to(dtype)
    version, half = getattr(weight, _ATTRIBUTE, (-1, weight))
    if version != weight._version or half.dtype != dtype:
        half = weight.detach().to(dtype)
        setattr(weight, _ATTRIBUTE, (weight._version, half))
    return half
