"""GLUE from the Hub, by the library `datasets` from a folder in the Hub's layout: real files, real features."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from dataprep.glue.tasks import TASKS, GlueTask, RowError
from dataprep.glue_download import stage
from pipelines.errors import UserError

REVISION = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded stays in the test's own folder, without progress bars."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def features(task: GlueTask, labels: tuple[str, ...]) -> Any:
    """The features that nyu-mll/glue has."""
    texts = {name: datasets.Value("string") for name in task.texts}
    label = datasets.ClassLabel(names=list(labels)) if labels else datasets.Value("float32")
    return datasets.Features({**texts, "label": label, "idx": datasets.Value("int32")})


def write_hub(folder: Path, task: GlueTask, rows: dict[str, list[dict[str, Any]]], labels: tuple[str, ...]) -> Path:
    """A data set with one configuration: SPLIT-00000-of-00001.parquet, and a README that names the splits."""
    for split, some in rows.items():
        data = datasets.Dataset.from_list(some, features=features(task, labels))
        (folder / task.name).mkdir(parents=True, exist_ok=True)
        data.to_parquet(str(folder / task.name / f"{split}-00000-of-00001.parquet"))
    files = [{"split": split, "path": f"{task.name}/{split}-*"} for split in rows]
    config = json.dumps([{"config_name": task.name, "data_files": files}])
    (folder / "README.md").write_text(f"---\nconfigs: {config}\n---\n")
    return folder


def row(task: GlueTask, split: str, index: int) -> dict[str, Any]:
    texts = {name: f"{name} of row {index}" for name in task.texts}
    label = -1 if split.startswith("test") else 0 if task.labels else 3.8
    return {**texts, "label": label, "idx": index}


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_has_the_rows_of_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    task = TASKS[name]
    rows = {split: [row(task, split, index) for index in range(2)] for split in task.published}
    monkeypatch.setattr(stage, "HUB_DATASET", str(write_hub(tmp_path / "glue", task, rows, task.labels)))
    taken = {split: list(some) for split, _, some in stage.read_hub(task, REVISION)}
    assert list(taken) == list(task.published)
    for split, some in taken.items():
        expected = [{**{n: r[n] for n in task.texts}, "label": r["label"], "index": r["idx"]} for r in rows[split]]
        assert some == [{**each, "label": pytest.approx(each["label"])} for each in expected]


def test_broken_rows_are_errors_by_split_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["rte"]
    rows = {split: [row(task, split, 0)] for split in task.published}
    rows["train"] += [
        {**row(task, "train", 1), "label": -1},
        {**row(task, "train", 2), "sentence1": "", "sentence2": ""},
    ]
    monkeypatch.setattr(stage, "HUB_DATASET", str(write_hub(tmp_path / "glue", task, rows, task.labels)))
    _, _, some = next(stage.read_hub(task, REVISION))
    problems = [each for each in some if isinstance(each, RowError)]
    assert [(each.rule, str(each).partition(": ")[0]) for each in problems] == [
        ("unknown_label", "rte/train:1"),
        ("empty_text", "rte/train:2"),
    ]


def test_classes_in_another_order_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["rte"]
    rows = {split: [row(task, split, 0)] for split in task.published}
    source = write_hub(tmp_path / "glue", task, rows, ("not_entailment", "entailment"))
    monkeypatch.setattr(stage, "HUB_DATASET", str(source))
    with pytest.raises(UserError, match="labels of rte are not_entailment, entailment, expected entailment, not_ent"):
        list(stage.read_hub(task, REVISION))


def test_a_split_that_the_data_set_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["rte"]
    source = write_hub(tmp_path / "glue", task, {"train": [row(task, "train", 0)]}, task.labels)
    monkeypatch.setattr(stage, "HUB_DATASET", str(source))
    with pytest.raises(UserError, match="rte has no validation split; check the revision"):
        list(stage.read_hub(task, REVISION))


def test_files_that_are_no_data_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = TASKS["rte"]
    source = write_hub(tmp_path / "glue", task, {"train": [row(task, "train", 0)]}, task.labels)
    (source / "rte/train-00000-of-00001.parquet").write_bytes(b"PAR1 cut off")
    monkeypatch.setattr(stage, "HUB_DATASET", str(source))
    with pytest.raises(UserError, match="cannot load rte"):
        list(stage.read_hub(task, REVISION))
