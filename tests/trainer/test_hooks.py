"""What a person sees of a training: a bar on a terminal, lines elsewhere, the segments of a run."""

import io
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.hooks import Progress, Speeds
from trainer.loop import StepReport


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(hook: Any, steps: int, *, start: int = 0, saves: int = 1, first: bool = True) -> None:
    """Drive a hook through some steps of 100 tokens."""
    mesh = SimpleNamespace(is_first=first, device=torch.device("cpu"))
    training: Any = SimpleNamespace(mesh=mesh, step=start, tokens=100 * start, recipe=SimpleNamespace(steps=30))
    training.saves_now = lambda report: report.step % saves == 0
    training.finished = False
    hook.before_training(training)
    for step in range(start + 1, start + steps + 1):
        training.step, training.tokens, training.finished = step, 100 * step, step == 30
        hook.after_step(training, StepReport(step, 5.0 - step / 10, 1e-3, 1.0, False, 4.5 if step == 30 else None))
    hook.after_training(training)


def test_a_terminal_shows_a_bar_with_loss_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    run(Progress("pretrain", 10), 30)
    text = screen.getvalue()
    assert "pretrain" in text
    assert "30/30" in text
    assert "loss 2.0000" in text
    assert "tokens/s" in text


def test_elsewhere_there_is_a_line_every_so_many_steps(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        run(Progress("pretrain", 12), 30)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split("  ")[0] for line in lines] == [f"pretrain: step {step} of 30" for step in (12, 24, 30)]
    assert "loss 3.8000" in lines[0]
    assert lines[-1].endswith("validation 4.5000")


def test_only_the_first_process_says_or_writes_anything(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        run(Progress("pretrain", 1), 3, first=False)
    run(Speeds(tmp_path / "segments.json", {}), 3, first=False)
    assert not caplog.records
    assert not list(tmp_path.iterdir())


def test_each_segment_of_a_run_has_its_layout_and_speed(tmp_path: Path) -> None:
    run(Speeds(tmp_path / "segments.json", {"processes": 2}), 12, saves=5)
    run(Speeds(tmp_path / "segments.json", {"processes": 4}), 10, start=10, saves=5)
    first, second = json.loads((tmp_path / "segments.json").read_text())
    assert (first["from_step"], first["to_step"], first["layout"]) == (0, 10, {"processes": 2})
    assert (second["from_step"], second["to_step"], second["layout"]) == (10, 20, {"processes": 4})
    assert second["tokens_per_second"] > 0
    assert second["torch"] == torch.__version__
