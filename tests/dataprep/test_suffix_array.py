"""The index of token shards: the order of all suffixes, whatever the workers, the blocks and the kills."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataprep import suffix_array
from pipelines import store
from pipelines.command import StageSpec
from pipelines.manifest import Counts, FileEntry, Manifest
from pipelines.stage import run_command
from pipelines.tokens import TokenMeta, TokenShard, open_tokens, write_tokens
from tests.dataprep.corpora import digests, run

ROOT = Path(__file__).parents[2]
META = TokenMeta("ab" * 32, 300, 299)
SMALL = ("--tokens-per-block", "500")


def write_shards(folder: Path, meta: TokenMeta = META, shards: int = 3, documents: int = 40, longest: int = 80) -> Path:
    """Shards of few different tokens, so that much repeats; one of them is empty."""
    rng = np.random.default_rng(5)
    entries: dict[str, FileEntry] = {}
    for number in range(shards):
        lengths = rng.integers(0, longest, size=0 if number == 1 else documents)
        rows = [np.append(rng.integers(0, 4, size=n) * (meta.vocab_size // 4), meta.end_of_text) for n in lengths]
        path = folder / f"part-{number:05d}.arrow"
        write_tokens(
            path,
            [row.astype(meta.dtype) for row in rows],
            [number.to_bytes(8) + i.to_bytes(8) for i in range(len(rows))],
            meta,
        )
        entries[path.name] = FileEntry(len(rows), path.stat().st_size, store.sha256(path))
    Manifest(entries, Counts()).save(folder / "manifest.json")
    return folder


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return write_shards(tmp_path / "tokens")


def starts_of(file: Path) -> list[int]:
    with pa.ipc.open_file(str(file)) as reader:
        return reader.read_all().column("start").to_pylist()


def expected(shard: TokenShard, first: int, last: int) -> list[int]:
    """As Python sorts them."""
    begin, end = shard.offsets[first], shard.offsets[last]
    block = shard.tokens[begin:end].tolist()
    return [int(begin) + start for start in sorted(range(len(block)), key=lambda start: block[start:])]


@pytest.mark.parametrize("vocab_size", [300, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("tokens_per_block", [1, 500, 10**6])
def test_the_suffixes_of_each_block_are_in_order(
    tmp_path: Path, vocab_size: int, tokens_per_block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suffix_array, "_CHUNK", 70)
    tokens = write_shards(tmp_path / "tokens", TokenMeta("ab" * 32, vocab_size, vocab_size - 1), documents=12)
    assert run("dataprep.suffix_array", tokens, tmp_path / "index", "--tokens-per-block", tokens_per_block) == 0
    files = iter(sorted((tmp_path / "index").glob("*.arrow")))
    for shard in open_tokens(tokens):
        for first, last in suffix_array.blocks(shard, tokens_per_block):
            assert starts_of(next(files)) == expected(shard, first, last)
    assert next(files, None) is None


def test_blocks_are_whole_documents_and_a_longer_one_has_its_own(tokens: Path) -> None:
    for shard in open_tokens(tokens):
        found = suffix_array.blocks(shard, 60)
        assert [first for first, _ in found] == [0, *(last for _, last in found)][: len(found)]
        assert [last for _, last in found[-1:]] == [len(shard)][: len(found)]
        sizes = [int(shard.offsets[last] - shard.offsets[first]) for first, last in found]
        assert all(size <= 60 or last - first == 1 for size, (first, last) in zip(sizes, found, strict=True))
        assert not found or max(sizes) > 60, "the corpus has longer documents"


def test_workers_hash_seeds_and_a_kill_do_not_change_a_byte(tmp_path: Path) -> None:
    tokens = write_shards(tmp_path / "tokens", documents=4000, longest=400)
    for name, workers, hash_seed in (("a", "1", "0"), ("b", "2", "1"), ("killed", "1", "2")):
        output = tmp_path / name / "out"
        command = [sys.executable, "-m", "dataprep.suffix_array", str(tokens), str(output), "--workers", workers]
        command += ["--tokens-per-block", "20000"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        if name == "killed":
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
            while not list((tmp_path / name).glob(".work/*/receipts/outputs/output/*.json")) and process.poll() is None:
                time.sleep(0.001)
            process.kill()
            assert process.wait() == -9
            assert not output.exists()
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    assert digests(tmp_path / "a") == digests(tmp_path / "b") == digests(tmp_path / "killed")


def test_what_is_done_is_not_done_again(tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [str(tokens), str(tmp_path / "index"), *SMALL, "--workers", "1", "--log-level", "error"]
    whole, calls = suffix_array.sorted_suffixes, 0

    def stopped(block: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt(2)
        return whole(block)

    monkeypatch.setattr(suffix_array, "sorted_suffixes", stopped)
    spec = StageSpec.load("dataprep.suffix_array")
    assert run_command(spec, words) == 130
    assert not (tmp_path / "index").exists()
    assert run_command(spec, words) == 0
    assert calls == 1 + len(list((tmp_path / "index").glob("suffixes-*.arrow")))
    monkeypatch.setattr(suffix_array, "sorted_suffixes", whole)
    assert run("dataprep.suffix_array", tokens, tmp_path / "again", *SMALL) == 0
    assert digests(tmp_path / "index") == digests(tmp_path / "again")


def test_memory_is_that_of_a_block(tmp_path: Path) -> None:
    """14 bytes a token, whatever the size of the shard: 20 blocks take what one takes."""
    peaks: dict[int, int] = {}
    for documents in (200, 4000):
        tokens = write_shards(tmp_path / str(documents), shards=1, documents=documents, longest=2000)
        script = "import resource, runpy, sys; runpy.run_module('dataprep.suffix_array', run_name='__main__')"
        script = f"import atexit, resource; atexit.register(lambda: print(resource.getrusage(0).ru_maxrss)); {script}"
        words = [str(tokens), str(tmp_path / f"index-{documents}"), "--workers", "1", "--tokens-per-block", "200000"]
        done = subprocess.run(
            [sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, check=True
        )
        peaks[documents] = int(done.stdout) // 1024
    assert peaks[4000] < peaks[200] + 40, "the other 3,800 documents' suffixes alone are 53 MB"


def test_changed_tokens_and_none_are_refused(tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tokens / "part-00002.arrow"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert run("dataprep.suffix_array", tokens, tmp_path / "index") == 1
    assert "part-00002.arrow: changed" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run("dataprep.suffix_array", tmp_path / "empty", tmp_path / "index") == 1
    assert "has no token shards" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_a_shard_with_more_tokens_than_an_index_has_room_for_is_refused(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suffix_array, "_MOST", 1000)
    assert run("dataprep.suffix_array", tokens, tmp_path / "index") == 1
    assert "part-00000.arrow: 1,496 tokens; an index has room for 1,000 of a shard" in capsys.readouterr().err


def test_without_the_library_the_way_to_get_it_is_said(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suffix_array, "find_spec", lambda _: None)
    assert run("dataprep.suffix_array", tokens, tmp_path / "index") == 1
    assert "pip install pydivsufsort" in capsys.readouterr().err
    assert not list((tmp_path / ".work").glob("index-*"))
