"""Parquet from anywhere: the schemas that people have, and the errors for those that hold no text."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.readers.parquet import read_parquet
from dataprep.readers.records import Broken, Record, Text
from pipelines.errors import UserError


def read(path: Path, columns: dict[str, Any], text: str = "text", url: str = "url") -> list[Record]:
    pq.write_table(pa.table(columns), path)
    return list(read_parquet(path, text, url))


def test_the_schemas_of_the_hub(tmp_path: Path) -> None:
    assert read(tmp_path / "owt.parquet", {"text": ["one", "two"]}) == [Text("", "one"), Text("", "two")]
    fineweb = {
        "text": ["words"],
        "id": ["<urn:uuid:1>"],
        "dump": ["CC-MAIN-2013-20"],
        "url": ["http://a.test/"],
        "language_score": [0.9],
        "token_count": [1],
    }
    assert read(tmp_path / "fineweb.parquet", fineweb) == [Text("http://a.test/", "words")]
    ours = {"doc_id": [b"0" * 16], "url": ["http://a.test/"], "text": ["words"], "source": ["a.test"]}
    assert read(tmp_path / "ours.parquet", ours) == [Text("http://a.test/", "words", "a.test")]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["one", "two"], pa.large_string()),
        pa.array(["one", "two"]).dictionary_encode(),
        pa.chunked_array([["one"], ["two"]]),
    ],
)
def test_any_type_of_text_is_text(column: Any, tmp_path: Path) -> None:
    assert read(tmp_path / "a.parquet", {"text": column}) == [Text("", "one"), Text("", "two")]


def test_other_columns_and_fields_of_structs_can_be_named(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "doc": [{"body": {"raw": "words"}, "n": 1}],
        "meta.url": ["http://a.test/dot"],
        "meta": [{"url": "http://a.test/"}],
    }
    assert read(tmp_path / "a.parquet", columns, "doc.body.raw", "meta.url") == [Text("http://a.test/dot", "words")]
    del columns["meta.url"]
    assert read(tmp_path / "b.parquet", columns, "doc.body.raw", "meta.url") == [Text("http://a.test/", "words")]


def test_rows_without_a_text_are_counted_rules(tmp_path: Path) -> None:
    broken = pa.array([b"\xff\xfe", b"good"], pa.binary()).view(pa.string())
    assert read(tmp_path / "a.parquet", {"text": ["good", None], "url": [None, "http://a.test/"]}) == [
        Text("", "good"),
        Broken("a.parquet:2", "no_text", "null"),
    ]
    assert read(tmp_path / "b.parquet", {"text": broken}) == [
        Broken("b.parquet:1", "invalid_utf8", "not valid UTF-8 at byte 0"),
        Text("", "good"),
    ]


@pytest.mark.parametrize(
    ("columns", "text", "url", "message"),
    [
        ({"txt": ["a"]}, "text", "url", r"has no column 'text'. Did you mean 'txt'\?"),
        ({"text": [["a"], ["b"]]}, "text", "url", "column 'text' is list<.*>, expected text"),
        ({"text": [1]}, "text", "url", "column 'text' is int64, expected text"),
        ({"text": [{"raw": "a"}]}, "text.body", "url", "has no column 'text.body'"),
        ({"text": ["a"]}, "text", "link", "has no column 'link'"),
        ({"text": pa.array([None, None], pa.string())}, "text", "url", "none of its 2 rows has a text"),
    ],
)
def test_a_schema_that_cannot_be_read_is_one_clear_line(
    columns: dict[str, Any], text: str, url: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path / "a.parquet", columns, text, url)
    assert "\n" not in str(caught.value)


def test_a_damaged_file_is_one_clear_line(tmp_path: Path) -> None:
    read(tmp_path / "a.parquet", {"text": [f"text {i} " * 50 for i in range(5000)]})
    data = (tmp_path / "a.parquet").read_bytes()
    for damaged in (data[:-100], b"PAR1" + data[4:2000] + b"\xff" * 3000 + data[5000:], b""):
        (tmp_path / "a.parquet").write_bytes(damaged)
        with pytest.raises(UserError, match="not a readable Parquet file"):
            list(read_parquet(tmp_path / "a.parquet", "text", "url"))


def test_one_row_group_of_a_large_file_is_never_held_whole(tmp_path: Path) -> None:
    chance = random.Random(7)
    texts = [chance.randbytes(50_000).hex() for _ in range(600)]
    pq.write_table(
        pa.table({"text": texts}),
        tmp_path / "a.parquet",
        row_group_size=10**9,
        compression="zstd",
        use_dictionary=False,
        write_batch_size=8,
    )
    code = (
        "import sys, pathlib, pyarrow as pa; from dataprep.readers import parquet\n"
        "parquet._BATCH_BYTES = 1 << 20\n"
        "n = sum(1 for _ in parquet.read_parquet(pathlib.Path(sys.argv[1]), 'text', 'url'))\n"
        "print(n, pa.default_memory_pool().max_memory())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.parquet")]
    rows, peak = map(int, subprocess.run(command, capture_output=True, check=True).stdout.split())
    assert (tmp_path / "a.parquet").stat().st_size > 25_000_000
    assert rows == 600
    assert peak < 20_000_000


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_a_row_with_a_blank_text_is_empty_text(text: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [text, "x"]}), tmp_path / "a.parquet")
    first, second = read_parquet(tmp_path / "a.parquet", "text", "url")
    assert isinstance(first, Broken)
    assert (first.url, first.rule) == ("a.parquet:1", "empty_text")
    assert isinstance(second, Text)
