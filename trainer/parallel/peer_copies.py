"""Exchanges of a tp group's tokens as copies between GPUs, each beside the product of what is there already.

A GPU copies from and to the memory of others without its multiprocessors, so a product beside it is not slowed, and
what each process has itself is multiplied first, without waiting for anything. An exchange with its product takes 0.6
of the time that it takes with collectives (`benchmarks/README.md`, "Four GPUs"). Wang et al., "Async tensor parallelism
in PyTorch", 2024, has the idea of multiplying shards as they arrive.

Shapes: N tokens, M = N / tp those of this process, D width.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from trainer.parallel.mesh import Mesh
from trainer.parallel.shared_memory import ALIGNED, Parts, SharedMemory, SymmetricMemory, made_by_all, release
from trainer.parallel.streams import beside, mark, wait_for

TURNS = 2
"""Buffers of a kind, taken in turn: what one exchange leaves there is read until the group has met in the next one."""


class PeerCopies:
    """A TokenExchange by copies."""

    def __init__(self, memory: SharedMemory, rank: int, size: int, device: torch.device) -> None:
        """`rank`, `size`: of the tp group."""
        self._memory, self._rank, self._size, self._device = memory, rank, size, device
        self._others = [(rank + step) % size for step in range(1, size)]
        """In another order in each process, so that no part is read by all of them at once."""
        self._stream: Any = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._memories: dict[str, Parts] = {}
        self._views: dict[tuple[Any, ...], list[Tensor]] = {}
        self._turn = {"gather": 0, "scatter": 0}
        self._allocate(16)  # whatever the processes' GPUs cannot do is found here

    def room(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        """See TokenExchange."""
        return self._buffers("gather", x.shape, dtype)[self._rank]

    def gather(self, x_MD: Tensor) -> tuple[Tensor, Iterator[tuple[slice, Tensor]]]:
        """See TokenExchange."""
        rows = len(x_MD)
        x_ND = x_MD.new_empty(self._size * rows, x_MD.shape[1])
        parts = self._buffers("gather", x_MD.shape, x_MD.dtype)
        self._take_turn("gather")
        if x_MD is not parts[self._rank]:  # it was not written into `room`
            parts[self._rank].copy_(x_MD)
        self._memory.meet()
        own = slice(self._rank * rows, (self._rank + 1) * rows)
        coming: list[tuple[slice, Any]] = []
        with beside(self._stream):
            for other in self._others:
                place = slice(other * rows, (other + 1) * rows)
                x_ND[place].copy_(parts[other])
                coming.append((place, mark(self._stream)))
            x_ND[own].copy_(x_MD)
            whole = mark(self._stream)
        return x_ND, self._arriving(x_ND, own, x_MD, coming, whole)

    def _arriving(
        self, x_ND: Tensor, own: slice, x_MD: Tensor, coming: list[tuple[slice, Any]], whole: Any
    ) -> Iterator[tuple[slice, Tensor]]:
        yield own, x_MD
        for place, event in coming:
            wait_for(event)
            yield place, x_ND[place]
        wait_for(whole)

    def scatter(
        self, term: Callable[[slice, Tensor], Any], tokens: int, width: int, like: Tensor
    ) -> Callable[[], Tensor]:
        """See TokenExchange."""
        rows = tokens // self._size
        parts = self._buffers("scatter", torch.Size((self._size, rows, width)), like.dtype)
        self._take_turn("scatter")
        terms = like.new_empty(self._size - 1, rows, width)  # there until the copies are made
        for other, mine in zip(self._others, terms, strict=True):
            term(slice(other * rows, (other + 1) * rows), mine)
            with beside(self._stream):
                parts[other][self._rank].copy_(mine)
        places = parts[self._rank]
        term(slice(self._rank * rows, (self._rank + 1) * rows), places[self._rank])

        def finish() -> Tensor:
            nonlocal terms
            wait_for(mark(self._stream))
            del terms
            self._memory.meet()
            return places

        return finish

    def _take_turn(self, kind: str) -> None:
        self._turn[kind] = (self._turn[kind] + 1) % TURNS

    def _buffers(self, kind: str, shape: torch.Size, dtype: torch.dtype) -> list[Tensor]:
        """Return the parts of all processes for this turn, always the same tensors.

        All processes ask for the same shapes in the same order.
        """
        turn = self._turn[kind]
        key = kind, turn, shape, dtype
        if key not in self._views:
            size = shape.numel() * dtype.itemsize
            if kind not in self._memories or len(self._memories[kind].of_ranks[0]) < TURNS * size:
                self._forget(kind)
                self._memories[kind] = self._allocate(TURNS * -(-size // ALIGNED) * ALIGNED)
            parts = self._memories[kind].of_ranks
            start = turn * (len(parts[0]) // TURNS)
            self._views[key] = [part[start : start + size].view(dtype).view(shape) for part in parts]
        return self._views[key]

    def _allocate(self, size: int) -> Parts:
        parts = self._memory.allocate(size)
        self._memory.meet()  # a device may clear its part only now
        return parts

    def _forget(self, kind: str) -> None:
        """Let memory go that is too small, once nothing on any device needs it."""
        if kind in self._memories:
            release(self._memory, self._device)
            self._views = {key: views for key, views in self._views.items() if key[0] != kind}
            del self._memories[kind]


def peer_copies(mesh: Mesh) -> PeerCopies | None:
    """Return the copies between the GPUs of the tp group; None where any group cannot make them."""
    return made_by_all(mesh, lambda: PeerCopies(SymmetricMemory(mesh, "tp"), mesh.tp_rank, mesh.tp, mesh.device))
