"""Several seeds in one command: one run each, their mean and spread, and the best one's model."""

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.small import Road
from tests.trainer.test_finetune import finetune
from trainer.seed_runs import best_seed, write_spread
from trainer.task_results import read_task

SEEDS = ("5", "6", "7")


@pytest.fixture(scope="module")
def task(road: Road, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_glue(tmp_path_factory.mktemp("glue") / "toy", road.tokenizer, {"train": 60, "validation": 41})


@pytest.fixture(scope="module")
def tuned(road: Road, task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    extra = ("--seed", "5", "--seeds", "3", "--epochs", "2", "--stats", str(folder / "stats.json"))
    assert finetune(road, task, folder / "finetune", *extra) == 0
    return folder / "finetune"


def scores_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "scores.json").read_text())["validation"]


def test_each_seed_is_the_run_of_this_seed_alone(road: Road, task: Path, tuned: Path, tmp_path: Path) -> None:
    assert finetune(road, task, tmp_path / "alone", "--seed", "6", "--epochs", "2") == 0
    alone, among = small.contents(tmp_path / "alone"), small.contents(tuned / "seed-6")
    for name in ("predictions.jsonl", "curve.csv", "epochs.csv", "scores.json"):
        assert alone[name] == among[name], name
    curves = {seed: (tuned / f"seed-{seed}/curve.csv").read_bytes() for seed in SEEDS}
    assert len(set(curves.values())) == 3


def test_mean_and_spread_are_those_of_the_runs(tuned: Path) -> None:
    scores = json.loads((tuned / "scores.json").read_text())
    values = [scores_of(tuned / f"seed-{seed}")["accuracy"] for seed in SEEDS]
    assert scores["validation"]["accuracy"] == pytest.approx(statistics.fmean(values), abs=1e-6)
    assert scores["validation_std"]["accuracy"] == pytest.approx(statistics.stdev(values), abs=1e-6)
    assert scores["validation"]["rows"] == 41
    with (tuned / "seeds.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["score"] == "accuracy"]
    assert [(row["seed"], float(row["value"])) for row in rows] == list(zip(SEEDS, values, strict=True))
    stats = json.loads((tuned.parent / "stats.json").read_text())
    assert (stats["seeds"], stats["validation"]) == (3, scores["validation"])
    best = str(stats["best_seed"])
    assert scores_of(tuned / f"seed-{best}")["accuracy"] == max(values)


def test_the_model_is_that_of_the_best_seed(road: Road, task: Path, tuned: Path, tmp_path: Path) -> None:
    best = str(json.loads((tuned.parent / "stats.json").read_text())["best_seed"])
    assert finetune(road, task, tmp_path / "alone", "--seed", best, "--epochs", "2") == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tuned / "model" / name).read_bytes() == (tmp_path / "alone/model" / name).read_bytes(), name


def test_the_best_seed_is_the_first_of_equal_ones() -> None:
    runs = {seed: {"validation": {"headline": value}} for seed, value in ((1, 0.5), (2, 0.75), (3, 0.75))}
    assert best_seed(runs) == 2


def test_numbers_only_are_averaged(tmp_path: Path) -> None:
    run = {"rows": 4, "steps": 2, "tokens": 9, "num_labels": 2, "train_loss": 0.5}
    found = {
        seed: run | {"scores": {"test": {"accuracy": seed / 8, "headline": seed / 8, "rows": 4, "note": "x"}}}
        for seed in (1, 3)
    }
    stats = write_spread(found, 3, tmp_path)
    assert stats["test"] == {"accuracy": 0.25, "headline": 0.25, "rows": 4}
    assert stats["test_std"] == dict.fromkeys(("accuracy", "headline"), pytest.approx(0.176777))


def test_the_report_shows_means_and_the_best_seeds_rows(tuned: Path) -> None:
    best = json.loads((tuned / "seeds.json").read_text())["best"]
    found, alone = read_task(tuned), read_task(tuned / best)
    assert found.epochs
    assert found.worst
    assert (found.epochs, found.confusions, found.worst) == (alone.epochs, alone.confusions, alone.worst)
