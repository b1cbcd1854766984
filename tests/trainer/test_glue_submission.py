"""A submission to GLUE's leaderboard: all files in one zip, and each mistake in one line."""

import zipfile
from pathlib import Path

import pytest

from trainer.glue.submission import FILES, write_submission
from trainer.glue_submission import main

NLI = ["entailment", "neutral", "contradiction"]


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
    assert "CoLA, SST-2, MRPC, STS-B, QNLI, QQP, RTE, WNLI, AX: missing, but GLUE takes only all files" in shown.err
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
        ("custom", "test.tsv: not one of GLUE's files"),
        ("short", "WNLI.tsv: 145 rows, but GLUE's test split has 146"),
        ("order", "WNLI.tsv: expected the columns index and prediction and the rows 0, 1, ..."),
        ("there", "exists already; --overwrite replaces it"),
        ("name", "name a file that ends with .zip"),
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
    folder = folder_of(tmp_path, "wnli", ("wnli", "test"))
    for _ in range(2):
        assert submit(monkeypatch, tmp_path / "all.zip", folder, "--overwrite") == 0
    with zipfile.ZipFile(tmp_path / "all.zip", "a") as archive:
        archive.writestr("thesis.tex", "mine")
    before = (tmp_path / "all.zip").read_bytes()
    assert submit(monkeypatch, tmp_path / "all.zip", folder, "--overwrite") == 1
    assert (tmp_path / "all.zip").read_bytes() == before, "another zip is not"
