"""Activations and gradients on their way between the stages of a pipeline, as copies between GPUs.

Each process has a slot in shared memory for each tensor that it receives in a step. The sender copies into it beside
what it computes next, and signals; the receiver's device waits for the signal when it needs the tensor. NCCL's
receives wait on multiprocessors instead, and slow the products that run meanwhile (`benchmarks/README.md`, "Four
GPUs"). A slot is written once in a step, and again only after all processes of the pipeline have met.
"""

import functools
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.config import ParallelConfig
from trainer.parallel.mesh import Mesh
from trainer.parallel.shared_memory import ALIGNED, Parts, SharedMemory, SymmetricMemory, made_by_all, release
from trainer.parallel.streams import beside
from trainer.stages import Direction, neighbour, received, stage_owner


class Signals(SharedMemory, Protocol):
    """Shared memory whose processes signal each other, each pair of them over a number of channels."""

    @property
    def channels(self) -> int:
        """How many channels there are; the first is not for signals."""
        ...

    def put_signal(self, rank: int, channel: int) -> None:
        """Signal that the device has done what it got before this; it waits until the signal before was taken."""
        ...

    def wait_signal(self, rank: int, channel: int) -> None:
        """Let the device go on once this process's signal has come, which it takes."""
        ...


class StageCopies:
    """What a process sends to and receives from the other processes of its pipeline.

    What one stage receives in one direction has a stream of its sender to itself, in which the micro batches are in the
    order in which the stage takes them. So a signal that waits for an earlier one to be taken holds up none that is
    taken before it, and nothing that is computed.
    """

    def __init__(self, memory: Signals, parallel: ParallelConfig, rank: int, device: torch.device) -> None:
        """`rank`: of the pp group."""
        self._memory, self._rank, self._device = memory, rank, device
        self._owner = functools.partial(stage_owner, parallel=parallel)
        self._received = [received(each, parallel) for each in range(parallel.pp)]
        self._most = max(map(len, self._received))
        self._slots: Parts = memory.allocate(ALIGNED)  # GPUs that cannot map each other's memory are found here
        memory.meet()
        self._lanes = (memory.channels - 1) // self._most
        """Channels of what a stage receives in a direction, taken in turn."""
        if not self._lanes:
            raise RuntimeError(f"{memory.channels} channels are too few for {parallel.chunks} stages each")
        self._streams: dict[tuple[int, Direction], Any] = {}
        self._like = torch.empty(0)
        self._bytes = self._count = 0

    def begin(self, count: int, like: Tensor) -> None:
        """Begin a step of `count` micro batches, with tensors like this one; all processes call this at once."""
        self._count, self._like = count, like
        self._bytes = -(-like.nbytes // ALIGNED) * ALIGNED
        size = self._most * count * self._bytes
        if len(self._slots.of_ranks[0]) < size:
            release(self._memory, self._device)
            self._slots = Parts([])  # freed before there is more
            self._slots = self._memory.allocate(size)
        self._memory.meet()  # what came in the step before is no longer read, and new memory is clear

    def receives(self, stage: int, direction: Direction) -> bool:
        """Return whether what this stage takes in this direction comes from another process."""
        return (stage, direction) in self._received[self._rank]

    def send(self, x: Tensor, stage: int, direction: Direction, number: int) -> None:
        """Send what this stage takes in its pass of a micro batch; memory of `x` is not used anew until then."""
        rank = self._owner(stage)
        if (stage, direction) not in self._streams and self._device.type == "cuda":
            self._streams[stage, direction] = torch.cuda.Stream(self._device, priority=-1)
        stream = self._streams.get((stage, direction))
        slot, channel = self._place(rank, stage, direction, number)
        with beside(stream):
            slot.copy_(x.detach())
            self._memory.put_signal(rank, channel)
        if stream is not None:
            x.record_stream(stream)

    def receive(self, stage: int, direction: Direction, number: int) -> Tensor:
        """Return what this stage takes in its pass of a micro batch, for which the device waits; once in a step."""
        slot, channel = self._place(self._rank, stage, direction, number)
        self._memory.wait_signal(self._owner(neighbour(stage, direction)), channel)
        return slot

    def _place(self, rank: int, stage: int, direction: Direction, number: int) -> tuple[Tensor, int]:
        """Return the slot in the memory of a process, and the channel of its signal."""
        kind = self._received[rank].index((stage, direction))
        start = (kind * self._count + number) * self._bytes
        part = self._slots.of_ranks[rank][start : start + self._like.nbytes]
        slot = part.view(self._like.dtype).view(self._like.shape).detach()  # a tensor of its own for autograd
        return slot, 1 + kind * self._lanes + number % self._lanes


def stage_copies_of(parallel: ParallelConfig, mesh: Mesh) -> StageCopies | None:
    """Return the copies between the GPUs of a pipeline; None where they are not wanted or not possible."""
    if mesh.device.type != "cuda" or not parallel.copies_stages or not mesh.on_one_machine("pp"):
        return None
    return made_by_all(mesh, lambda: StageCopies(SymmetricMemory(mesh, "pp"), parallel, mesh.pp_rank, mesh.device))
