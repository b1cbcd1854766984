"""A submission in the format of GLUE's leaderboard: every row once, in order, in one zip."""

import zipfile
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import UserError
from trainer import glue_submission
from trainer.glue_submission import FILES, main, write_submission


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
    with pytest.raises(UserError, match="cola/test: an index stands twice or is negative"):
        write_submission(tmp_path, "cola", "test", indexes, [0, 1], ["a", "b"])


def folder_of(root: Path, name: str, *keys: tuple[str, str]) -> Path:
    """A finetune folder with whole files of these splits."""
    for key in keys:
        file = FILES[key]
        labels = NLI if file.placeholder.isalpha() else ["0", "1"]
        write_submission(root / name, *key, range(file.rows), [1.0 if file.scores else 1] * file.rows, labels)
    return root / name


def submit(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["glue_submission", *(str(each) for each in arguments)])
    return main()


def test_one_zip_has_all_files_with_the_same_bytes_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [folder_of(tmp_path, "_".join(key), key) for key in FILES if key != ("stsb", "test")]
    write_submission(tmp_path / "stsb", "stsb", "test", range(1379), [2.5] * 1379, [])
    folders.append(tmp_path / "stsb")
    assert submit(monkeypatch, tmp_path / "one.zip", *folders) == 0
    assert submit(monkeypatch, tmp_path / "two.zip", *reversed(folders)) == 0
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        names = ["CoLA", "SST-2", "MRPC", "STS-B", "MNLI-m", "MNLI-mm", "QNLI", "QQP", "RTE", "WNLI", "AX"]
        assert archive.namelist() == [f"{name}.tsv" for name in names]
        assert archive.testzip() is None
        for file in FILES.values():
            assert len(archive.read(f"{file.name}.tsv").splitlines()) == 1 + file.rows


def test_missing_tasks_are_named_and_filled_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, "mnli", ("mnli", "test_matched"), ("mnli", "test_mismatched"))
    assert submit(monkeypatch, tmp_path / "part.zip", folder) == 0
    shown = capsys.readouterr()
    assert "2 of 11 files" in shown.out
    assert "CoLA, SST-2, MRPC, STS-B, QNLI, QQP, RTE, WNLI, AX: missing, and GLUE takes only all" in shown.err
    assert submit(monkeypatch, tmp_path / "whole.zip", folder, "--fill-missing") == 0
    assert "AX: placeholders" in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "whole.zip") as archive:
        assert len(archive.namelist()) == 11
        assert archive.read("RTE.tsv").splitlines()[1:3] == [b"0\tentailment", b"1\tentailment"]
        assert archive.read("STS-B.tsv").splitlines()[-1] == b"1378\t0.000"
        assert archive.read("MNLI-m.tsv") == (folder / "submission/MNLI-m.tsv").read_bytes()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("twice", "the same task as"),
        ("none", "has no submission/*.tsv"),
        ("custom", "test.tsv: no file of GLUE's"),
        ("short", "WNLI.tsv: 145 rows, GLUE's test split has 146"),
        ("order", "WNLI.tsv: not the rows 0, 1, ..."),
        ("there", "exists already; --overwrite replaces it"),
        ("name", "expected OUTPUT.zip"),
    ],
)
def test_a_mistake_is_one_clear_line_and_leaves_no_zip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str, message: str
) -> None:
    one, two = (folder_of(tmp_path, name, ("wnli", "test")) for name in ("one", "two"))
    file, output = two / "submission/WNLI.tsv", tmp_path / ("all.tar" if broken == "name" else "all.zip")
    rows = file.read_text().splitlines(keepends=True)
    if broken == "none":
        file.unlink()
    elif broken == "custom":
        file.rename(two / "submission/test.tsv")
    elif broken == "short":
        file.write_text("".join(rows[:-1]))
    elif broken == "order":
        file.write_text("".join([rows[0], rows[2], rows[1], *rows[3:]]))
    elif broken == "there":
        output.write_text("mine")
    folders = [one, two] if broken == "twice" else [two]
    assert submit(monkeypatch, output, *folders) == (2 if broken == "name" else 1)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1
    assert output.exists() == (broken == "there")


def test_a_zip_that_is_there_is_replaced_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "all.zip").write_text("old")
    folder = folder_of(tmp_path, "wnli", ("wnli", "test"))
    assert submit(monkeypatch, tmp_path / "all.zip", folder, "--overwrite") == 0
    assert zipfile.is_zipfile(tmp_path / "all.zip")


def test_the_counts_are_those_that_glue_publishes() -> None:
    """Written in both packages, since the trainer does not import the data preparation."""
    from dataprep.glue.tasks import TASKS

    published = {
        (name, split): rows
        for name, task in TASKS.items()
        for split, rows in task.published.items()
        if split.startswith("test")
    }
    assert {key: file.rows for key, file in glue_submission.FILES.items()} == published
    words = {file.name for file in FILES.values() if file.words}
    assert words == {"MNLI-m", "MNLI-mm", "QNLI", "RTE", "AX"}
    for (task, _), file in FILES.items():
        assert not file.words or file.placeholder in TASKS[task].labels
