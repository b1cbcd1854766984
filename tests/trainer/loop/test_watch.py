"""Watching a training: TensorBoard, traces, and that the output of a whole training stays the same."""

import dataclasses
import gzip
import json
import logging
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipelines.errors import ConfigError, UserError
from tests.trainer import small
from tests.trainer.loop.test_hooks import run
from tests.trainer.loop.test_loop import planned, process
from tests.trainer.small import PRETRAIN, Road
from tests.trainer.test_pretrain import pretrain
from trainer.checks import check_watch
from trainer.config import ParallelConfig, PretrainConfig
from trainer.loop.watch import Profiler, TensorBoard, WeightsAndBiases, watching
from trainer.plan import check_watched_steps
from trainer.pretrain import PretrainJob
from trainer.processes import launch
from trainer.weights.records import read_curve_rows

PP2 = ("--parallel.pp", "2", "--parallel.dp-replicate", "1")
ALL = ("--profile", "3:4", "--draw-schedule", "5", "--log-phases", "--spike-sigma", "50", "--spike-window", "3")


@pytest.mark.nightly
def test_what_is_watched_lies_beside_an_output_that_is_the_same(
    road: Road, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert pretrain(road, tmp_path / "seen", *PP2, *ALL, "--log-every", "4") == 0
    assert pretrain(road, tmp_path / "plain", *PP2) == 0
    assert small.contents(tmp_path / "seen") == small.contents(tmp_path / "plain")
    seen = sorted(small.contents(tmp_path / "seen.watch"))
    traces = [f"profile/steps-3-4-rank-{rank}.json.gz" for rank in range(2)]
    assert seen == [*traces, "schedule-step-5.csv", "schedule-step-5.png"]
    assert not (tmp_path / "plain.watch").exists()
    assert not list((tmp_path / ".work").glob("*/logs")), "the logs of a run that ended well are gone"
    (row,) = read_curve_rows(tmp_path / "seen/epochs.csv")
    curve = read_curve_rows(tmp_path / "seen/curve.csv")
    assert (row["step"], row["lr"], row["val_loss"]) == ("8", curve[-1]["lr"], curve[-1]["val_loss"])
    assert float(row["loss"]) == pytest.approx(sum(float(each["loss"]) for each in curve[1:]) / 8)


def test_an_error_in_training_keeps_the_checkpoints(
    road: Road, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed by the system for its memory, say: the same command goes on from them."""

    def fail(function: Any, parallel: Any, job: Any, logs: Path) -> None:
        job.checkpoints.mkdir(parents=True)
        (job.checkpoints / "kept").touch()
        raise UserError("training process 1 was killed by SIGKILL")

    monkeypatch.setattr(launch, "launch", fail)
    assert pretrain(road, tmp_path / "out", *PP2) == 1
    assert list(tmp_path.glob(".work/*/checkpoints/kept"))


@pytest.mark.parametrize(
    ("changes", "pp", "message"),
    [
        ({"profile": "10"}, 1, "pretrain.profile '10': expected first and last step, such as 10:13"),
        ({"profile": "13:10"}, 1, "pretrain.profile '13:10': expected first and last step"),
        ({"profile": "0:3"}, 1, "pretrain.profile '0:3': expected"),
        (
            {"draw_schedule": 3},
            1,
            "pretrain.draw_schedule 3: there is no pipeline, since parallel.pp is 1; set it to 0",
        ),
        ({"profile": "7:9"}, 1, "pretrain.profile 7:9: the run has 8 steps; name earlier ones"),
        ({"draw_schedule": 9}, 2, "pretrain.draw_schedule 9: the run has 8 steps"),
    ],
)
def test_what_cannot_be_watched_is_refused(changes: dict[str, Any], pp: int, message: str) -> None:
    config = PretrainConfig(**changes)

    def check() -> None:
        check_watch("pretrain", config, ParallelConfig(pp=pp))
        check_watched_steps("pretrain", config, PRETRAIN.steps)

    with pytest.raises(ConfigError, match=f"^{message}"):
        check()


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


@pytest.mark.parametrize(("package", "wanted"), [("tensorboard", True), ("wandb", "gpt2")])
def test_a_missing_package_is_refused_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str, wanted: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"^pretrain.{package}: the package {package} .* pip install {package}, or"):
        check_watch("pretrain", PretrainConfig(**{package: wanted}), ParallelConfig())
    check_watch("pretrain", PretrainConfig(), ParallelConfig())


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
@pytest.mark.parametrize(
    ("files", "why"),
    [
        # Earlier runs leave folders of these names in the working directory.
        (
            {"PACKAGE/run-1/log": ""},
            r"is not installed \(the folder TMP/PACKAGE only has its name\): pip install PACKAGE",
        ),
        (
            {"PACKAGE.py": ""},
            r"cannot be used \(TMP/PACKAGE\.py: \w+Error: .*\): rename a file of yours that has its name",
        ),
        (
            {"PACKAGE/__init__.py": "import gone"},
            r"cannot be used \(ModuleNotFoundError: No module named 'gone'\): ren",
        ),
        (
            {"PACKAGE/__init__.py": "raise TypeError('a\\nb')"},
            r"cannot be used \(TypeError: a b\): rename .*, or pip inst",
        ),
    ],
)
def test_what_only_has_the_name_of_a_package_is_refused_in_one_line(
    tmp_path: Path, package: str, files: dict[str, str], why: str
) -> None:
    for name, text in files.items():
        file = tmp_path / name.replace("PACKAGE", package)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    wanted = f"{package}={True if package == 'tensorboard' else 'gpt2'!r}"
    code = f"""
import sys
from pipelines.errors import ConfigError
from trainer.checks import check_watch
from trainer.config import ParallelConfig, PretrainConfig
sys.path[:] = [{str(tmp_path)!r}, *[path for path in sys.path if "site-packages" not in path]]
try:
    check_watch("pretrain", PretrainConfig({wanted}), ParallelConfig())
except ConfigError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = result.stdout.splitlines()
    expected = why.replace("PACKAGE", package).replace("TMP", re.escape(str(tmp_path)))
    assert re.match(rf"pretrain\.{package}: the package {package} {expected}.*, or set it to (false|'')$", line)


class WandbRun:
    """A stand-in for a run of Weights & Biases, whose client is no dependency of the tests; `broken`: it refuses."""

    def __init__(self, settings: dict[str, Any], *, broken: bool) -> None:
        self.settings, self.broken = settings, broken
        self.rows: list[dict[str, float]] = []
        self.axes: list[tuple[str, str]] = []
        self.exit_code: int | None = None

    def define_metric(self, name: str, *, step_metric: str) -> None:
        self.axes.append((name, step_metric))

    def log(self, row: dict[str, float]) -> None:
        if self.broken:
            raise ConnectionError("no route\nto host")
        self.rows.append(row)

    def finish(self, *, exit_code: int) -> None:
        self.exit_code = exit_code


class Wandb(ModuleType):
    """A stand-in for the module wandb."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.runs: list[WandbRun] = []
        self.broken = False

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802 (its name)
        return settings

    def init(self, **settings: Any) -> WandbRun:
        self.runs.append(WandbRun(settings, broken=self.broken))
        return self.runs[-1]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Wandb:
    module = Wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_a_project_of_weights_and_biases_gets_each_step_and_a_resumed_run_goes_on(wandb: Wandb, tmp_path: Path) -> None:
    folder = tmp_path / "web-tiny/pretrain.watch"
    run(WeightsAndBiases("gpt2", folder), 20)
    run(WeightsAndBiases("gpt2", folder), 15, start=15)
    first, second = wandb.runs
    assert [row["step"] for row in first.rows] == list(range(1, 21))
    assert [row["step"] for row in second.rows] == list(range(16, 31))
    assert first.rows[9]["loss/train"] == 4.0
    assert [row["loss/validation"] for row in second.rows if "loss/validation" in row] == [4.5]
    assert first.settings["id"] == second.settings["id"]
    assert (second.settings["resume"], second.axes) == ("allow", [("*", "step")])
    assert (first.settings["project"], first.settings["name"]) == ("gpt2", "web-tiny-pretrain")
    assert first.settings["config"] == {"model": "small"}
    assert (first.settings["dir"], first.exit_code, second.exit_code) == (str(folder), 1, 0)
    run(WeightsAndBiases("gpt2", folder), 1)
    assert wandb.runs[2].settings["id"] != first.settings["id"], "a training from the start is another run"


def test_only_the_first_process_sends(wandb: Wandb, tmp_path: Path) -> None:
    run(WeightsAndBiases("gpt2", tmp_path), 3, first=False)
    assert (wandb.runs, list(tmp_path.iterdir())) == ([], [])


def test_a_service_that_fails_ends_no_training(wandb: Wandb, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wandb.broken = True
    run(WeightsAndBiases("gpt2", tmp_path), 5)
    assert caplog.messages == ["wandb: no route to host; training goes on, and nothing more is sent"]


def test_a_key_turns_each_service_on(tmp_path: Path) -> None:
    config = PretrainConfig(tensorboard=True, wandb="gpt2")
    assert [type(hook) for hook in watching("pretrain", config, ParallelConfig(), tmp_path)] == [
        TensorBoard,
        WeightsAndBiases,
    ]
    assert watching("pretrain", PretrainConfig(), ParallelConfig(), tmp_path) == []


def profiled(job: PretrainJob, first: int, last: int) -> None:
    from trainer.loop.loop import train
    from trainer.pretrain import prepare

    train(prepare(process(), planned(job)), [Profiler(first, last, job.scratch / "profile")])


@pytest.mark.parametrize(("first", "last"), [(1, 1), (2, 4)])
def test_each_process_has_a_trace_of_the_steps_asked_for(workers: Any, tmp_path: Path, first: int, last: int) -> None:
    job = PretrainJob(
        config=dataclasses.replace(small.PRETRAIN, steps=5),
        model=small.MODEL,
        parallel=small.TWO,
        train=small.write_stream(tmp_path / "train"),
        val=tmp_path / "train",
        data={"train": "a", "val": "b"},
        scratch=tmp_path,
        plan=small.PLAN,
    )
    workers.run(2, profiled, job, first, last)
    names = [f"steps-{first}-{last}-rank-{rank}.json.gz" for rank in range(2)]
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == names
    for name in names:
        events = json.loads(gzip.decompress((tmp_path / "profile" / name).read_bytes()))["traceEvents"]
        counts = Counter(event.get("name") for event in events)
        assert counts["aten::_fused_adamw_"] == 2 * (last - first + 1), "two groups of weights are updated in a step"
