"""Stage `urls`: lists in, one sorted list out, every left-out line with its reason."""

import gzip
import json
import lzma
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dataprep import urls as urls_stage
from pipelines import store
from pipelines.command import StageSpec
from pipelines.documents import read_rows
from pipelines.manifest import MANIFEST, Manifest
from pipelines.stage import run_command

SPEC = StageSpec.load("dataprep.urls")
ROOT = Path(__file__).parents[2]


def run(source: Path, output: Path, *options: str) -> Manifest:
    assert run_command(SPEC, [str(source), str(output), "--workers", "1", "--log-level", "error", *options]) == 0
    return Manifest.load(output / MANIFEST)


def kept(output: Path) -> list[tuple[str, str]]:
    return [(r["url"], r["original"]) for file in sorted(output.glob("part-*.parquet")) for r in read_rows(file)]


def rejected(output: Path) -> dict[str, tuple[str, str]]:
    rows = [row for file in sorted((output / "rejected").glob("*.parquet")) for row in read_rows(file)]
    return {row["url"]: (row["rule"], row["value"]) for row in rows}


def test_each_line_is_kept_or_rejected_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(
        b"\xef\xbb\xbfhttp://garden.test/b?utm_source=x\r\n"
        b"# a comment\n\n   \n"
        b"  http://garden.test/a  \n"
        b"HTTP://GARDEN.TEST:80/b#top\n"
        b"https://www.youtube.com/watch?v=1\n"
        b"http://garden.test/plan.7z\n"
        b"http://a\n"
        b"no url\xff at all\n"
        b"not a url at all\n"
    )
    manifest = run(tmp_path / "list.txt", tmp_path / "out")
    assert kept(tmp_path / "out") == [
        ("http://garden.test/a", "http://garden.test/a"),
        ("http://garden.test/b", "http://garden.test/b?utm_source=x"),
    ]
    assert rejected(tmp_path / "out") == {
        "HTTP://GARDEN.TEST:80/b#top": ("duplicate", "of http://garden.test/b?utm_source=x"),
        "https://www.youtube.com/watch?v=1": ("domain_blacklist", "youtube.com (video)"),
        "http://garden.test/plan.7z": ("extension_blacklist", ".7z (archives)"),
        "http://a": ("too_short", "8 characters"),
        "no url\\xff at all": ("invalid_utf8", "line 10: not valid UTF-8 at byte 6"),
        "not a url at all": ("malformed", "not an http or https URL with a valid host"),
    }
    counts = manifest.counts
    assert (counts.rows_in, counts.rows_out, sum(counts.rejected.values())) == (8, 2, 6)
    assert manifest.rows == 2


def write_lists(folder: Path) -> Path:
    """Three lists in three compressions, in random order, with repeats across files."""
    folder.mkdir()
    lines = [f"http://host{i % 7}.test/page/{i}" for i in range(300)]
    random.Random(5).shuffle(lines)
    (folder / "b.txt").write_text("\n".join([*lines[:120], "http://imgur.com/x"]) + "\n")
    (folder / "a.txt.gz").write_bytes(gzip.compress("\n".join(lines[100:200]).encode()))
    (folder / "c.txt.xz").write_bytes(lzma.compress("\n".join(lines[180:]).encode()))
    (folder / "d.jsonl").write_text(json.dumps({"url": "http://host1.test/json"}) + "\n{}\nbroken\n[1]\n")
    return folder


def test_a_folder_of_lists_gives_one_sorted_list_in_fixed_parts(tmp_path: Path) -> None:
    lists = write_lists(tmp_path / "lists")
    (lists / "README.md").write_text("not a list")
    manifest = run(lists, tmp_path / "out", "--rows-per-part", "100")
    found = [url for url, _ in kept(tmp_path / "out")]
    assert found == sorted(set(found))
    assert len(found) == 301
    assert [manifest.files[f"part-0000{i}.parquet"].rows for i in range(4)] == [100, 100, 100, 1]
    assert manifest.counts.rejected == {"duplicate": 40, "domain_blacklist": 1, "no_url": 2, "invalid_json": 1}
    # the first list in order of name keeps the URL
    assert rejected(tmp_path / "out")["http://imgur.com/x"][0] == "domain_blacklist"


def test_workers_hash_seed_and_memory_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = write_lists(tmp_path / "lists")
    run(lists, tmp_path / "one")
    monkeypatch.setattr(urls_stage, "RUN_ROWS", 17)
    run(lists, tmp_path / "runs")
    for workers, seed in (("2", "77"),):
        command = [sys.executable, "-m", "dataprep.urls", lists, tmp_path / f"w{workers}", "--workers", workers]
        environment = {"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, check=True, capture_output=True)
    wanted = {f.name: store.sha256(f) for f in store.list_files(tmp_path / "one")}
    for name in ("runs", "w2"):
        assert {f.name: store.sha256(f) for f in store.list_files(tmp_path / name)} == wanted, name


def test_an_empty_file_gives_an_empty_list(tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"")
    manifest = run(tmp_path / "none", tmp_path / "out")
    assert kept(tmp_path / "out") == []
    assert (manifest.counts.rows_in, manifest.counts.rows_out) == (0, 0)
    assert (tmp_path / "out" / "part-00000.parquet").exists()


@pytest.mark.parametrize("case", ["empty folder", "missing", "no list in it"])
def test_no_list_is_one_clear_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "lists"
    if case != "missing":
        source.mkdir()
    if case == "no list in it":
        (source / "table.parquet").write_bytes(b"PAR1")
    assert run_command(SPEC, [str(source), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(f"error: {source}")
    assert not (tmp_path / "out").exists()


def test_a_list_that_is_cut_off_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = gzip.compress(b"http://garden.test/a\n" * 10_000)
    (tmp_path / "list.txt.gz").write_bytes(data[: len(data) // 2])
    assert run_command(SPEC, [str(tmp_path / "list.txt.gz"), str(tmp_path / "out"), "--workers", "1"]) == 1
    assert "cut off, damaged" in capsys.readouterr().err


def test_changed_blacklists_void_the_receipts_of_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that stopped between its steps does not mix two versions of the lists."""
    (tmp_path / "list.txt").write_text("http://garden.test/a\nhttp://harbour.test/a\n")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "domains-mine.txt").write_text("garden.test\n")
    arguments = [str(tmp_path / "list.txt"), str(tmp_path / "out"), "--blacklists", str(tmp_path / "lists")]

    def stop(*ignored: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(urls_stage, "merge_lists", stop)
        assert run_command(SPEC, [*arguments, "--workers", "1"]) == 130
    (tmp_path / "lists" / "domains-mine.txt").write_text("harbour.test\n")
    assert run_command(SPEC, [*arguments, "--workers", "1"]) == 0
    assert [url for url, _ in kept(tmp_path / "out")] == ["http://garden.test/a"]
