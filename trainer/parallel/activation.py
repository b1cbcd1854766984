"""Third step: compute activations again in the backward pass instead of keeping them."""

from trainer.config import ParallelConfig, require_done
from trainer.model import GPT2


def checkpoint_activations(model: GPT2, parallel: ParallelConfig) -> None:  # noqa: ARG001 (nothing to do for none)
    """With `none`, keep the activations of every block."""
    require_done(parallel, "activation_checkpointing")
