"""How long the phases of a step take, without ever making the host wait for the device.

On a CPU by its clock; on a GPU by events in the stream of its work, read when they have happened. Phases do not
overlap: what begins ends the one before it.
"""

import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

T = TypeVar("T")

KEPT_STEPS = 1000
"""Medians are those of so many last steps."""


class Clock:
    """Moments in the order in which the device gets to them."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Any:
        """The moment at which what has been asked of the device is done; on a CPU that is now."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def has_come(self, moment: Any) -> bool:
        """Whether the moment can be read."""
        return not self._on_gpu or moment.query()

    def seconds(self, first: Any, last: Any) -> float:
        """Seconds between two moments that have come."""
        return first.elapsed_time(last) / 1000 if self._on_gpu else last - first


class Phases:
    """What each step spends its time on: data, forward_backward, reduce_clip, optimizer, and the hooks' phases."""

    def __init__(self, device: torch.device) -> None:
        self._clock = Clock(device)
        self._marks: list[tuple[str, Any]] = []
        self._unread: deque[list[tuple[str, Any]]] = deque()
        self._seconds: dict[str, deque[float]] = {}

    def start_step(self) -> None:
        """The last step, if any, is over."""
        if self._marks:
            self.begin("")
            self._unread.append(self._marks)
            self._marks = []
        while self._unread and self._clock.has_come(self._unread[0][-1][1]):
            self._read(self._unread.popleft())

    def begin(self, phase: str) -> None:
        """From here on it is this phase."""
        self._marks.append((phase, self._clock.now()))

    def waiting(self, batches: Iterator[T]) -> Iterator[T]:
        """The same batches; the wait for each is the phase `data`, also in the midst of another."""
        while True:
            around = self._marks[-1][0]
            self.begin("data")
            batch = next(batches, None)
            self.begin(around)
            if batch is None:
                return
            yield batch

    def _read(self, marks: list[tuple[str, Any]]) -> None:
        spent: dict[str, float] = {}
        for (phase, begin), (_, end) in itertools.pairwise(marks):
            spent[phase] = spent.get(phase, 0.0) + self._clock.seconds(begin, end)
        for phase, seconds in spent.items():
            self._seconds.setdefault(phase, deque(maxlen=KEPT_STEPS)).append(seconds)

    def medians(self) -> dict[str, float]:
        """Seconds per step of each phase in this process, in steps that had it."""
        return {phase: statistics.median(seconds) for phase, seconds in self._seconds.items()}
