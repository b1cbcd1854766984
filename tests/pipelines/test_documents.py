"""Document shards: equal rows are equal bytes, bounded in memory, and a damaged file is one clear line."""

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipelines.documents
from pipelines.documents import (
    DOCUMENT_SCHEMA,
    ShardWriter,
    TableWriter,
    count_rows,
    in_scratch,
    is_jsonl,
    open_parquet,
    read_batches,
    read_rows,
    read_schema,
)
from pipelines.errors import UserError

GOOD = {"url": "http://a.test/1", "text": "wörds and words\nmore", "source": "a.test"}


def test_the_shard_writer_counts_what_it_keeps_and_rejects(tmp_path: Path) -> None:
    row = {**GOOD, "doc_id": b"0123456789abcdef", "score": 0.5}
    with ShardWriter(tmp_path, "part-00000", [pa.field("score", pa.float64())]) as shard:
        shard.keep(row)
        shard.reject(row, "too_long", 7)
    assert list(read_rows(tmp_path / "part-00000.parquet")) == [{**row}]
    (rejected,) = read_rows(tmp_path / "rejected" / "part-00000.parquet")
    assert rejected == {"doc_id": row["doc_id"], "url": row["url"], "rule": "too_long", "value": "7"}
    assert (shard.counts.rows_in, shard.counts.rows_out, shard.counts.rejected) == (2, 1, {"too_long": 1})
    assert shard.counts.totals == {"text_bytes": len(GOOD["text"].encode())}


def test_rejected_rows_have_the_columns_that_a_stage_adds(tmp_path: Path) -> None:
    row = {**GOOD, "doc_id": bytes(16)}
    with ShardWriter(tmp_path, "part-00000", rejected_extra=[pa.field("threshold", pa.string())]) as shard:
        shard.reject(row, "too_long", 7, threshold="at most 6")
    (rejected,) = read_rows(tmp_path / "rejected" / "part-00000.parquet")
    assert (rejected["value"], rejected["threshold"]) == ("7", "at most 6")


def test_equal_rows_give_equal_bytes_and_a_cut_file_is_one_clear_line(tmp_path: Path) -> None:
    for name in ("a.parquet", "b.parquet"):
        with TableWriter(tmp_path / name, DOCUMENT_SCHEMA) as table:
            for number in range(3000):
                table.write({**GOOD, "doc_id": number.to_bytes(16, "big")})
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-10])
    with pytest.raises(UserError, match="not a readable Parquet file"):
        list(read_rows(tmp_path / "a.parquet"))
    with pytest.raises(UserError, match="has no column texts"):
        list(read_rows(tmp_path / "b.parquet", ["texts"]))


def numbered(count: int, text: str = "words") -> list[dict[str, Any]]:
    return [{**GOOD, "text": f"{text} {i}", "doc_id": i.to_bytes(16, "big")} for i in range(count)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with TableWriter(path, DOCUMENT_SCHEMA) as table:
        for row in rows:
            table.write(row)
    return path


@pytest.mark.parametrize("count", [0, 1, 1024, 2500])
def test_a_shard_is_what_arrow_writes_of_the_same_rows_1024_at_a_time(count: int, tmp_path: Path) -> None:
    rows = numbered(count)
    path = write(tmp_path / "made.parquet", rows)
    with pq.ParquetWriter(tmp_path / "expected", DOCUMENT_SCHEMA, compression="zstd", compression_level=3) as writer:
        for start in range(0, count, 1024):
            writer.write_table(pa.Table.from_pylist(rows[start : start + 1024], DOCUMENT_SCHEMA), 1024)
    assert path.read_bytes() == (tmp_path / "expected").read_bytes()


def test_a_row_group_ends_early_when_it_holds_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines.documents, "ROW_GROUP_BYTES", 5000)
    rows = numbered(10) + numbered(3, "x" * 6000) + numbered(2000)
    path = write(tmp_path / "a.parquet", rows)
    groups = pq.read_metadata(path)
    sizes = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
    assert sizes[:3] == [11, 1, 1]
    assert all(size < 200 for size in sizes)
    assert list(read_rows(path)) == rows
    assert [batch.num_rows for batch in read_batches(path)] == sizes  # joined, rows of many groups would pass 2 GiB


def test_files_in_scratch_have_the_same_rows_and_are_not_compressed(tmp_path: Path) -> None:
    rows = numbered(2000)
    published = write(tmp_path / "published.parquet", rows)
    with in_scratch(True):
        scratch = write(tmp_path / "scratch.parquet", rows)
    assert list(read_rows(scratch)) == list(read_rows(published)) == rows
    assert pq.read_metadata(scratch).row_group(0).column(2).compression == "UNCOMPRESSED"
    assert write(tmp_path / "again.parquet", rows).read_bytes() == published.read_bytes()


def test_an_optional_table_without_rows_leaves_nothing(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "rejected" / "a.parquet", DOCUMENT_SCHEMA, optional=True):
        pass
    assert not (tmp_path / "rejected").exists()


def test_text_bytes_count_utf8_and_only_what_is_kept(tmp_path: Path) -> None:
    with ShardWriter(tmp_path, "part-00000") as shard:
        for row in numbered(1500, "ü𝄞"):
            shard.keep(row)
            shard.reject(row, "rule", "")
    texts = (row["text"] for row in numbered(1500, "ü𝄞"))
    assert shard.counts.totals == {"text_bytes": sum(len(text.encode()) for text in texts)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", True),
        ("a.json.gz", True),
        ("a.ndjson.zst", True),
        ("a.txt", False),
        ("a.gz", False),
        ("folder", False),
    ],
)
def test_jsonl_is_known_by_its_name(name: str, expected: bool) -> None:
    assert is_jsonl(Path(name)) is expected


def test_a_shard_with_any_byte_changed_is_read_or_named_in_one_line(tmp_path: Path) -> None:
    """In the footer, in a page, in a header: never a traceback of Arrow's, and never an error without the file."""
    file = tmp_path / "part-00000.parquet"
    with TableWriter(file, DOCUMENT_SCHEMA) as table:
        for number in range(50):
            table.write({"doc_id": bytes(16), "url": f"http://a.test/{number}", "text": "miller " * 20, "source": "a"})
    good, chance, said = file.read_bytes(), random.Random(5), list[str]()
    for _ in range(300):
        at = chance.randrange(len(good))
        file.write_bytes(good[:at] + bytes([good[at] ^ 1 << chance.randrange(8)]) + good[at + 1 :])
        for read in (count_rows, read_schema, lambda path: list(read_rows(path))):
            try:
                read(file)
            except UserError as error:
                said.append(str(error))
    assert len(said) > 100
    start = f"{file}: not a readable Parquet file ("
    assert [line for line in said if not line.startswith(start) or not line.isprintable()] == []


def test_rows_written_as_columns_are_row_groups_between_the_others(tmp_path: Path) -> None:
    row = {"doc_id": bytes(16), "url": "http://a.test/1", "text": "wörds", "source": "a"}
    columns = [pa.array([row[field.name]] * 3, field.type) for field in DOCUMENT_SCHEMA]
    with TableWriter(tmp_path / "part.parquet", DOCUMENT_SCHEMA) as table:
        table.write(row)
        table.write_columns(columns)
        table.write(row)
    assert list(read_rows(tmp_path / "part.parquet")) == [row] * 5
    assert (table.rows, table.text_bytes) == (5, 5 * len("wörds".encode()))
    with open_parquet(tmp_path / "part.parquet") as file:
        assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [1, 3, 1]
