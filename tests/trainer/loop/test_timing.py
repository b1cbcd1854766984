"""The phases of a step: none overlaps, and no device is waited for."""

from typing import Any

import pytest
import torch

from trainer.loop import timing
from trainer.loop.timing import Phases


def test_waiting_for_data_is_taken_out_of_the_phase_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(100))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(moments))
    phases = Phases(torch.device("cpu"))
    for _ in range(3):
        phases.start_step()
        phases.begin("forward_backward")
        assert list(phases.waiting(iter("ab"))) == ["a", "b"]  # three waits, the last of which finds nothing
        phases.begin("optimizer")
    phases.start_step()
    assert phases.medians() == {"forward_backward": 4, "data": 3, "optimizer": 1}


def test_a_phase_that_few_steps_have_has_the_median_of_these(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((0.0, 1.0, 1.0, 2.0, 9.0))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(moments))
    phases = Phases(torch.device("cpu"))
    for names in (["optimizer"], ["optimizer", "checkpoint"], []):
        phases.start_step()
        for name in names:
            phases.begin(name)
    assert phases.medians() == {"optimizer": 1.0, "checkpoint": 7.0}


class Event:
    """An event of a device that is `behind` by so many of them."""

    made = 0
    behind = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        Event.made += 1
        self.number = Event.made

    def query(self) -> bool:
        return self.number <= Event.made - Event.behind

    def elapsed_time(self, later: Any) -> float:
        assert later.query(), "read before it has happened"
        return 1000.0 * (later.number - self.number)


def test_a_gpus_events_are_read_when_they_have_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "behind", 3)
    phases = Phases(torch.device("cuda", 0))
    for expected in ({}, {}, {}, {"optimizer": 1.0}):
        phases.start_step()
        assert phases.medians() == expected
        phases.begin("optimizer")
