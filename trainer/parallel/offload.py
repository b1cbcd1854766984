"""Sixth step: where the optimizer works.

`none`: on the device. `optimizer`: in the host's memory, with copies of the weights that this process updates; weights
and gradients stay on the device. `all`: weights and gradients live in the host's memory too, which is FSDP2's own
offloading (`zero.shard_states`); the optimizer then finds them there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


class HostCopies:
    """Copies of weights and gradients in the host's memory; pinned where there is a GPU."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._on_gpu = any(weight.device.type == "cuda" for weight in weights)
        self.weights = [torch.empty(weight.shape, dtype=weight.dtype, pin_memory=self._on_gpu) for weight in weights]
        self.gradients = [torch.empty_like(copy, pin_memory=self._on_gpu) for copy in self.weights]

    def take(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """What the device has now."""
        self._copy((*weights, *gradients), (*self.weights, *self.gradients))

    def give(self, weights: Sequence[Tensor]) -> None:
        """The updated weights, back to the device."""
        self._copy(self.weights, weights)

    def _copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)
        if self._on_gpu:
            torch.cuda.synchronize()
