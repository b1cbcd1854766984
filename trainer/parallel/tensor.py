"""Second step: split each layer's matrices over the tp processes."""

from trainer.config import ParallelConfig, require_done
from trainer.model import GPT2


def split_tensors(model: GPT2, parallel: ParallelConfig) -> None:
    """Split the matrices of `model` in place: with tp 1, not at all. Replaced parameters are tied again."""
    require_done(parallel, "tp")
    model.tie()
