"""Pieces of the optimizer's state that visit the device: they come, are updated there, and go back to the host.

The links carry both directions at once and the device updates faster than they bring anything, so a visit takes as long
as the state needs to come. Meanwhile the host updates other pieces: both engines work at the same time. The device
needs memory for those pieces alone that are on their way.
"""

import contextlib
import dataclasses
from typing import Any

import torch
from torch import Tensor

from trainer.parallel.pieces import Apply, Piece
from trainer.parallel.streams import after_device, mark, on

SLOTS = 2
"""Pieces that are on the device at once: one comes while the other one goes."""


class Visits:
    """The device's memory for visiting pieces, and the streams on which they come, are updated and go."""

    def __init__(
        self, size: int, device: torch.device, rounded: torch.dtype | None = None, *, passes_read_host: bool = False
    ) -> None:
        """`size`: most numbers of a piece. `passes_read_host`: whether the model's passes find weights there.

        `rounded`: the half precision in which updated weights of some go back once more; None: of none.
        """
        self._passes_read_host = passes_read_host
        self._slots = [torch.empty(4, size, device=device).unbind() for _ in range(SLOTS)]
        """Weights, two moments and gradients."""
        self._rounded = [torch.empty(size, dtype=rounded, device=device) for _ in self._slots] if rounded else []
        self._number = 0
        self._gone: list[Any] = [None] * SLOTS
        """Of each slot: when its last piece had gone."""
        on_gpu = device.type == "cuda"
        self._up, self._middle, self._down = (torch.cuda.Stream(device) if on_gpu else None for _ in range(3))

    def begin(self) -> None:
        """Update only after everything that the device has got until now, which may read the old weights."""
        after_device(self._middle)

    @torch.no_grad()
    def add(
        self,
        piece: Piece,
        apply: Apply,
        *,
        gradients: Tensor | None = None,
        arrived: Any = None,
        target: Tensor | None = None,
        copy: Tensor | None = None,
    ) -> None:
        """Let a piece visit, after those that were added before.

        `gradients`: on the device; None: the piece's own come with it, after the event `arrived`. `target`: the weights
        on the device, which are updated too, in their own type; `copy`: those in half precision in the host's memory.
        """
        slot, size = self._number % SLOTS, piece.weights.numel()
        self._number += 1
        state = [piece.weights, piece.first, piece.second]
        coming = state if gradients is not None else [*state, piece.gradients]
        here = [array[:size] for array in self._slots[slot]]
        with self._beside(self._up, self._gone[slot], arrived):
            _copy(coming, here[: len(coming)])
        with self._beside(self._middle, mark(self._up)):
            weights, first, second, own = here
            if gradients is not None:  # the kernel would scale them where they are, and others read them later
                own.copy_(gradients)
            apply(dataclasses.replace(piece, weights=weights, gradients=own, first=first, second=second))
            for other in (target, None if copy is None else self._rounded[slot][:size]):
                if other is not None:
                    other.copy_(weights)
        with self._beside(self._down, mark(self._middle)):
            _copy(here[:3], state)
            if copy is not None:
                copy.copy_(self._rounded[slot][:size], non_blocking=True)
        self._gone[slot] = mark(self._down)

    def done(self) -> Any:
        """Return an event after which all pieces added until now are updated wherever the model's passes find them."""
        return mark(self._down if self._passes_read_host else self._middle)

    def finish(self) -> None:
        """Wait until everything is back in the host's memory."""
        if self._down is not None:
            self._down.synchronize()

    def _beside(self, stream: Any, *events: Any) -> contextlib.AbstractContextManager[Any]:
        """Do what follows on a stream, after these events; None: of none."""
        for event in events:
            if event is not None:
                stream.wait_event(event)
        return on(stream)


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    """Copy beside what the host does, in one call, of which the host makes hundreds in a step."""
    torch._foreach_copy_(targets, sources, non_blocking=True)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
