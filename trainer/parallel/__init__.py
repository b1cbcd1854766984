"""Parallelism is applied from outside the model, in one function and one fixed order."""

from collections.abc import Callable
from typing import TypeVar

import torch

from trainer.config import ParallelConfig
from trainer.model import GPT2
from trainer.parallel.activation import checkpoint_activations
from trainer.parallel.mesh import Mesh
from trainer.parallel.offload import offload_states
from trainer.parallel.pipeline import split_pipeline
from trainer.parallel.tensor import split_tensors
from trainer.parallel.zero import Gradients, shard_states

M = TypeVar("M", bound=GPT2)


def parallelize(
    build: Callable[[], M], mesh: Mesh, parallel: ParallelConfig, *, compile_blocks: bool = False
) -> tuple[M, Gradients]:
    """Build a model without memory, split it step by step, and only then give it memory on the device.

    The weights are undefined until they are initialised or loaded. Returns the model and its gradients.
    """
    with torch.device("meta"):
        model = build()
    model = split_pipeline(model, parallel)
    split_tensors(model, parallel)
    checkpoint_activations(model, parallel)
    if compile_blocks:
        for block in model.transformer.h.values():
            # One graph per shape: validation runs first and has others, after which dynamo would make training's
            # graph a slower one for any shape.
            block.compile(dynamic=False)
    shard_states(model, parallel)
    offload_states(model, parallel)
    model.to_empty(device=mesh.device)
    model.tie()
    return model, Gradients(model, mesh)
