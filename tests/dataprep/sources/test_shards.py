"""Document shards of a part: their rows, their size, their counts."""

from pathlib import Path

import pytest

from dataprep.sources import shards
from dataprep.sources.records import Broken, Skipped, Text
from dataprep.sources.shards import DocumentShards
from pipelines.documents import read_rows
from pipelines.identity import document_id


def test_shards_end_at_a_fixed_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "INGEST_ROWS", 3)
    with DocumentShards(tmp_path, "part-00007", "x") as out:
        for i in range(7):
            out.add(Text("", str(i)))
    rows = [[row["text"] for row in read_rows(tmp_path / f"part-00007-{i:05d}.parquet")] for i in range(3)]
    assert rows == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert not (tmp_path / "rejected").exists()


def test_every_record_is_a_row_or_a_count(tmp_path: Path) -> None:
    with DocumentShards(tmp_path, "p", "corpus.jsonl") as out:
        out.add(Text("http://www.garden.co.uk/a", "eins"))
        out.add(Text("a/b.txt", "zwei"))
        out.add(Text("", "drei", "said"))
        out.add(Broken("file at byte 7", "damaged_record", "x"))
        out.add(Skipped("request"))
        out.add(Skipped("request"))
    rows = list(read_rows(tmp_path / "p-00000.parquet"))
    assert [row["source"] for row in rows] == ["garden.co.uk", "corpus.jsonl", "said"]
    assert rows[1]["doc_id"] == document_id("a/b.txt", "zwei")
    assert list(read_rows(tmp_path / "rejected" / "p.parquet")) == [
        {"doc_id": None, "url": "file at byte 7", "rule": "damaged_record", "value": "x"}
    ]
    counts = out.counts
    assert (counts.rows_in, counts.rows_out, counts.rejected) == (4, 3, {"damaged_record": 1})
    assert counts.totals == {"text_bytes": 12, "skipped_request": 2}


def test_a_part_without_rows_is_one_empty_shard(tmp_path: Path) -> None:
    with DocumentShards(tmp_path, "p", ""):
        pass
    assert list(read_rows(tmp_path / "p-00000.parquet")) == []
