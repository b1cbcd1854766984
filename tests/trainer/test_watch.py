"""A whole training with all that can be watched: what is left beside the output, and that the output is the same."""

import logging
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import ConfigError, UserError
from tests.trainer import small
from tests.trainer.small import PRETRAIN, Road
from tests.trainer.test_pretrain import pretrain
from trainer import launch
from trainer.config import ParallelConfig, PretrainConfig, check_watch, check_watched_steps
from trainer.records import read_curve

PP2 = ("--parallel.pp", "2", "--parallel.dp-replicate", "1")
ALL = ("--profile", "3:4", "--draw-schedule", "5", "--log-phases", "--spike-sigma", "50", "--spike-window", "3")


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
    (row,) = read_curve(tmp_path / "seen/epochs.csv")
    curve = read_curve(tmp_path / "seen/curve.csv")
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
        ({"profile": "7:9"}, 1, "pretrain.profile 7:9: the run has 8 steps only; name earlier ones"),
        ({"draw_schedule": 9}, 2, "pretrain.draw_schedule 9: the run has 8 steps only"),
    ],
)
def test_what_cannot_be_watched_is_refused(changes: dict[str, Any], pp: int, message: str) -> None:
    config = PretrainConfig(**changes)

    def check() -> None:
        check_watch("pretrain", config, ParallelConfig(pp=pp))
        check_watched_steps("pretrain", config, PRETRAIN.steps)

    with pytest.raises(ConfigError, match=f"^{message}"):
        check()
