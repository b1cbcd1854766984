"""A length in tokens or epochs is one in steps: the stages say how many, and train the same model."""

import dataclasses
import json
import logging
import math
from pathlib import Path

import pytest

from pipelines.command import StageSpec
from pipelines.project.profiles import compose
from pipelines.stage import run_command
from tests.trainer import small
from tests.trainer.small import Road, pretrain_arguments
from tests.trainer.test_finetune import finetune
from trainer.data.stream import TokenStream
from trainer.pretrain import count_steps
from trainer.weights.records import read_curve_rows

ROOT = Path(__file__).parents[2]
ONE = ("--parallel.dp-replicate", "1")


def pretrain(road: Road, output: Path, *extra: str) -> int:
    arguments = pretrain_arguments(road.train, road.val, output, *ONE, *extra)
    return run_command(StageSpec.load("trainer.pretrain"), arguments)


@pytest.mark.nightly
def test_steps_tokens_and_epochs_of_one_length_publish_the_same_bytes(road: Road, tmp_path: Path) -> None:
    """12 steps of 8 samples of 16 tokens, 3 of them warm-up, also where the last step is not asked for as a whole."""
    samples = TokenStream(road.train).samples(16)
    share = ("--warmup-steps", "0", "--warmup-share", "0.25")
    lengths = {
        "steps": ("--steps", "12", "--warmup-steps", "3"),
        "tokens": ("--steps", "0", "--tokens", str(12 * 8 * 16 - 5), *share),
        "epochs": ("--steps", "0", "--epochs", f"{11.5 * 8 / samples:.6f}", *share),
    }
    for unit, length in lengths.items():
        stats = tmp_path / "stats" / f"{unit}.json"
        assert pretrain(road, tmp_path / unit, *length, "--stats", str(stats)) == 0
        assert json.loads(stats.read_text())["steps"] == 12
    published = [small.contents(tmp_path / unit) for unit in lengths]
    assert published[0] == published[1] == published[2]
    record = json.loads((tmp_path / "epochs/run.json").read_text())["pretrain"]
    assert (record["steps"], record["warmup_steps"]) == (12, 3)
    assert record.keys().isdisjoint({"tokens", "epochs", "warmup_share"})
    rates = [float(row["lr"]) for row in read_curve_rows(tmp_path / "epochs/curve.csv")[1:]]
    assert rates[:4] == pytest.approx([0, 2e-3 / 3, 4e-3 / 3, 2e-3], rel=1e-6)


def test_an_epoch_is_each_sample_once(road: Road, tmp_path: Path) -> None:
    """Up to a whole step, whatever makes the samples."""
    from trainer.data.batches import PretrainBatches

    for packing in ("stream", "document", "bestfit"):
        config = dataclasses.replace(small.PRETRAIN, steps=0, epochs=1.0, packing=packing, global_batch_size=7)
        batches = PretrainBatches.of(config, [road.train], ["a"], tmp_path / packing)
        run = count_steps(config, batches.samples)
        assert run.steps == math.ceil(batches.samples / 7)
        seen = [element for step in range(run.steps) for element in batches.mixture(batches.sample_ids(7 * step))[1]]
        assert set(seen) == set(range(batches.samples))
        assert set(seen[: batches.samples]) == set(seen), "and none twice before"


def test_the_steps_that_follow_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    config = dataclasses.replace(small.PRETRAIN, steps=0, epochs=2.0, warmup_steps=0, warmup_share=0.1)
    with caplog.at_level(logging.INFO):
        count_steps(config, samples=100)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "pretrain: 25 steps, 2 of them warm-up, 128 tokens each: 2 epochs of 100 samples"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--tokens", "4096"), "pretrain.steps 8 and pretrain.tokens 4096: each says how long the run is"),
        (("--warmup-share", "0.1"), "pretrain.warmup_steps 2 and pretrain.warmup_share 0.1: both say how long"),
        (("--steps", "0"), "pretrain.steps 0 and pretrain.tokens 0 and pretrain.epochs 0: the run has no length"),
        (("--steps", "0", "--epochs", "0.001"), "warmup_steps 2 is more than the 1 steps of pretrain.epochs 0.001"),
        (("--steps", "1"), "pretrain.warmup_steps 2 is more than pretrain.steps 1: lower warmup_steps, or raise steps"),
    ],
)
def test_two_lengths_none_or_too_long_a_warm_up_are_refused(
    road: Road, tmp_path: Path, capsys: pytest.CaptureFixture, extra: tuple[str, ...], message: str
) -> None:
    assert pretrain(road, tmp_path / "pretrain", *extra) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "pretrain").exists()


def test_two_lengths_are_refused_when_parameters_are_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipelines.errors import ConfigError

    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=r"pretrain.steps 80 and pretrain.epochs 2: each says how long the run is"):
        compose("sample", ["pretrain.epochs=2.0", "pretrain.steps=80"])
    composed = compose("sample", ["pretrain.epochs=2.0"])
    assert (composed["pretrain"]["epochs"], composed["pretrain"]["steps"]) == (2.0, 0)


@pytest.mark.nightly
def test_a_fine_tuning_in_steps_is_that_in_epochs(road: Road, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    glue = small.write_glue(tmp_path / "glue", road.tokenizer, {"train": 50, "validation": 9})
    lengths = {
        "epochs": ("--epochs", "3", "--warmup-share", "0.25"),
        "steps": ("--epochs", "0", "--steps", "12", "--warmup-share", "0", "--warmup-steps", "3"),
    }
    for unit, length in lengths.items():
        assert finetune(road, glue, tmp_path / unit, *ONE, *length) == 0
    assert (tmp_path / "steps/curve.csv").read_bytes() == (tmp_path / "epochs/curve.csv").read_bytes()
    assert [int(row["step"]) for row in read_curve_rows(tmp_path / "steps/curve.csv")] == list(range(1, 13))
    tuned = [(tmp_path / unit / "model/model.safetensors").read_bytes() for unit in lengths]
    assert tuned[0] == tuned[1]
    capsys.readouterr()
    too_long = ("--epochs", "1", "--warmup-share", "0", "--warmup-steps", "5")
    assert finetune(road, glue, tmp_path / "again", *ONE, *too_long) != 0
    assert "finetune.warmup_steps 5 is more than the 4 steps of finetune.epochs 1" in capsys.readouterr().err
