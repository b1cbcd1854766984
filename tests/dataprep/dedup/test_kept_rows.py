"""KeptRows: the bytes that ShardWriter makes of the same rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dataprep.dedup.kept_rows import KeptRows
from pipelines import documents
from pipelines.documents import DOCUMENT_FIELDS, ShardWriter, read_batches, read_rows

EXTRA = [pa.field("score", pa.float64()), pa.field("language", pa.string()), pa.field("tags", pa.list_(pa.string()))]
SCHEMA = pa.schema([*DOCUMENT_FIELDS, *EXTRA])


def rows(number: int) -> Iterator[dict[str, Any]]:
    for i in range(number):
        text = f"Grain number {i} is as fine as Mühlenmehl. " * (1 + i % 7)
        yield {
            "doc_id": i.to_bytes(16, "little"),
            "url": f"http://a.example/{i}",
            "text": text,
            "source": "web",
            "score": None if i % 5 else i / 3,
            "language": None if i % 11 else "de",
            "tags": ["a"] * (i % 3),
        }


def written(folder: Path, number: int, keep: Any) -> tuple[bytes, bytes]:
    """What the two writers make of the kept ones of so many rows."""
    with ShardWriter(folder, "part-00000", EXTRA) as all_rows:
        for row in rows(number):
            all_rows.keep(row)
    source = folder / "part-00000.parquet"
    with ShardWriter(folder / "one by one", "part-00000", EXTRA) as shard:
        for i, row in enumerate(read_rows(source)):
            if keep(i):
                shard.keep(row)
    first = 0
    with KeptRows(folder / "kept.parquet", SCHEMA) as kept:
        for batch in read_batches(source):
            kept.write(batch.filter(pa.array([keep(first + i) for i in range(batch.num_rows)], pa.bool_())))
            first += batch.num_rows
    assert kept.rows == shard.counts.rows_out
    assert kept.text_bytes == shard.counts.totals.get("text_bytes", 0)
    return (folder / "kept.parquet").read_bytes(), (folder / "one by one" / "part-00000.parquet").read_bytes()


@pytest.mark.parametrize("number", [0, 1, 1024, 3000])
def test_kept_rows_are_the_file_that_the_rows_one_by_one_are(number: int, tmp_path: Path) -> None:
    kept, expected = written(tmp_path, number, lambda i: i % 4 != 1)
    assert kept == expected


def test_nothing_kept_is_a_file_without_rows(tmp_path: Path) -> None:
    kept, expected = written(tmp_path, 2000, lambda i: False)
    assert kept == expected


@pytest.mark.parametrize("limit", [100, 5000, 100_000])
def test_row_groups_end_early_at_the_same_rows(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "ROW_GROUP_BYTES", limit)
    kept, expected = written(tmp_path, 2500, lambda i: i % 9 != 0)
    assert kept == expected
