"""Sorted runs and their merge, against plain Python on small batches."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.urls import sort
from dataprep.urls.sort import (
    RUN_SCHEMA,
    SCHEMES,
    URL_SCHEMA,
    Run,
    RunWriter,
    Splitter,
    cut_at,
    join_urls,
    merge_range,
    plan,
    split_urls,
    write_parquet,
)
from pipelines import store
from pipelines.command import Part

Row = tuple[str, int, str | None, int, int]
"""key, scheme, original, file, line"""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sort, "BATCH_ROWS", 4)


def write_runs(folder: Path, rows: list[Row], run_rows: int) -> list[Path]:
    """Rows in the order of the input, each `run_rows` of a list a run."""
    folder.mkdir(exist_ok=True)
    for number in sorted({row[3] for row in rows}):
        writer = RunWriter(folder, f"lines-{number:05d}", 1 << 30)
        own = [row for row in rows if row[3] == number]
        for start in range(0, len(own), run_rows):
            columns = [list(column) for column in zip(*own[start : start + run_rows], strict=True)]
            writer.add(pa.table(columns, schema=RUN_SCHEMA))
            writer.flush()
    return sorted(folder.glob("*.ipc"))


def random_rows(seed: int, count: int, spellings: int) -> list[Row]:
    generator = random.Random(seed)
    rows: list[Row] = []
    for i in range(count):
        key = f"garden.test/{generator.randrange(spellings)}"
        scheme = generator.choice([1, 2])
        rows.append((key, scheme, f"{SCHEMES[scheme]}{key}#{i}" if i % 3 == 0 else None, i * 5 // count, i))
    return rows


def rows_of(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    run = Run(file)
    return pa.Table.from_batches(run.batches(0, run.rows), run.schema).to_pylist()


def merge(folder: Path, files: list[Path], range_bytes: int, workers: int) -> tuple[list[Any], list[Any], int]:
    layout = plan(files, ["" for _ in files], ["list"], range_bytes, workers)
    folder.mkdir()
    store.write_json(folder / "plan.json", layout)
    kept: list[Any] = []
    repeated: list[Any] = []
    for number in range(len(layout["splitters"]) + 1):
        name = f"range-{number:05d}"
        counts = merge_range(Part(name, (folder / "plan.json",)), folder)
        found = [rows_of(folder / f"{kind}-{name}.ipc") for kind in ("kept-0", "kept-1", "kept-2", "duplicates")]
        assert counts.rejected.get("duplicate", 0) == len(found[3])
        assert found[0] == []
        kept += sorted(found[1] + found[2], key=lambda row: row["key"])
        repeated += found[3]
    return kept, repeated, len(layout["splitters"])


@pytest.mark.parametrize("spellings", [1, 3, 40, 10_000])
@pytest.mark.parametrize(("range_bytes", "workers", "run_rows"), [(1, 1, 50), (600, 2, 7), (1 << 30, 1, 1000)])
def test_the_first_line_of_each_url_stays_whatever_the_ranges(
    spellings: int, range_bytes: int, workers: int, run_rows: int, tmp_path: Path
) -> None:
    """Also when one URL is repeated so often that a range is cut through its lines."""
    rows = random_rows(spellings, 200, spellings)
    kept, repeated, cuts = merge(tmp_path / "out", write_runs(tmp_path / "runs", rows, run_rows), range_bytes, workers)
    first: dict[str, Row] = {}
    for row in rows:
        first.setdefault(row[0], row)
    assert [tuple(row.values()) for row in kept] == sorted(first.values())
    others = sorted((row for row in rows if row is not first[row[0]]), key=lambda row: (row[0], row[4]))
    assert [tuple(row.values())[:5] for row in repeated] == others
    kept_lines = {key: original or SCHEMES[scheme] + key for key, scheme, original, _, _ in first.values()}
    assert [row["kept"] for row in repeated] == [kept_lines[row[0]] for row in others]
    if range_bytes == 1:
        assert cuts > 20


def test_runs_find_any_place_by_reading_one_batch(tmp_path: Path) -> None:
    rows = sorted(random_rows(1, 50, 12), key=lambda row: row[0])
    [file] = write_runs(tmp_path, [(key, 1, None, 0, i) for i, (key, *_) in enumerate(rows)], 100)
    run = Run(file)
    keys = [row[0] for row in rows]
    for key in [*keys, "", "garden.test/", "garden.test/5x", "~"]:
        assert run.position(key) == sum(other < key for other in keys), key
        assert run.position(key, after=True) == sum(other <= key for other in keys), key
    assert cut_at(run, 3, Splitter(keys[20], 3, 20)) == 20
    assert cut_at(run, 2, Splitter(keys[20], 3, 20)) == run.position(keys[20], after=True)
    assert cut_at(run, 4, Splitter(keys[20], 3, 20)) == run.position(keys[20])
    assert [batch["line"].to_pylist() for batch in run.batches(3, 9)] == [[3], [4, 5, 6, 7], [8]]


def test_urls_are_their_scheme_and_key() -> None:
    urls = ["http://garden.test/", "https://garden.test/http://a", "http://https.test/"]
    keys, schemes = split_urls(pa.array(urls, pa.large_string()))
    assert keys.to_pylist() == ["garden.test/", "garden.test/http://a", "https.test/"]
    assert join_urls(pa.table({"key": keys, "scheme": schemes})).to_pylist() == urls


def test_no_rows_at_all_are_one_empty_range(tmp_path: Path) -> None:
    assert merge(tmp_path / "out", [], 100, 2) == ([], [], 0)


def test_parquet_parts_hold_text_and_equal_bytes(tmp_path: Path) -> None:
    columns = [pa.array(["a"], pa.large_string())] * 2 + [pa.array(["list.txt"]), pa.array([1])]
    for name in ("one", "two"):
        write_parquet(tmp_path / name, columns, URL_SCHEMA)
    assert pq.read_schema(tmp_path / "one") == URL_SCHEMA
    assert store.sha256(tmp_path / "one") == store.sha256(tmp_path / "two")
