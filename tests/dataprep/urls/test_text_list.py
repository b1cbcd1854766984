"""`urls LISTS clean_urls.txt` writes the text file that it names."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.programs import scratch_beside
from dataprep.urls.text_list import write_text_list
from pipelines.command import StageSpec
from pipelines.manifest import Manifest, manifest_path
from pipelines.project.status import LEFT_OVER, scratch_folders
from pipelines.stage import run_command

QUIET = ("--workers", "1", "--log-level", "error")


@pytest.fixture
def lists(tmp_path: Path) -> Path:
    """The folder URLs of Megatron's recipe, in which two lists repeat a page."""
    folder = tmp_path / "URLs"
    folder.mkdir()
    (folder / "a.txt").write_text("http://garden.test/b\nhttp://garden.test/a\nhttps://www.youtube.com/watch?v=1\n")
    (folder / "b.txt").write_text("HTTP://GARDEN.test:80/b?utm_source=x\nnot a url at all\n")
    return folder


def write(lists: Path, output: Path, *flags: str) -> int | None:
    return write_text_list([str(lists), str(output), *QUIET, *flags])


def test_as_a_command_it_writes_one_url_per_line_and_the_rejected_ones_beside(lists: Path, tmp_path: Path) -> None:
    output = tmp_path / "clean_urls.txt"
    words = [sys.executable, "-m", "dataprep.urls", str(lists), str(output)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f" s -> {output}")
    assert ".work" not in done.stderr
    assert output.read_text() == "http://garden.test/a\nhttp://garden.test/b\n"
    rows = [json.loads(line) for line in (tmp_path / "clean_urls.rejected.jsonl").read_text().splitlines()]
    assert sorted(row["rule"] for row in rows) == ["domain_blacklist", "duplicate", "malformed"]
    manifest = Manifest.load(manifest_path(output))
    assert {name: entry.rows for name, entry in manifest.files.items()} == {
        "clean_urls.txt": 2,
        "clean_urls.rejected.jsonl": 3,
    }
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
        "URLs",
        "clean_urls.rejected.jsonl",
        "clean_urls.txt",
        "clean_urls.txt.manifest.json",
    ]
    assert not list(tmp_path.glob(".work/*/")), "nothing but locks is left"


def test_a_list_of_which_nothing_is_left_names_its_rejected_lines(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("http://youtube.com/watch?v=1\n")
    words = [sys.executable, "-m", "dataprep.urls", str(tmp_path / "list.txt"), str(tmp_path / "clean.txt")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(f"see the rules above and {tmp_path / 'clean.rejected.jsonl'}")
    assert (tmp_path / "clean.rejected.jsonl").exists()


def test_it_takes_the_flags_of_the_stage(lists: Path, tmp_path: Path) -> None:
    assert write(lists, tmp_path / "clean_urls.txt", "--compat", "megatron") == 0
    urls = (tmp_path / "clean_urls.txt").read_text().splitlines()
    assert urls == ["HTTP://GARDEN.test:80/b?utm_source=x", "http://garden.test/a", "http://garden.test/b"]


def test_only_its_own_file_is_replaced_and_only_on_request(
    lists: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, own = tmp_path / "clean_urls.txt", tmp_path / "own.txt"
    own.write_text("http://garden.test/mine\n")
    assert write(lists, own, "--overwrite") == 1
    assert "own.txt: not a file that this command wrote" in capsys.readouterr().err
    assert own.read_text() == "http://garden.test/mine\n"
    assert write(lists, output) == 0
    assert write(lists, output) == 1
    assert "exists already" in capsys.readouterr().err
    (lists / "a.txt").write_text("http://garden.test/c\n")
    (lists / "b.txt").unlink()
    assert write(lists, output, "--overwrite") == 0
    assert output.read_text() == "http://garden.test/c\n"
    assert not (tmp_path / "clean_urls.rejected.jsonl").exists(), "it told of the lists before"


def test_a_killed_run_leaves_a_folder_that_the_next_one_removes(lists: Path, tmp_path: Path) -> None:
    left = tmp_path / ".work" / "clean_urls.txt-urls-scratch" / "urls.jsonl"
    left.parent.mkdir(parents=True)
    left.write_text("half")
    assert [(folder, state) for folder, _, state in scratch_folders({tmp_path})] == [(left.parent, LEFT_OVER)]
    assert write(lists, tmp_path / "clean_urls.txt") == 0
    assert not left.parent.exists()


def test_a_run_that_is_under_way_keeps_its_folder(
    lists: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = argparse.Namespace(program="urls", overwrite=False)
    with scratch_beside(tmp_path / "clean_urls.txt", {}, options) as folder:
        assert [(each, state) for each, _, state in scratch_folders({tmp_path})] == [(folder, "in use")]
        assert write(lists, tmp_path / "clean_urls.txt") == 1
        assert "another process is making clean_urls.txt-urls" in capsys.readouterr().err
        assert folder.exists()


def test_bad_input_leaves_what_was_there(lists: Path, tmp_path: Path) -> None:
    output = tmp_path / "clean_urls.txt"
    assert write(lists, output) == 0
    before = output.read_bytes()
    (lists / "a.txt").write_text("no url\n")
    (lists / "b.txt").write_text("none here\n")
    assert write(lists, output, "--overwrite") == 1
    assert output.read_bytes() == before
    assert Manifest.load(manifest_path(output)).files["clean_urls.txt"].rows == 2


def test_a_list_is_never_its_own_output(lists: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(lists, lists / "clean_urls.txt") == 1
    assert "inside the folder of the lists" in capsys.readouterr().err
    assert write(lists / "a.txt", lists / "a.txt", "--overwrite") == 1
    assert "would replace the input" in capsys.readouterr().err


def test_other_outputs_are_the_stages_own(lists: Path, tmp_path: Path) -> None:
    assert write_text_list([str(lists), str(tmp_path / "urls")]) is None
    assert write_text_list(["--workers", "1", str(lists), str(tmp_path / "clean_urls.txt")]) is None
    assert write_text_list([]) is None
    assert write_text_list([str(lists), str(tmp_path / "clean_urls.txt"), "--help"]) is None, "the stage's own help"
    folder = tmp_path / "clean_urls.txt"
    assert run_command(StageSpec.load("dataprep.urls"), [str(lists), str(tmp_path / "urls"), *QUIET]) == 0
    (tmp_path / "urls").rename(folder)  # earlier versions of the stage made folders of such names
    assert write_text_list([str(lists), str(folder)]) is None
    assert run_command(StageSpec.load("dataprep.urls"), [str(lists), str(folder), "--overwrite", *QUIET]) == 0
