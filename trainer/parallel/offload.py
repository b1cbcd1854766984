"""Sixth step: keep optimizer state, or all states, in the host's memory."""

from trainer.config import ParallelConfig, require_done
from trainer.model import GPT2


def offload_states(model: GPT2, parallel: ParallelConfig) -> None:  # noqa: ARG001 (nothing to do for none)
    """With `none`, everything stays on the device."""
    require_done(parallel, "offload")
