"""What is written of a task's predictions: scores of the right rows, and nothing of a test's answers."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.command import Source
from trainer.glue.results import metrics_of, score_splits, submit

LOGITS = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
ROWS = {"index": [0, 1, 2], "label": [0, 1, 1], "logits": LOGITS}


def write_table(folder: Path, split: str, rows: dict[str, Any], names: list[str]) -> Path:
    """A split as glue_tokenize writes it, with two texts a row."""
    columns = {
        "input_ids": pa.array([[1]] * len(rows["index"]), pa.list_(pa.int32())),
        "label": pa.array(rows["label"]),
        "index": pa.array(rows["index"]),
        "sentence1": [f"first {i}" for i in rows["index"]],
        "sentence2": [f"second {i}" for i in rows["index"]],
    }
    metadata = {"tokenizer_sha256": "0", "vocab_size": "9", "end_of_text": "8", "num_labels": str(len(names) or 1)}
    table = pa.table(columns).replace_schema_metadata({**metadata, "labels": json.dumps(names)})
    folder.mkdir(exist_ok=True)
    with pa.ipc.new_file(str(folder / f"{split}.arrow"), table.schema) as writer:
        writer.write_table(table)
    return folder


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_table(tmp_path / "glue", "validation", ROWS, ["no", "yes"])


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("lists", "splits"),
    [
        (None, {"validation"}),  # the task was not looked for
        ({"test": [0]}, {"validation"}),
        ({"validation": []}, {"validation", "validation_clean"}),
        ({"validation": [1]}, {"validation", "validation_clean"}),
    ],
)
def test_a_clean_subset_is_scored_where_it_is_known_also_when_nothing_is_clean(
    glue: Path, tmp_path: Path, lists: dict[str, list[int]] | None, splits: set[str]
) -> None:
    (tmp_path / "clean").mkdir()
    if lists is not None:
        (tmp_path / "clean" / "rte.json").write_text(json.dumps(lists))
    found = score_splits("rte", {"validation": ROWS}, Source(tmp_path, None), tmp_path, glue)
    assert set(found) == splits
    assert found["validation"] == score_splits("rte", {"validation": ROWS}, None, tmp_path, glue)["validation"]
    if "validation_clean" in splits:
        assert lists is not None
        assert found["validation_clean"]["rows"] == len(lists["validation"])
        assert found["validation_clean"].get("accuracy", 1.0) == 1.0


def test_rows_clean_before_and_after_decontamination_are_two_subsets(glue: Path, tmp_path: Path) -> None:
    for subset, clean in (("clean", [1]), ("kept_clean", [1, 2])):
        (tmp_path / subset).mkdir()
        (tmp_path / subset / "rte.json").write_text(json.dumps({"validation": clean}))
    found = score_splits("rte", {"validation": ROWS}, Source(tmp_path, None), tmp_path, glue)
    assert found.keys() == {"validation", "validation_clean", "validation_kept_clean"}
    assert [found[f"validation_{subset}"]["rows"] for subset in ("clean", "kept_clean")] == [1, 2]
    assert [found[f"validation_{subset}"]["accuracy"] for subset in ("clean", "kept_clean")] == [1.0, 0.5]


def test_scores_json_has_intervals_and_the_matrix_and_the_stats_numbers_alone(glue: Path, tmp_path: Path) -> None:
    found = score_splits("mrpc", {"validation": ROWS}, None, tmp_path, glue)
    scores = json.loads((tmp_path / "scores.json").read_text())["validation"]
    assert scores["headline_of"] == ["accuracy", "f1"]
    assert scores["interval"].keys() == {"accuracy", "f1", "headline"}
    assert scores["confusion"] == {"labels": ["no", "yes"], "counts": [[1, 0], [1, 1]]}
    (stats,) = metrics_of(found).values()
    assert stats.keys() == {"accuracy", "f1", "headline", "headline_low", "headline_high", "majority", "rows"}
    assert all(isinstance(value, (int, float)) for value in stats.values())


def test_the_answers_of_a_test_are_neither_scored_nor_shown_even_where_they_are_at_hand(tmp_path: Path) -> None:
    glue = write_table(tmp_path / "glue", "test", ROWS, ["not_equivalent", "equivalent"])
    assert score_splits("mrpc", {"test": ROWS}, None, tmp_path, glue) == {}
    assert json.loads((tmp_path / "scores.json").read_text()) == {}
    assert (tmp_path / "predictions.jsonl").read_text() == ""
    assert (tmp_path / "worst.jsonl").read_text() == ""
    assert not (tmp_path / "confusion.svg").exists()
    assert submit("mrpc", {"test": ROWS}, tmp_path, glue) == {"submission": {"MRPC": {"rows": 3, "filled": 0}}}
    rows = read_lines(tmp_path / "submission/test.jsonl")
    assert [(row["label"], row["logits"]) for row in rows] == [(None, logits) for logits in LOGITS]


def test_the_diagnostic_set_is_scored_where_its_labels_are_there(tmp_path: Path) -> None:
    labels = ["entailment", "neutral", "contradiction"]
    logits = [[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    rows = {"index": [0, 1, 2, 3], "label": [0, 1, 2, -1], "logits": logits}
    glue = write_table(tmp_path / "glue", "test", rows, labels)
    found = score_splits("ax", {"test": rows}, None, tmp_path, glue)
    assert found["test"]["matthews"] == 1.0
    assert found["test"]["rows"] == 3
    assert [row["label"] for row in read_lines(tmp_path / "predictions.jsonl")] == [0, 1, 2, None]
    hidden = {**rows, "label": [-1] * 4}
    assert score_splits("ax", {"test": hidden}, None, tmp_path, glue) == {}


def test_the_worst_rows_of_a_regression_are_those_farthest_off(tmp_path: Path) -> None:
    rows = {"index": [3, 5, 9], "label": [1.0, 4.0, 2.0], "logits": [[1.25], [1.0], [2.0]]}
    glue = write_table(tmp_path / "glue", "validation", rows, [])
    score_splits("stsb", {"validation": rows}, None, tmp_path, glue)
    worst = read_lines(tmp_path / "worst.jsonl")
    assert [(row["index"], row["error"]) for row in worst] == [(5, 3.0), (3, 0.25), (9, 0.0)]
    assert worst[0]["texts"] == {"sentence1": "first 5", "sentence2": "second 5"}
    assert (worst[0]["label"], worst[0]["prediction"]) == (4.0, 1.0)
    assert "probability" not in worst[0]
    assert "confusion" not in json.loads((tmp_path / "scores.json").read_text())["validation"]


def test_equal_losses_stand_in_the_order_of_the_rows_and_one_is_never_infinite(tmp_path: Path) -> None:
    rows = {"index": [0, 1, 2], "label": [1, 1, 0], "logits": [[800.0, -800.0], [800.0, -800.0], [800.0, -800.0]]}
    glue = write_table(tmp_path / "glue", "validation", rows, ["no", "yes"])
    score_splits("rte", {"validation": rows}, None, tmp_path, glue)
    assert [(row["index"], row["loss"]) for row in read_lines(tmp_path / "worst.jsonl")] == [
        (0, 1600.0),
        (1, 1600.0),
        (2, 0.0),
    ]
