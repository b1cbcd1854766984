"""Keys beside the text: what of them is kept, that it comes back, and that no value costs a document."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines import documents
from pipelines.documents import DOCUMENT_SCHEMA, DocumentWriter, TableWriter, read_rows
from pipelines.jsonl import ingest_jsonl, parse_document, write_lines
from pipelines.metadata import DEEPEST, METADATA, METADATA_FIELD, metadata_of, object_text, with_keys

VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


def kept(line: str, text_key: str = "text", url_key: str = "url") -> Any:
    return parse_document(line.encode("utf-8", "surrogatepass"), "a.jsonl", text_key, url_key).get(METADATA)


@pytest.mark.parametrize(
    ("line", "metadata"),
    [
        ('{"text": "x"}', None),
        ('{"text": "x", "url": "u", "source": "s", "doc_id": "00"}', None),
        ('{"domain": "a.test", "text": "x", "date": 2019, "id": null}', '{"domain":"a.test","date":2019,"id":null}'),
        ('{"text": "x", "b": 1, "a": {"z": 0, "y": [1.0, true]}}', '{"b":1,"a":{"z":0,"y":[1.0,true]}}'),
        ('{"a": 1, "text": "x", "b": 2, "a": 3}', '{"a":3,"b":2}'),
        ('{"text": "x", "n": NaN, "m": -Infinity, "l": [1e999]}', '{"n":null,"m":null,"l":[null]}'),
        ('{"text": "x", "id": 123456789012345678901234567890}', '{"id":123456789012345678901234567890}'),
        ('{"text": "x", "id": [18446744073709551616], "f": 1e300}', '{"id":[18446744073709551616],"f":1e+300}'),
        ('{"text": "x", "half": "\\ud83d!", "\\ud83d": 1}', '{"half":"\ufffd!","\ufffd":1}'),
        ('{"text": "x", "metadata": {"a": 1}}', '{"metadata":{"a":1}}'),
        ('{"text": "x", "": 0}', '{"":0}'),
    ],
)
def test_further_keys_are_kept_in_their_order(line: str, metadata: str | None) -> None:
    assert kept(line) == metadata


def test_a_key_that_is_ours_is_kept_where_another_is_the_text() -> None:
    record = '{"content": "x", "text": "short", "link": "http://a.test/", "url": 5}'
    assert kept(record, "content", "link") == '{"text":"short","url":5}'


@pytest.mark.parametrize("depth", [DEEPEST - 1, DEEPEST, 900])
def test_what_is_nested_too_deep_is_null_and_costs_nothing_else(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    value = json.loads(kept('{"text": "x", "deep": ' + nested + ', "n": 1}'))
    assert value["n"] == 1
    levels, inner = 1, value["deep"]
    while inner:
        levels, inner = levels + 1, inner[0]
    assert levels == min(depth, DEEPEST)
    assert inner == ([] if depth < DEEPEST else None)


def test_many_brackets_are_not_deep() -> None:
    assert json.loads(kept(json.dumps({"text": "x", "flat": [[]] * 300, "s": "[" * 300}))) == {
        "flat": [[]] * 300,
        "s": "[" * 300,
    }


@given(st.dictionaries(st.text(), VALUES, min_size=1), st.sets(st.sampled_from(["text", "url", "b"])))
def test_all_that_json_can_say_comes_back(extra: dict[str, Any], names: set[str]) -> None:
    extra = {key: value for key, value in extra.items() if key not in ("text", "url", "source", "doc_id")}
    text = metadata_of({"text": "x", **extra}, ("text", "url", "source"))
    assert (json.loads(text) if text else {}) == extra
    row = dict.fromkeys([*sorted(names), "doc_id"], "ours")
    line, left_out = with_keys(orjson.dumps(row), list(row), object_text(extra))
    assert json.loads(line) == {**extra, **row}
    assert left_out == [key for key in extra if key in row]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_the_bytes_of_a_shard_do_not_depend_on_when_the_first_metadata_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(documents, "ROW_GROUP_ROWS", 10)
    wide = DOCUMENT_SCHEMA.append(METADATA_FIELD)
    for first in (0, 5, 10, 25, 29):
        rows = [
            {"doc_id": bytes(16), "url": "", "text": f"text {number}", "source": "s", METADATA: None}
            for number in range(30)
        ]
        rows[first][METADATA] = '{"n":1}'
        late, known = tmp_path / f"{first}{suffix}", tmp_path / f"{first}-known{suffix}"
        with DocumentWriter(late, DOCUMENT_SCHEMA) as table:
            for row in rows:
                table.write(row if row[METADATA] else {name: row[name] for name in DOCUMENT_SCHEMA.names})
        with TableWriter(known, wide) as table:
            for row in rows:
                table.write(row)
        assert late.read_bytes() == known.read_bytes()
        assert [path.name for path in tmp_path.glob("*narrow*")] == []


def test_lines_have_their_keys_again_and_columns_win(tmp_path: Path) -> None:
    records = [
        {"text": "one", "url": "http://a.test/", "source": "s", "domain": "a.test", "id": 2**70},
        {"text": "two", "doc_id": "mine", "metadata": [1]},
        {"text": "three"},
    ]
    source = tmp_path / "raw.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    ingest_jsonl(source, tmp_path, "file", 0, alone=True)
    assert write_lines(tmp_path / "file-00000.arrow", tmp_path / "out.jsonl") == []
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    ids = [line.pop("doc_id") for line in lines]
    assert all(len(each) == 32 for each in ids)
    assert list(lines[0]) == ["url", "text", "source", "domain", "id"]
    assert lines == [
        records[0],
        {"url": "", "text": "two", "source": "raw.jsonl", "metadata": [1]},
        {"url": "", "text": "three", "source": "raw.jsonl"},
    ]
    rows = list(read_rows(tmp_path / "file-00000.arrow"))
    assert [row[METADATA] for row in rows] == [f'{{"domain":"a.test","id":{2**70}}}', '{"metadata":[1]}', None]


def test_without_further_keys_there_is_no_column(tmp_path: Path) -> None:
    (tmp_path / "raw.jsonl").write_text('{"text": "one", "url": "u"}\n')
    ingest_jsonl(tmp_path / "raw.jsonl", tmp_path, "file", 0, alone=True)
    assert list(next(read_rows(tmp_path / "file-00000.arrow"))) == DOCUMENT_SCHEMA.names
