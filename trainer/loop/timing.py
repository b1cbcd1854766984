"""Time the phases of a step without making the host wait for the device.

On a CPU the clock is the host's; on a GPU it is events in the stream of work, read once they have happened. Phases do
not overlap: each one ends when the next begins.
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
"""Medians are taken over this many last steps."""


class Clock:
    """Timestamps in the order in which the device reaches them."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Any:
        """Return the moment at which the work queued so far is done; on a CPU that is now."""
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def reached(self, moment: Any) -> bool:
        """Whether the moment has passed, so that it can be read."""
        return not self._on_gpu or moment.query()

    def seconds(self, first: Any, last: Any) -> float:
        """Return the seconds between two moments that have passed."""
        return first.elapsed_time(last) / 1000 if self._on_gpu else last - first


class Phases:
    """The time that each step spends on data, forward_backward, reduce_clip, optimizer, and the hooks' phases."""

    def __init__(self, device: torch.device) -> None:
        self._clock = Clock(device)
        self._marks: list[tuple[str, Any]] = []
        self._unread: deque[list[tuple[str, Any]]] = deque()
        self._seconds: dict[str, deque[float]] = {}

    def start_step(self) -> None:
        """Start a step, and with it end the one before."""
        if self._marks:
            self.begin("")
            self._unread.append(self._marks)
            self._marks = []
        while self._unread and self._clock.reached(self._unread[0][-1][1]):
            self._read(self._unread.popleft())

    def begin(self, phase: str) -> None:
        """Begin a phase, and with it end the one before."""
        self._marks.append((phase, self._clock.now()))

    def waiting(self, batches: Iterator[T]) -> Iterator[T]:
        """Yield the same batches; the wait for each counts as the phase `data`, also inside another phase."""
        while True:
            interrupted = self._marks[-1][0]
            self.begin("data")
            batch = next(batches, None)
            self.begin(interrupted)
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
        """Return each phase's median seconds per step in this process, over the steps that had it."""
        return {phase: statistics.median(seconds) for phase, seconds in self._seconds.items()}
