"""Fifth step: who holds gradients, optimizer state and weights, and how gradients are added up.

Stage 0 of ZeRO: every process holds everything. All gradients are views of one flat fp32 buffer, which the
backward passes of a step's micro batches add to and which is summed over processes once per step.
"""

import torch
from torch import Tensor

from trainer.config import ParallelConfig, require_done
from trainer.model import GPT2
from trainer.parallel.mesh import Mesh


class Gradients:
    """The gradients of one replica."""

    def __init__(self, model: GPT2, mesh: Mesh) -> None:
        weights = list(model.parameters())
        self._mesh = mesh
        self._flat: Tensor = torch.zeros(sum(weight.numel() for weight in weights), device=mesh.device)
        start = 0
        for weight in weights:
            weight.grad = self._flat[start : start + weight.numel()].view_as(weight)
            start += weight.numel()

    def zero(self) -> None:
        """Forget the last step's gradients."""
        self._flat.zero_()

    def reduce(self) -> None:
        """Add up over processes; after the last micro batch of a step."""
        self._mesh.sum_over_data(self._flat)


def shard_states(model: GPT2, parallel: ParallelConfig) -> None:  # noqa: ARG001 (nothing to do for stage 0)
    """Shard `model` in place over dp_shard processes: at stage 0, not at all."""
    require_done(parallel, "zero", "dp_shard")
