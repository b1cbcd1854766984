"""JSON lines in C give what Python gives, whatever the lines, and survive any argument."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines import jsonl
from pipelines.documents import DOCUMENT_SCHEMA, read_rows
from pipelines.native import lines as native

pytestmark = pytest.mark.skipif(native.module() is None, reason="the native kernel is not built here")

TRICKY = 'aé日😀"\\/\b\f\n\r\t\x00\x1f\x7f\u2028'
STRINGS = (
    st.text(alphabet=TRICKY) | st.text() | st.builds(lambda text, times: text * times, st.text(), st.integers(1, 40))
)
LONE = st.text(st.characters(codec=None), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | STRINGS | LONE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(["text", "url", "source", "doc_id", "metadata", "date", "é", "te\\xt"])
RECORDS = st.lists(st.tuples(KEYS, STRINGS | VALUES), max_size=5)


def record_line(pairs: list[tuple[str, Any]], ascii_only: bool, gap: str) -> bytes:
    """Return an object with these keys in this order, also twice."""
    members = [f"{json.dumps(key)}{gap}:{gap}{json.dumps(value, ensure_ascii=ascii_only)}" for key, value in pairs]
    return f"{gap}{{{gap}{f'{gap},'.join(members)}{gap}}}{gap}".encode("utf-8", "surrogatepass")


DOCUMENTS = st.builds(
    lambda text, url, pairs, plain, gap: record_line([("text", text), *pairs, ("url", url)], plain, gap),
    STRINGS,
    STRINGS,
    RECORDS,
    st.booleans(),
    st.sampled_from(["", "", " ", "\t", "\r "]),
)
LINES = DOCUMENTS | st.builds(record_line, RECORDS, st.booleans(), st.just("")) | st.binary(max_size=30)


@contextlib.contextmanager
def in_python() -> Generator[None, None, None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, "python")
        native.module.cache_clear()
        yield
    native.module.cache_clear()


def ingested(lines: list[bytes], end: bytes, folder: Path) -> dict[str, bytes]:
    source = folder / "some.jsonl"
    source.write_bytes(end.join(lines))
    counts = jsonl.ingest_jsonl(source, folder / "out", "file", 0, alone=False)
    files = sorted(path for path in (folder / "out").rglob("file-*") if path.is_file())
    return {file.name + file.parent.name: file.read_bytes() for file in files} | {"counts": repr(counts).encode()}


def damaged(line: bytes, place: int, cut: int, garbage: bytes) -> bytes:
    place %= len(line) + 1
    return line[:place] + garbage + line[place + cut :]


DAMAGED = st.builds(damaged, DOCUMENTS, st.integers(0, 10**6), st.integers(0, 3), st.binary(max_size=3))


@given(st.lists(LINES | DAMAGED, max_size=8), st.sampled_from([b"\n", b"\r\n", b"\n\n"]))
@example([b'{"text":"a","n":1e999}', b'{"text":"b","n":[1,{"x":"]}"}]}', b'{"text":"c","n":[}]}'], b"\n")
@example(
    [b'{"text":"\\ud83d\\ude00\\u00e9"}', b'{"text":"\\ud83d"}', b'{"text":"\\ud83dx"}', b'{"text":"\\udc00"}'], b"\n"
)
@example(
    [b'{"text":"\xc0\x80"}', b'{"text":"\xed\xa0\x80"}', b'{"text":"\xf4\x90\x80\x80"}', b'{"text":"\xe2\x82"}'], b"\n"
)
@example([b'{"text":"a"}', b'\xef\xbb\xbf{"text":"b"}', b"\x0b \x0c", b'{"text":"c"}x', b'{"text":"d",}'], b"\n")
@example(
    [b'{"doc_id":"\\n","text":"a"}', b'{"text":"b","doc_id":7}', b'{"t\\u0065xt":"c"}', b'{"text":"d","a":}'], b"\n"
)
def test_a_block_of_any_lines_gives_the_bytes_that_python_gives(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], end: bytes
) -> None:
    found = ingested(lines, end, tmp_path_factory.mktemp("native"))
    with in_python():
        expected = ingested(lines, end, tmp_path_factory.mktemp("python"))
    assert found == expected


def test_rows_groups_and_lines_longer_than_a_block_are_those_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE_BYTES", 30_000)
    lines = [json.dumps({"text": f"{n} é" * (n % 7), "url": f"http://a.test/{n}"}).encode() for n in range(3000)]
    lines[1500:1500] = [b'{"text":"' + b"x" * size + b'"}' for size in (29_000, 31_000, 300_000)]
    lines[10] = lines[1024] = b"broken"
    (tmp_path / "native").mkdir()
    (tmp_path / "python").mkdir()
    found = ingested(lines, b"\n", tmp_path / "native")
    with in_python():
        assert found == ingested(lines, b"\n", tmp_path / "python")


CELLS = st.none() | STRINGS | st.builds(lambda text, times: text * times, st.text(alphabet=TRICKY), st.integers(1, 30))


@given(
    st.lists(st.tuples(CELLS, CELLS, st.none() | st.binary(max_size=40)), min_size=1, max_size=8),
    st.integers(0, 3),
    st.integers(1, 400),
)
def test_rows_of_any_text_become_the_lines_of_orjson(rows: list[Any], skipped: int, goal: int) -> None:
    columns = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), (pa.string(),) * 2 + (pa.binary(),), strict=True)
    ]
    ids = pa.array([None if row[0] is None else b"%016d" % number for number, row in enumerate(rows)], pa.binary(16))
    batch = pa.RecordBatch.from_arrays([ids, *columns], names=["doc_id", 'te"xt', "é", "raw"]).slice(skipped)
    assert native.writes(batch.schema)
    expected = [jsonl._to_line(row) for row in batch.to_pylist()]  # pyright: ignore[reportPrivateUsage]
    writer = native.LineWriter(batch.schema.names, lambda _: b"", goal)
    assert writer.lines(batch) == expected
    some = np.arange(0, batch.num_rows, 2, dtype=np.int64)
    bundles = [bytes(bundle) for bundle in writer.bundles([(batch, None), (batch, some), (batch, some[:0])])]
    assert bundles == list(joined(expected + expected[::2], goal))


def test_memory_is_lent_again_unless_a_giant_line_has_made_it_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    def lent(*lengths: int, spare: int) -> list[int]:
        """Write lines of these lengths with this much memory to lend; return what there is afterwards."""
        monkeypatch.setattr(native, "_spare", [np.empty(spare, np.uint8)])
        batch = pa.record_batch([pa.array(["x" * length for length in lengths])], names=["a"])
        bundles = native.LineWriter(["a"], lambda _: b"", 1000).bundles([(batch, None)])
        assert sum(len(bundle) for bundle in bundles) > sum(lengths)
        return [len(memory) for memory in native._spare]  # pyright: ignore[reportPrivateUsage]

    assert lent(500, 10, spare=9000) == [9000]
    assert lent(2000, 10, spare=9000) == [18_000], "a line has room for an escape in place of each byte"
    assert lent(20_000, 10, spare=9000) == []


def test_a_giant_line_takes_memory_for_what_is_written_alone() -> None:
    """The room for an escape in place of each byte, six times the line, is asked of the system and not used."""
    program = """if True:
        import resource
        import pyarrow as pa
        from pipelines.native.lines import LineWriter

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

        batch = pa.record_batch([pa.array(["x" * 40_000_000])], names=["a"])
        before = peak()
        assert [len(bundle) for bundle in LineWriter(["a"], None, 4 << 20).bundles([(batch, None)])] == [40_000_009]
        print(peak() - before)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 120, f"{done.stdout} MB"


def joined(lines: list[bytes], goal: int) -> Iterator[bytes]:
    """As `pipelines.jsonl` joins lines of Python's."""
    bundle = b""
    for line in lines:
        bundle += line
        if len(bundle) >= goal:
            yield bundle
            bundle = b""
    if bundle:
        yield bundle


def test_metadata_and_other_columns_come_out_as_before(tmp_path: Path) -> None:
    metadata = [None, '{"n":1}', '{"text":"clashes","n":2}', "{}"] * 3
    columns = [pa.array([b"%016d" % n for n in range(12)], pa.binary(16)), *([pa.array(["é\n"] * 12)] * 3)]
    table = pa.Table.from_arrays(columns, schema=DOCUMENT_SCHEMA)
    tables = {
        "metadata": table.append_column("metadata", pa.array(metadata)),
        "numbers": table.append_column("score", pa.array([0.1] * 12)),
    }
    for name, each in tables.items():
        pq.write_table(each, tmp_path / f"{name}.parquet")
        clashing = jsonl.write_lines(tmp_path / f"{name}.parquet", tmp_path / "native.jsonl")
        with in_python():
            assert jsonl.write_lines(tmp_path / f"{name}.parquet", tmp_path / "python.jsonl") == clashing
        assert (tmp_path / "native.jsonl").read_bytes() == (tmp_path / "python.jsonl").read_bytes()


def test_text_that_is_not_utf8_fails_as_in_python(tmp_path: Path) -> None:
    text = pa.array([b"fine", b"\xff"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"doc_id": text, "text": text}), tmp_path / "a.parquet")
    with pytest.raises(UnicodeDecodeError):
        jsonl.write_lines(tmp_path / "a.parquet", tmp_path / "a.jsonl")
    with pytest.raises(UnicodeDecodeError):
        list(read_rows(tmp_path / "a.parquet"))


@pytest.mark.parametrize("position", [-1, 6, 1 << 62])
def test_numbers_beyond_the_buffers_are_refused(position: int) -> None:
    state, small, ends = np.zeros(9, np.int64), np.zeros(100, np.uint8), np.zeros(3, np.int32)
    state[0] = position
    with pytest.raises(ValueError, match="beyond"):
        native.module().read(b"{}\n{}", b"", state, (small, ends) * 4, 3, 100)
    state[0], state[5] = 0, position if position != 6 else 101
    with pytest.raises(ValueError, match="beyond"):
        native.module().read(b"{}\n{}", b"", state, (small, ends) * 4, 3, 100)


def test_a_line_without_room_is_left_to_python() -> None:
    state, small, ends = np.zeros(9, np.int64), np.zeros(70, np.uint8), np.zeros(3, np.int32)
    assert native.module().read(b'{"text":"some"}', b"", state, (small, ends) * 4, 3, 100) == 3


def test_offsets_beyond_the_data_are_not_followed() -> None:
    out, state = np.zeros(4096, np.uint8), np.zeros(2, np.int64)
    for offsets in ([0, 9], [5, 2], [-4, 3]):
        column = (0, 0, 0, b'{"a":', None, np.array(offsets, np.int32), b"abc")
        assert native.module().write((column,), 1, None, out, 100, None, state) == 3
        assert not state.any()
    with pytest.raises(ValueError, match="offsets"):
        native.module().write(((0, 0, 5, b"", None, np.zeros(3, np.int32), b""),), 1, None, out, 100, None, state)
    column = (0, 0, 0, b"", None, np.zeros(3, np.int32), b"")
    for chosen in ([0, 2], [-1]):
        with pytest.raises(ValueError, match="chosen: no such row"):
            native.module().write((column,), 2, np.array(chosen), out, 100, None, state)
    with pytest.raises(ValueError, match="data"):
        native.module().write(((2, 16, 0, b"", None, None, b"short"),), 1, None, out, 100, None, state)
