"""What else may lie in a folder of sources: each costs only itself, and is named in one line."""

import json
import os
import socket
from pathlib import Path

import pytest

from pipelines import manifest
from pipelines.command import StageSpec
from pipelines.documents import part_files, read_rows, rejected_rows
from pipelines.stage import run_command


def make_odd_things(folder: Path, suffix: str) -> dict[str, str]:
    """Make one of each beside the good files; return name -> what is said of it."""
    os.mkfifo(folder / f"pipe{suffix}")
    here = folder.resolve()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / f"socket{suffix}"))
    (folder / f"gone{suffix}").symlink_to(here / "nowhere")
    (folder / f"loop{suffix}").symlink_to(here / f"loop{suffix}")
    (folder / f"device{suffix}").symlink_to("/dev/zero")
    (folder / f"locked{suffix}").write_text("secret")
    (folder / "circle").symlink_to(here)
    kinds = dict.fromkeys(("pipe", "socket", "device"), "a pipe, socket or device")
    kinds |= {"gone": "a link that leads nowhere", "loop": "a link that leads nowhere", "locked": "may not be read"}
    return {f"{name}{suffix}": why for name, why in kinds.items()}


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a short path, as a socket needs; files called `locked` may not be read, even as root."""
    real = os.access
    monkeypatch.setattr(manifest.os, "access", lambda path, mode: "locked" not in str(path) and real(path, mode))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    return Path("in")


@pytest.mark.parametrize("stage", ["extract", "clean"])
def test_what_is_no_file_costs_only_itself(stage: str, short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (short / "a.jsonl").write_text(json.dumps({"text": "The miller opens the gate at dawn. " * 20}) + "\n")
    odd = make_odd_things(short, ".jsonl")
    (short / "folder.jsonl").mkdir()
    options = ["--languages"] if stage == "clean" else []
    assert run_command(StageSpec.load(f"dataprep.{stage}"), [str(short), "out", *options]) == 0
    assert sum(1 for file in part_files(Path("out")) for _ in read_rows(file)) == 1
    said = next(line for line in capsys.readouterr().err.splitlines() if "not read" in line)
    named = [name for name in odd if f"{name} ({odd[name]}" in said]
    assert len(named) >= 4, said  # of more, only their number is said
    assert f"and {len(odd) - len(named) + 1 - ('circle (' in said) - ('folder.jsonl (' in said)} more" in said


def test_a_file_that_may_not_be_read_is_a_rejected_row_and_the_others_are_read(short: Path) -> None:
    for name in ("a", "locked", "z"):
        (short / f"{name}.jsonl").write_text(
            json.dumps({"text": f"The miller opens gate {name} at dawn. " * 20}) + "\n"
        )
    os.mkfifo(short / "pipe.jsonl")
    assert run_command(StageSpec.load("dataprep.clean"), [str(short), "out", "--languages"]) == 0
    counts = manifest.Manifest.load(Path("out/manifest.json")).counts
    assert (counts.rows_in, counts.rows_out, counts.rejected) == (4, 2, {"unreadable_file": 2})
    assert rejected_rows(Path("out"), "unreadable_file") == [
        ("locked.jsonl", "may not be read (its permissions)"),
        ("pipe.jsonl", "a pipe, socket or device"),
    ]


def test_a_folder_of_url_lists_is_read_without_them(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (short / "a.txt").write_text("http://garden.test/a\n")
    make_odd_things(short, ".txt")
    assert run_command(StageSpec.load("dataprep.urls"), [str(short), "out"]) == 0
    assert "not read, 6 files: device.txt (a pipe, socket or device), gone.txt" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["pipe.jsonl", "loop.jsonl"])
def test_as_the_only_source_it_is_one_clear_line(name: str, short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = make_odd_things(short, ".jsonl")
    assert run_command(StageSpec.load("dataprep.clean"), [str(short / name), "out"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: in/{name}: ")
    assert odd[name] in line or "no such file" in line


def test_a_manifest_that_is_a_pipe_holds_nobody_up(short: Path) -> None:
    os.mkfifo(short / "manifest.json")
    assert not manifest.is_published(short)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("locked.jsonl", "may not be read (its permissions); allow it (chmod u+r, of a folder u+rx), or give a copy"),
        ("pipe.jsonl", "a pipe, socket or device; give a file or folder"),
    ],
)
def test_what_to_do_depends_on_why_it_is_not_read(
    name: str, advice: str, short: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_odd_things(short, ".jsonl")
    assert run_command(StageSpec.load("dataprep.clean"), [str(short / name), "out"]) == 1
    assert capsys.readouterr().err.startswith(f"error: in/{name}: {advice}")


def test_a_folder_whose_only_file_may_not_be_read_says_so(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (short / "locked.jsonl").write_text("{}")
    assert run_command(StageSpec.load("dataprep.clean"), [str(short), "out"]) == 1
    assert capsys.readouterr().err == "error: in/locked.jsonl: may not be read (its permissions)\n"
