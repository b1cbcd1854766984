"""Documents: JSONL in, Parquet shards, JSONL out; broken lines are counted and never lose the good ones."""

import gzip
import json
import lzma
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import store
from pipelines.documents import (
    DOCUMENT_SCHEMA,
    ShardWriter,
    TableWriter,
    ingest_jsonl,
    is_jsonl,
    read_rows,
    write_jsonl,
)
from pipelines.errors import UserError
from pipelines.identity import document_id

GOOD = {"url": "http://a.test/1", "text": "wörds and words\nmore", "source": "a.test"}


def line(record: object) -> bytes:
    return json.dumps(record).encode() + b"\n"


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (b"{not json\n", "invalid_json"),
        (b'{"text": "\xff\xfe"}\n', "invalid_utf8"),
        (line({"text": "\ud800"}), "invalid_utf8"),
        (line(["a", "list"]), "not_an_object"),
        (line({"url": "http://a.test/2"}), "no_text"),
        (line({"text": 5}), "text_not_text"),
        (line({"text": "fine", "url": 7}), "url_not_text"),
        (line({"text": None}), "text_not_text"),
        (b"[" * 100_000 + b"\n", "invalid_json"),
    ],
)
def test_a_broken_line_is_counted_with_its_place_and_the_others_stay(tmp_path: Path, broken: bytes, rule: str) -> None:
    source = tmp_path / "raw.jsonl"
    source.write_bytes(line(GOOD) + broken + b"\n" + line(GOOD))
    counts = ingest_jsonl(source, tmp_path, "file-00000")
    assert (counts.rows_in, counts.rows_out, counts.rejected) == (3, 2, {rule: 1})
    (rejected,) = read_rows(tmp_path / "rejected" / "file-00000.parquet")
    assert (rejected["url"], rejected["rule"]) == ("raw.jsonl:2", rule)
    first, _ = read_rows(tmp_path / "file-00000-00000.parquet")
    assert first == {**GOOD, "doc_id": document_id(GOOD["url"], GOOD["text"])}


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_compressed_lines_are_read_and_a_truncated_file_says_where_it_ends(tmp_path: Path, suffix: str) -> None:
    data = b"".join(line({**GOOD, "text": f"text {i} {hash(str(i))}"}) for i in range(20_000))
    packed = tmp_path / f"raw.jsonl{suffix}"
    if suffix == ".zst":
        with pa.CompressedOutputStream(str(packed), "zstd") as out:
            out.write(data)
    else:
        packed.write_bytes((gzip if suffix == ".gz" else lzma).compress(data))
    assert sum(1 for _ in store.read_lines(packed)) == 20_000
    packed.write_bytes(packed.read_bytes()[: packed.stat().st_size // 2])
    with pytest.raises(UserError, match=r"raw\.jsonl.* the compressed data is cut off") as caught:
        list(store.read_lines(packed))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_gzip_despite_its_name_is_one_clear_line(tmp_path: Path) -> None:
    fake = tmp_path / "raw.jsonl.gz"
    fake.write_bytes(line(GOOD))
    with pytest.raises(UserError, match="cut off, damaged or of another kind"):
        list(store.read_lines(fake))


def test_an_empty_file_gives_no_documents_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    counts = ingest_jsonl(tmp_path / "empty.jsonl", tmp_path, "file-00000")
    assert (counts.rows_in, counts.rows_out) == (0, 0)


def test_large_inputs_are_cut_into_fixed_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.documents.INGEST_ROWS", 4)
    source = tmp_path / "raw.jsonl"
    source.write_bytes(b"".join(line({"text": str(i)}) for i in range(10)))
    ingest_jsonl(source, tmp_path, "file-00000")
    shards = sorted(tmp_path.glob("file-*.parquet"))
    assert [[row["text"] for row in read_rows(shard)] for shard in shards] == [
        ["0", "1", "2", "3"],
        ["4", "5", "6", "7"],
        ["8", "9"],
    ]


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


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.jsonl.zst"])
def test_jsonl_out_is_the_same_bytes_each_time_and_reads_back(tmp_path: Path, name: str) -> None:
    with TableWriter(tmp_path / "part-00000.parquet", DOCUMENT_SCHEMA) as table:
        table.write({**GOOD, "doc_id": bytes(16)})
    for folder in ("one", "two"):
        write_jsonl([tmp_path / "part-00000.parquet"], tmp_path / folder / name)
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    (text,) = store.read_lines(tmp_path / "one" / name)
    assert json.loads(text) == {**GOOD, "doc_id": "00" * 16}


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
