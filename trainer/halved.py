"""Weights in half precision, made once for all passes of a step."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_ATTRIBUTE = "_millrace_made"
"""Of a weight: name -> its version, and what was made of it."""


def halved(weight: Tensor, dtype: torch.dtype, *, keep: bool) -> Tensor:
    """Return a weight in `dtype`, outside of autograd. `keep`: see `made_once`."""
    if weight.dtype == dtype:
        return weight.detach()
    return made_once(weight, str(dtype), lambda: weight.detach().to(dtype), keep=keep)


def made_once(weight: Tensor, name: str, make: Callable[[], T], *, keep: bool) -> T:
    """Return what `make` makes of a weight; with `keep` the same as before until the weight changes.

    Keep nothing of ZeRO's weights, which it changes without counting that. While a CUDA graph is captured nothing is
    kept either, since replays run no Python that could notice a change.
    """
    if not keep or (weight.is_cuda and torch.cuda.is_current_stream_capturing()):
        return make()
    made: dict[str, tuple[int, T]] = getattr(weight, _ATTRIBUTE, {})
    setattr(weight, _ATTRIBUTE, made)
    if name not in made or made[name][0] != weight._version:
        made[name] = weight._version, make()
    return made[name][1]
