"""JSON lines as records: the rules are those of `pipelines.documents`, and other keys can be named."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from dataprep.sources.jsonl_reader import read_json_lines
from dataprep.sources.records import Broken, Record, Text
from pipelines.documents import read_rows
from pipelines.errors import UserError
from pipelines.jsonl import ingest_jsonl

LINES = [
    {"text": "one", "url": "http://a.test/1", "source": "here", "more": 1},
    {"text": "two"},
    {"text": 3},
    {"body": "no text"},
    ["not", "an", "object"],
]


def write(path: Path) -> Path:
    path.write_bytes(gzip.compress(b"\n\n".join(json.dumps(line).encode() for line in LINES) + b"\nbroken\n\xff\n"))
    return path


def test_lines_are_texts_or_say_why_not(tmp_path: Path) -> None:
    records: list[Record] = list(read_json_lines(write(tmp_path / "a.jsonl.gz"), "text", "url"))
    assert records[:2] == [Text("http://a.test/1", "one", "here"), Text("", "two", "a.jsonl.gz")]
    assert [(record.url, record.rule) for record in records if isinstance(record, Broken)] == [
        ("a.jsonl.gz:5", "text_not_text"),
        ("a.jsonl.gz:7", "no_text"),
        ("a.jsonl.gz:9", "not_an_object"),
        ("a.jsonl.gz:10", "invalid_json"),
        ("a.jsonl.gz:11", "invalid_utf8"),
    ]


def test_the_other_stages_read_the_same_lines_the_same_way(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl.gz")
    records = list(read_json_lines(file, "text", "url"))
    counts = ingest_jsonl(file, tmp_path, "out", 0, alone=True)
    rows = list(read_rows(tmp_path / "out-00000.parquet"))
    broken = list(read_rows(tmp_path / "broken" / "out-00000.parquet"))
    assert [Text(row["url"], row["text"], row["source"]) for row in rows] == records[:2]
    assert [Broken(f"a.jsonl.gz:{row['line']}", row["rule"], row["value"]) for row in broken] == records[2:]
    assert (counts.rows_in, counts.rows_out) == (7, 2)


def test_other_keys_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"content": "words", "link": "http://a.test/"}\n')
    assert list(read_json_lines(tmp_path / "a.jsonl", "content", "link")) == [
        Text("http://a.test/", "words", "a.jsonl")
    ]
    with pytest.raises(UserError, match=r"none of its 1 lines is a document; line 1: has no key 'body'"):
        list(read_json_lines(tmp_path / "a.jsonl", "body", "url"))


@pytest.mark.parametrize("key", ["text", "url", "source"])
def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands(key: str, tmp_path: Path) -> None:
    line = json.dumps({"text": "words", key: "\ud800"})
    (tmp_path / "a.jsonl").write_text(f'{{"text": "good"}}\n{line}\n')
    counts = ingest_jsonl(tmp_path / "a.jsonl", tmp_path, "out", 0, alone=True)
    assert (counts.rows_out, counts.rejected) == (1, {"invalid_utf8": 1})


def test_a_line_without_end_is_refused_and_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.jsonl.MAX_LINE_BYTES", 1 << 20)
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(b'{"text": "before"}\n')
        for _ in range(40):
            file.write(b" " * (1 << 20))
        file.write(b'\n{"text": "after"}\n')
    tracemalloc.start()
    records = list(read_json_lines(tmp_path / "a.jsonl.gz", "text", "url"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert [record.text if isinstance(record, Text) else record for record in records] == [
        "before",
        Broken("a.jsonl.gz:2", "too_large", "longer than 1048576 bytes"),
        "after",
    ]


def test_suffixes_may_be_in_capitals(tmp_path: Path) -> None:
    file = write(tmp_path / "A.JSONL.GZ")
    assert len(list(read_json_lines(file, "text", "url"))) == 7


@pytest.mark.parametrize("text", ["", " \\n\\t"])
def test_a_line_with_a_blank_text_is_empty_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "{text}"}}\n{{"text": "x"}}\n')
    first, second = read_json_lines(tmp_path / "a.jsonl", "text", "url")
    assert isinstance(first, Broken)
    assert (first.url, first.rule) == ("a.jsonl:1", "empty_text")
    assert isinstance(second, Text)
