"""First step: give each pipeline stage its own layers."""

from typing import TypeVar

from trainer.config import ParallelConfig, require_done
from trainer.model import GPT2

M = TypeVar("M", bound=GPT2)


def split_pipeline(model: M, parallel: ParallelConfig) -> M:
    """The part of `model` that this process computes: with one stage, all of it."""
    require_done(parallel, "pp", "microbatches", "chunks")
    return model
