"""Figures for TensorBoard: written by one process, and refused in time where the package is missing."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipelines.errors import ConfigError
from tests.trainer.test_hooks import run
from trainer.config import ParallelConfig, PretrainConfig, check_watch
from trainer.tensorboard import TensorBoard


class Writer:
    """What torch's SummaryWriter is called with."""

    made: list["Writer"]

    def __init__(self, folder: str, *, purge_step: int) -> None:
        self.folder, self.purge_step, self.open = folder, purge_step, True
        self.scalars: dict[str, dict[int, float]] = {}
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.setdefault(name, {})[step] = value

    def close(self) -> None:
        self.open = False


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    module: Any = ModuleType("torch.utils.tensorboard.writer")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", ModuleType("torch.utils.tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", module)
    Writer.made = []
    return Writer.made


def test_each_step_has_its_figures(writers: list[Writer], tmp_path: Path) -> None:
    run(TensorBoard(tmp_path), 20, start=10)
    (writer,) = writers
    assert (writer.folder, writer.purge_step, writer.open) == (str(tmp_path), 11, False)
    assert list(writer.scalars["loss/train"]) == list(range(11, 31))
    assert writer.scalars["loss/train"][20] == 3.0
    assert writer.scalars["loss/validation"] == {30: 4.5}
    assert set(writer.scalars["learning_rate"].values()) == {1e-3}
    others = {"gradient_norm", "speed/tokens_per_second", "speed/tflops_per_process", "memory/peak_resident_gb"}
    assert others <= writer.scalars.keys()
    assert "speed/mfu" not in writer.scalars, "a CPU has none"


def test_only_the_first_process_writes(writers: list[Writer], tmp_path: Path) -> None:
    run(TensorBoard(tmp_path), 3, first=False)
    assert not writers


def test_event_files_can_be_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra `tensorboard`")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(TensorBoard(tmp_path), 3)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss/train")] == [
        (step, pytest.approx(5 - step / 10)) for step in (1, 2, 3)
    ]


def test_a_missing_package_is_refused_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else object())
    with pytest.raises(
        ConfigError, match=r"^pretrain.tensorboard: the package .* pip install 'millrace\[tensorboard\]'"
    ):
        check_watch("pretrain", PretrainConfig(tensorboard=True), ParallelConfig())
    check_watch("pretrain", PretrainConfig(), ParallelConfig())
