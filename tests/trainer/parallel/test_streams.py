"""A side stream: in which order it and the device get what they do; without one, everything is done at once."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trainer.parallel.streams import after_device, beside, mark, on, wait_for


class Recorded:
    """A stream that notes what it is asked."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self._notes = name, notes

    def wait_stream(self, other: "Recorded") -> None:
        self._notes.append(f"{self.name} after {other.name}")

    def wait_event(self, event: str) -> None:
        self._notes.append(f"{self.name} after {event}")

    def record_event(self) -> str:
        self._notes.append(f"mark {self.name}")
        return "event"

    def __enter__(self) -> None:
        self._notes.append(f"on {self.name}")

    def __exit__(self, *_: object) -> None:
        self._notes.append(f"off {self.name}")


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Recorded("device", found))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    return found


def test_a_copy_beside_the_device_comes_after_what_it_has_and_the_device_waits_only_if_told(notes: list[str]) -> None:
    side = Recorded("side", notes)
    with beside(side):
        notes.append("copy")
        event = mark(side)
    wait_for(event)
    assert notes == ["side after device", "on side", "copy", "mark side", "off side", "device after event"]


def test_a_copy_on_the_stream_alone_does_not_wait_for_the_device(notes: list[str]) -> None:
    with on(Recorded("side", notes)):
        notes.append("copy")
    assert notes == ["on side", "copy", "off side"]


@pytest.mark.parametrize("enter", [beside, on])
def test_without_a_stream_nothing_is_asked_of_a_gpu(enter: Callable[[Any], Any], notes: list[str]) -> None:
    with enter(None):
        after_device(None)
        wait_for(mark(None))
    assert notes == []
