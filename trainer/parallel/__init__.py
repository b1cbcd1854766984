"""Parallelism is applied from outside the model, in one function and one fixed order."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from trainer.config import ParallelConfig
from trainer.loader.batch import Batch
from trainer.model import GPT2, Architecture, LanguageModel, Stage, canonical, initial_weight
from trainer.parallel.activation import checkpoint_activations
from trainer.parallel.mesh import Mesh
from trainer.parallel.pipeline import Pipeline, partition, split_pipeline, stage_owner
from trainer.parallel.tensor import split_tensors
from trainer.parallel.zero import Gradients, Tied, shard_states
from trainer.shards import fill

M = TypeVar("M", bound=GPT2)


@dataclass(slots=True)
class Parallel(Generic[M]):
    """What a process has of a model, and how the passes of a step go through all of it."""

    shape: Architecture
    parts: list[M]
    """The stages of this process: the whole model where there is one stage."""
    mesh: Mesh
    gradients: Gradients
    pipeline: Pipeline | None
    positions_multiple: int
    """What lengths of samples are padded to: the processes that share them, with sequence parallelism."""

    @property
    def weights(self) -> Mapping[str, nn.Parameter]:
        """This process's parameters under their canonical names; the head's copy of the embedding under its own."""
        return self.gradients.weights

    def initialise(self, seed: int) -> None:
        """GPT-2's initial weights, the same in every layout (`model.initial_weight`)."""
        for name, weight in self.weights.items():
            fill(weight, initial_weight(canonical(name), self.shape, weight.shape, seed))

    def train(self, mode: bool) -> None:
        """Training with dropout, or measuring without."""
        for part in self.parts:
            part.train(mode)

    def forward_backward(self, batches: Iterator[Batch], micro_batch_size: int, passes: int, scale: float) -> Tensor:
        """A step's share of this process, forward and backward; returns its summed loss times `scale`.

        Every process makes as many passes, where it has fewer batches with some that count for nothing: the others
        wait for it in each. With a pipeline the share is one batch, which the schedule cuts. Gradients are added up
        here, not yet over processes: `gradients.reduce` follows.
        """
        total = torch.zeros((), device=self.mesh.device)
        batch: Batch | None = None
        for number in range(passes):
            following = next(batches, None)
            assert following is not None or batch is not None, "a process has no batch at all"
            batch = following if following is not None else batch.ignored()  # pyright: ignore[reportOptionalMemberAccess]
            ready = batch.padded(self.positions_multiple)
            if self.pipeline is not None:
                return self.pipeline.forward_backward(ready, micro_batch_size or len(ready.ids), passes, scale)
            self.gradients.expect(last=number == passes - 1)
            loss = self.parts[0](ready.ids, **ready.inputs()) * scale
            loss.backward()
            total += loss.detach()
        return total

    @torch.no_grad()
    def forward(self, batch: Batch, **inputs: Tensor) -> Tensor | None:
        """The model's output for a batch, in the processes that have the last stage; `inputs` replace the batch's."""
        batch = batch.padded(self.positions_multiple)
        if self.pipeline is not None:
            return self.pipeline.forward(batch, **inputs)
        return self.parts[0](batch.ids, **(inputs or batch.inputs()))


def parallelize(
    build: Callable[[Stage | None], M],
    shape: Architecture,
    mesh: Mesh,
    parallel: ParallelConfig,
    *,
    compute_dtype: torch.dtype = torch.float32,
    compile_blocks: bool = False,
) -> Parallel[M]:
    """Build a model without memory, split it step by step, and only then give it memory on the device.

    The weights are undefined until they are initialised or loaded.
    """
    with torch.device("meta"):
        parts = split_pipeline(build, shape, parallel, mesh)
    for part in parts:
        part.transformer.compute_dtype = compute_dtype
        split_tensors(part, parallel, mesh)
        checkpoint_activations(part, parallel)
        if compile_blocks:
            for block in part.transformer.h.values():
                # One graph per shape: validation runs first and has others, after which dynamo would make training's
                # graph a slower one for any shape.
                block.compile(dynamic=False)
            if isinstance(part, LanguageModel) and part.lm_head is not None:
                part.lm_head.compiled = True
        shard_states(part, parallel, mesh, compute_dtype)
        part.to_empty(device="cpu" if parallel.offload == "all" and parallel.zero else mesh.device)
        part.tie()
    # A classifier has no head that is the embedding: nothing to keep equal.
    last = 0 if shape.num_labels else stage_owner(len(partition(shape, parallel)) - 1, parallel)
    tied = Tied(mesh, 0, last)
    pipeline = Pipeline(parts, shape, parallel, mesh) if mesh.pp > 1 else None
    return Parallel(
        shape,
        parts,
        mesh,
        Gradients(parts, parallel, mesh, tied),
        pipeline,
        mesh.tp if parallel.sequence_parallel else 1,
    )
