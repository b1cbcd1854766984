"""Memory of each GPU of a group that the others read and write: what is common to exchanges by copies.

torch.distributed._symmetric_memory maps it and lets GPUs wait for each other. NVLink multicast is not used.
"""

import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from trainer.parallel.mesh import Mesh

logger = logging.getLogger(__name__)

T = TypeVar("T")

ALIGNED = 256
"""Bytes at a multiple of which each buffer begins."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Memory of equally many bytes in each process of a group, which all of them read and write."""

    of_ranks: list[Tensor]
    owner: Any = None
    """What the memory lives as long as."""


class SharedMemory(Protocol):
    """Where such memory comes from."""

    def allocate(self, size: int) -> Parts:
        """Return parts of so many bytes each; all processes call this at once."""
        ...

    def meet(self) -> None:
        """Let the device go on once the devices of all processes have come here, and see what those have written."""
        ...


class SymmetricMemory:
    """Memory that the GPUs of one machine share, with signals between them."""

    def __init__(self, mesh: Mesh, axis: str) -> None:
        """`axis`: that of the processes which share it."""
        self._device = mesh.device
        self._group = mesh.box.get_group(axis)
        self._first: Any = None
        self._timeout_ms = int(mesh.timeout.total_seconds() * 1000)

    def allocate(self, size: int) -> Parts:
        """See SharedMemory."""
        os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")  # copies have no use for it
        from torch.distributed import _symmetric_memory as symmetric

        torch.cuda.empty_cache()  # this memory comes from the driver, which gives what torch keeps to nobody
        own = symmetric.empty(size, dtype=torch.uint8, device=self._device)
        _held.append(weakref.ref(own))
        handle = symmetric.rendezvous(own, self._group.group_name)  # pyright: ignore[reportArgumentType]
        self._first = self._first or handle
        buffers = [handle.get_buffer(rank, (size,), torch.uint8) for rank in range(self._group.size())]
        return Parts(buffers, (own, handle))

    def meet(self) -> None:
        """See SharedMemory."""
        self._first.barrier(channel=0, timeout_ms=self._timeout_ms)

    @property
    def channels(self) -> int:
        """See stage_copies.Signals; a meeting takes the first."""
        return self._first.get_signal_pad(self._first.rank).numel() // self._group.size()

    def put_signal(self, rank: int, channel: int) -> None:
        """See stage_copies.Signals."""
        self._first.put_signal(rank, channel, self._timeout_ms)

    def wait_signal(self, rank: int, channel: int) -> None:
        """See stage_copies.Signals."""
        self._first.wait_signal(rank, channel, self._timeout_ms)


def release(memory: SharedMemory, device: torch.device) -> None:
    """Return once no device of the group needs any of its memory."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    memory.meet()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def made_by_all(mesh: Mesh, make: Callable[[], T]) -> T | None:
    """Return what needs the memory of other GPUs; None, which is said once, where any process cannot make it."""
    if not mesh.shares_memory:
        return None
    made: T | None = None
    reason = ""
    try:
        made = make()
    except (RuntimeError, ImportError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
    # Of all groups: those of two stages have to divide the tokens in the same way.
    mesh.shares_memory = not mesh.sum_over_all(torch.tensor(float(made is None), device=mesh.device))
    if mesh.shares_memory:
        return made
    if mesh.is_first:
        logger.warning(
            "parallel.peer_copies: the GPUs of a group cannot copy from and to each other's memory (%s), so they "
            "exchange by NCCL, more slowly",
            reason or "in another process",
        )
    return None


_held: list[weakref.ref[Tensor]] = []
"""Of this process, its part of each memory."""


def held_bytes() -> int:
    """Return the bytes of its GPU that this process shares with others; torch counts them nowhere."""
    _held[:] = [each for each in _held if each() is not None]
    return sum(own.nbytes for each in _held if (own := each()) is not None)


def most_allocated(device: torch.device) -> int:
    """Return the most bytes of the GPU that this process has had in tensors until now."""
    return torch.cuda.max_memory_allocated(device) + held_bytes()
