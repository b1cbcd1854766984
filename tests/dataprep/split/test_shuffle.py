"""The shuffle on disk: exact places for keys, buckets and runs of bounded size, the same bytes for any memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.split import shuffle
from dataprep.split.shuffle import Layout, RunWriter, choose_layout, first_key, gather, scale_keys

SCHEMA = pa.schema([("name", pa.string()), ("text", pa.string())])


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1))
def test_a_key_scales_to_its_shard_exactly(key: int, count: int) -> None:
    shard = int(scale_keys(np.array([key], np.uint64), np.uint64(count))[0])
    assert shard == key * count >> 64
    assert first_key(shard, count) <= key < first_key(shard + 1, count)


@pytest.mark.parametrize("gigabytes", [1, 40, 250, 20_000])
@pytest.mark.parametrize("memory", [64 << 20, 1 << 30])
def test_files_and_segments_stay_few_at_any_size(gigabytes: int, memory: int) -> None:
    """50 million documents are some 250 GB and 2,500 shards of 20,000."""
    layout = choose_layout((gigabytes * 10, 1), gigabytes << 30, memory, SCHEMA)
    runs, buckets = (gigabytes << 30) / layout.run_bytes, layout.first_buckets[-1]
    assert layout.run_bytes <= memory
    assert (gigabytes << 30) / (runs * buckets) >= shuffle.SEGMENT / 2
    assert runs <= 320_000


def shuffled(folder: Path, layout: Layout, keys: np.ndarray, sides: np.ndarray, texts: list[str]) -> list[Path]:
    """The shards of both sides, in order; rows are scattered in batches of ten."""
    runs = RunWriter(folder, "runs", layout)
    names = [f"row {i}" for i in range(len(keys))]
    for i in range(0, len(keys), 10):
        here = slice(i, i + 10)
        runs.add(pa.record_batch([names[here], texts[here]], schema=SCHEMA), keys[here], sides[here])
    runs.flush()
    for side, count in enumerate(layout.shards):
        (folder / str(side)).mkdir()
        for first in range(0, count, layout.width):
            gather(sorted(folder.glob("*.ipc")), layout, side, first, folder / str(side))
    return [folder / str(side) / f"part-{i:05d}.parquet" for side, n in enumerate(layout.shards) for i in range(n)]


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Keys, sides and texts of 1,000 rows; some keys are equal."""
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 2**64, 1000, dtype=np.uint64)
    keys[100:133] = keys[0]
    return keys, (rng.random(1000) < 0.2).astype(np.int64), ["x" * int(n) for n in rng.integers(0, 200, 1000)]


@pytest.mark.parametrize(("width", "run_bytes"), [(1, 1 << 20), (3, 3000), (9, 1000)])
def test_the_shards_are_the_same_for_any_runs_and_buckets(
    tmp_path: Path, rows: tuple[np.ndarray, np.ndarray, list[str]], width: int, run_bytes: int
) -> None:
    """Rows with equal keys stay in the order of the input; small runs make a bucket be read in ranges of keys."""
    keys, sides, texts = rows
    files = shuffled(tmp_path, Layout((7, 2), width, run_bytes, SCHEMA), keys, sides, texts)
    expected = [
        [f"row {i}" for i in np.lexsort((np.arange(1000), keys)).tolist() if (sides[i], int(keys[i]) * n >> 64) == at]
        for side, n in enumerate((7, 2))
        for at in [(side, shard) for shard in range(n)]
    ]
    assert [pq.read_table(file)["name"].to_pylist() for file in files] == expected
    assert run_bytes > 10_000 or len(list(tmp_path.glob("*.ipc"))) > 20
    once = tmp_path / "once.parquet"
    for file in files:  # the bytes of a table that is written at once
        table = pq.read_table(file)
        pq.write_table(table, once, 1024, compression="zstd", compression_level=3)
        assert file.read_bytes() == once.read_bytes()


def test_no_more_rows_are_held_than_the_memory_is_for(
    tmp_path: Path, rows: tuple[np.ndarray, np.ndarray, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket of ten times the memory is read in ranges of keys; runs end when they are full."""
    keys, sides, texts = rows
    held: list[int] = []
    whole = shuffle.read_range

    def noted(*given: Any) -> Iterator[pa.RecordBatch]:
        for batch in whole(*given):
            held.append(batch.nbytes)
            yield batch

    monkeypatch.setattr(shuffle, "read_range", noted)
    shuffled(tmp_path, Layout((7, 2), 9, 7_000, SCHEMA), keys, sides, texts)
    assert len(held) > 10
    assert max(held) < 10_500
    runs = [pa.ipc.open_file(str(file)) for file in tmp_path.glob("*.ipc")]
    assert max(sum(run.get_batch(i).nbytes for i in range(run.num_record_batches)) for run in runs) < 9_500


def test_long_rows_end_a_row_group_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffle, "ROW_GROUP_BYTES", 1000)
    keys = np.arange(100, dtype=np.uint64) << np.uint64(57)
    texts = ["y" * 1500 if i % 10 == 9 else "y" * 100 for i in range(100)]
    (file,) = shuffled(tmp_path, Layout((1,), 1, 5000, SCHEMA), keys, np.zeros(100, np.int64), texts)
    groups = pq.ParquetFile(file)
    sizes = [groups.read_row_group(i)["text"].to_pylist() for i in range(groups.num_row_groups)]
    assert [text for group in sizes for text in group] == texts
    assert all(sum(map(len, group[:-1])) < 1000 for group in sizes)
    assert len(sizes) == 10


def test_a_shard_without_rows_is_a_file_too(tmp_path: Path) -> None:
    keys = np.zeros(3, np.uint64)
    files = shuffled(tmp_path, Layout((4,), 2, 1 << 20, SCHEMA), keys, np.zeros(3, np.int64), ["a"] * 3)
    assert [pq.read_metadata(file).num_rows for file in files] == [3, 0, 0, 0]
