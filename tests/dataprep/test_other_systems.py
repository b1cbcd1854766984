"""What the data path asks of the system beyond POSIX, simulated as macOS answers."""

import os
import resource
import sys
from pathlib import Path

import pytest

from dataprep.extract import page_child
from pipelines import engine


def test_the_child_that_parses_pages_serves_where_its_memory_cannot_be_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS, where a program maps more than the limit before it starts."""
    served: list[object] = []

    def refuse(which: int, _: tuple[int, int]) -> None:
        if which == resource.RLIMIT_AS:
            raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(page_child, "serve", lambda *_: served.append(True))
    monkeypatch.setattr(page_child, "Connection", lambda _: None)
    monkeypatch.setattr(page_child.signal, "signal", lambda *_: None)
    monkeypatch.setattr(page_child.logging, "disable", lambda _: None)
    monkeypatch.setattr(page_child, "PageOptions", lambda **_: None)
    monkeypatch.setattr(sys, "argv", ["page_child", "1", "{}"])
    page_child.main()
    assert served == [True]


def test_the_peak_memory_of_a_child_is_in_kilobytes_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """There getrusage counts bytes."""

    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(sys, "platform", "linux")
    kilobytes = page_child._peak_kilobytes()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert page_child._peak_kilobytes() == pytest.approx(kilobytes / 1024, abs=100)


def test_workers_are_counted_without_sched_getaffinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert engine.default_workers() == 5
