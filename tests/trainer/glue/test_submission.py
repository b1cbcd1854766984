"""The files of a submission: every row of a test split once, in order, in the leaderboard's format."""

from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import UserError
from trainer.glue.submission import FILES, write_submission


def lines(folder: Path, name: str) -> list[str]:
    return (folder / "submission" / f"{name}.tsv").read_text().splitlines()


NLI = ["entailment", "neutral", "contradiction"]


@pytest.mark.parametrize(
    ("task", "split", "names", "predictions", "name", "cells"),
    [
        ("cola", "test", ["unacceptable", "acceptable"], [1, 0, 1], "CoLA", ["1", "0", "1"]),
        ("wnli", "test", ["not_entailment", "entailment"], [1, 0, 0], "WNLI", ["1", "0", "0"]),
        ("mnli", "test_matched", NLI, [2, 1, 0], "MNLI-m", ["contradiction", "neutral", "entailment"]),
        ("mnli", "test_mismatched", NLI, [0, 0, 1], "MNLI-mm", ["entailment", "entailment", "neutral"]),
        ("qnli", "test", ["entailment", "not_entailment"], [1, 1, 0], "QNLI", ["not_entailment"] * 2 + ["entailment"]),
        ("ax", "test", NLI, [1, 2, 2], "AX", ["neutral", "contradiction", "contradiction"]),
        ("stsb", "test", [], [-0.3, 2.34567, 5.2], "STS-B", ["0.000", "2.346", "5.000"]),
    ],
)
def test_each_task_has_its_file_with_numbers_words_or_scores(
    tmp_path: Path, task: str, split: str, names: list[str], predictions: list[Any], name: str, cells: list[str]
) -> None:
    rows = FILES[task, split].rows
    filled = write_submission(tmp_path, task, split, range(rows), predictions + predictions[:1] * (rows - 3), names)
    found = lines(tmp_path, name)
    assert found[:4] == ["index\tprediction", *(f"{i}\t{cell}" for i, cell in enumerate(cells))]
    assert [line.split("\t")[0] for line in found[1:]] == [str(i) for i in range(rows)]
    assert filled == {name: {"rows": rows, "filled": 0}}


def test_a_row_that_could_not_be_read_gets_the_commonest_prediction_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    indexes = [i for i in range(146) if i not in (5, 145)]  # the last one is known by GLUE's count
    predictions = [int(i % 3 == 0) for i in indexes]
    found = write_submission(tmp_path, "wnli", "test", indexes, predictions, ["not_entailment", "entailment"])
    assert found == {"WNLI": {"rows": 146, "filled": 2}}
    cells = lines(tmp_path, "WNLI")[1:]
    assert (cells[5], cells[145]) == ("5\t0", "145\t0")
    assert [cells[i] for i in indexes] == [f"{i}\t{p}" for i, p in zip(indexes, predictions, strict=True)]
    assert "wnli/test: 2 of 146 rows were not predicted: 0 stands there" in caplog.text


def test_a_split_that_is_another_one_is_not_filled_up_to_glues(tmp_path: Path) -> None:
    assert write_submission(tmp_path, "mrpc", "test", [0, 1], [1, 0], ["a", "b"]) == {"MRPC": {"rows": 2, "filled": 0}}
    assert lines(tmp_path, "MRPC") == ["index\tprediction", "0\t1", "1\t0"]


def test_a_score_that_is_missing_is_the_mean(tmp_path: Path) -> None:
    write_submission(tmp_path, "stsb", "test", [0, 2], [1.0, 2.0], [])
    assert lines(tmp_path, "STS-B")[2] == "1\t1.500"


def test_a_task_of_ones_own_has_names_and_as_many_rows_as_there_are(tmp_path: Path) -> None:
    write_submission(tmp_path, "custom", "test", [1, 0], [1, 0], ["no\tidea", "yes"])
    assert lines(tmp_path, "test") == ["index\tprediction", "0\tno idea", "1\tyes"]
    write_submission(tmp_path, "custom", "test", [0, 1], [-7.25, 90.0], [])
    assert lines(tmp_path, "test") == ["index\tprediction", "0\t-7.250", "1\t90.000"]


@pytest.mark.parametrize("indexes", [[0, 0], [-1, 0]])
def test_an_index_that_stands_twice_or_below_0_is_refused(tmp_path: Path, indexes: list[int]) -> None:
    with pytest.raises(UserError, match="cola/test: an index occurs twice or is negative"):
        write_submission(tmp_path, "cola", "test", indexes, [0, 1], ["a", "b"])


def test_the_counts_are_those_that_glue_publishes() -> None:
    """Written in both packages, since the trainer does not import the data preparation."""
    from dataprep.glue.tasks import TASKS

    published = {
        (name, split): rows
        for name, task in TASKS.items()
        for split, rows in task.published.items()
        if split.startswith("test")
    }
    assert {key: file.rows for key, file in FILES.items()} == published
    words = {file.name for file in FILES.values() if file.words}
    assert words == {"MNLI-m", "MNLI-mm", "QNLI", "RTE", "AX"}
    for (task, _), file in FILES.items():
        assert not file.words or file.placeholder in TASKS[task].labels
