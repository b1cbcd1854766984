"""First step: give each pipeline stage its own layers; and the passes of a step through all stages.

The stages and their schedules are torch.distributed.pipelining's. Embedding and head, one parameter of the model, are
two where they are on different stages (`zero.Tied`). Losses are sums over micro batches, divided by the terms of the
whole step, so no schedule scales gradients. Scores are measured by passes of our own, forward only: the library's
know some schedules and one batch shape only.
"""

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from trainer.config import ParallelConfig, fill_schedule
from trainer.loader.batch import Batch
from trainer.model import GPT2, Architecture, Stage
from trainer.parallel.mesh import Mesh

M = TypeVar("M", bound=GPT2)

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
V_SHAPED = ("zbv", "dualpipev")


def partition(shape: Architecture, parallel: ParallelConfig) -> list[range]:
    """The layers of each stage, in order.

    `uniform` is the seeds' `partition_uniform`: chunks of equal size, each cut among the pipeline's processes, the
    later ones larger where it does not divide. `balanced` counts the head as the layers that cost as much. Else the
    numbers of layers, separated by commas.
    """
    stages = parallel.pp * parallel.chunks
    if parallel.stages == "uniform":
        sizes = [size for chunk in _cut(shape.n_layer, parallel.chunks) for size in _cut(chunk, parallel.pp)]
    elif parallel.stages == "balanced":
        sizes = _balance(shape.n_layer, stages, shape.vocab_size / (12 * shape.n_embd))
    else:
        sizes = [int(size) for size in parallel.stages.split(",")]
    ends = list(itertools.accumulate(sizes, initial=0))
    return [range(first, end) for first, end in itertools.pairwise(ends)]


def _cut(number: int, parts: int) -> list[int]:
    small, more = divmod(number, parts)
    return [small + (part >= parts - more) for part in range(parts)]


def _balance(layers: int, stages: int, head: float) -> list[int]:
    """Sizes that make the slowest stage as fast as can be; each stage has a layer, the last one also the head."""
    for most in range(-(-layers // stages), layers + 1):
        last = max(1, min(most, int(most - head)))
        if layers - last <= most * (stages - 1):
            return [*_cut(layers - last, stages - 1), last]
    return _cut(layers, stages)


def stage_owner(stage: int, parallel: ParallelConfig) -> int:
    """The pp rank of a stage: round after round, or there and back again."""
    turn, place = divmod(stage, parallel.pp)
    return parallel.pp - 1 - place if parallel.schedule in V_SHAPED and turn % 2 else place


def split_pipeline(
    build: Callable[[Stage | None], M], shape: Architecture, parallel: ParallelConfig, mesh: Mesh
) -> list[M]:
    """The parts of the model that this process computes, in order: with one stage, all of it."""
    if mesh.pp == 1:
        return [build(None)]
    ranges = partition(shape, parallel)
    last = len(ranges) - 1
    return [
        build(Stage(layers, first=number == 0, last=number == last))
        for number, layers in enumerate(ranges)
        if stage_owner(number, parallel) == mesh.pp_rank
    ]


class Pipeline:
    """The stages of this process, and the passes through all."""

    def __init__(self, parts: Sequence[GPT2], shape: Architecture, parallel: ParallelConfig, mesh: Mesh) -> None:
        self._parts = parts
        self._shape = shape
        self._parallel = parallel
        self._mesh = mesh
        self._count = parallel.pp * parallel.chunks
        self._numbers = [n for n in range(self._count) if stage_owner(n, parallel) == mesh.pp_rank]
        self._group = mesh.box.get_group("pp")
        self._schedules: dict[tuple[int, int, int], Any] = {}
        self._scale: float = 1.0
        self._stages: list[PipelineStage] = []
        self.around: Callable[[list[PipelineStage]], AbstractContextManager[Any]] = nullcontext
        """What surrounds a step's passes through the stages of this process: whoever wants to time them."""
        for part in parts:
            if isinstance(part, FSDPModule):
                _keep_sharded(part, parallel.zero)

    def forward_backward(self, batch: Batch, size: int, passes: int, scale: float) -> Tensor:
        """A step's `passes` micro batches of `size`, forward and backward; their summed loss times `scale`, anywhere.

        Gradients are those of the loss times `scale`. Where the batch has fewer rows, some that count for nothing
        stand in for them: other processes make as many passes, and schedules know none of fewer.
        """
        self._scale = scale
        count = fill_schedule(self._parallel, passes)
        batch = batch.filled(count * size)
        schedule = self._schedule(count, size, batch.ids.shape[1])
        losses: list[Tensor] = []
        has_first, has_last = self._numbers[0] == 0, self._numbers[-1] == self._count - 1
        inputs = (batch.ids,) if has_first else ()
        ending = {"target": batch.rows, "losses": losses} if has_last else {}
        with self.around(self._stages):
            schedule.step(*inputs, **ending, **batch.inputs(), return_outputs=False)
        total = torch.zeros((), device=self._mesh.device)
        for loss in losses:
            total += loss.detach()
        return self._mesh.sum_over(total, "pp")

    def _schedule(self, count: int, size: int, length: int) -> Any:
        """The schedule of so many micro batches of (size, length): its buffers have their sizes.

        Only the last one is kept, or a fine-tuning would have buffers for rows of each length.
        """
        if (count, size, length) not in self._schedules:
            self._schedules.clear()
            kind: Any = get_schedule_class(SCHEDULES[self._parallel.schedule])
            stages = [
                self._stage(part, number, size, length) for part, number in zip(self._parts, self._numbers, strict=True)
            ]
            self._stages = stages
            given: Any = stages if issubclass(kind, PipelineScheduleMulti) else stages[0]
            # The loss is the last stage's output; what torch calls a target only has to be cut like the batch.
            self._schedules[count, size, length] = kind(
                given, n_microbatches=count, loss_fn=lambda loss, _: loss.sum() * self._scale, scale_grads=False
            )
        return self._schedules[count, size, length]

    def _stage(self, part: GPT2, number: int, size: int, length: int) -> PipelineStage:
        positions = length // (self._mesh.tp if self._parallel.sequence_parallel else 1)
        dtype = part.transformer.compute_dtype
        hidden = torch.empty(size, positions, self._shape.n_embd, device="meta", dtype=dtype, requires_grad=True)
        ids = torch.empty(size, length, device="meta", dtype=torch.int64)
        loss = torch.empty((), device="meta", requires_grad=True)
        return _Stage(
            part,
            number,
            self._count,
            self._mesh.device,
            input_args=(ids if number == 0 else hidden,),
            output_args=(loss if number == self._count - 1 else hidden,),
            group=self._group,
        )

    @torch.no_grad()
    def forward(self, batch: Batch, **inputs: Tensor) -> Tensor | None:
        """The last stage's output for one batch of any shape, in the process that has that stage; else None.

        `inputs` take the place of the batch's own.
        """
        x = batch.ids
        for part, number in zip(self._parts, self._numbers, strict=True):
            if number and stage_owner(number - 1, self._parallel) != self._mesh.pp_rank:
                x = self._receive(batch, part, number)
            x = part(x, **(inputs or batch.inputs()))
            if number < self._count - 1 and (owner := stage_owner(number + 1, self._parallel)) != self._mesh.pp_rank:
                dist.send(x.contiguous(), group=self._group, group_dst=owner)
        return x if self._numbers[-1] == self._count - 1 else None

    def _receive(self, batch: Batch, part: GPT2, number: int) -> Tensor:
        rows, length = batch.ids.shape
        positions = length // (self._mesh.tp if self._parallel.sequence_parallel else 1)
        dtype = part.transformer.compute_dtype
        x = torch.empty(rows, positions, self._shape.n_embd, device=self._mesh.device, dtype=dtype)
        dist.recv(x, group=self._group, group_src=stage_owner(number - 1, self._parallel))
        return x


class _Stage(PipelineStage):
    """A stage whose replicas add up their gradients with its last micro batch only."""

    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        """One micro batch's backward pass. With ZeRO 1 no such pass reduces anything: the step's end does."""
        if isinstance(self.submod, FSDPModule):
            self.submod.set_requires_all_reduce(last_backward)
        return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)


def _keep_sharded(part: FSDPModule, zero: int) -> None:
    """Make ZeRO 2 and 3 real: a stage tells its part to keep gradients whole, and weights too, until the step's end.

    (torch.distributed.pipelining/stage.py, `backward_maybe_with_nosync`.) That is stage 1; for the others the part
    does not listen.
    """
    deaf = {2: ("set_requires_gradient_sync",), 3: ("set_requires_gradient_sync", "set_reshard_after_backward")}
    for name in deaf.get(zero, ()):
        getattr(part, name)(True)
        object.__setattr__(part, name, _ignore)


def _ignore(*_: object, **__: object) -> None:
    pass
