"""Columns: what `pa.array` makes of the same values, and without pandas."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.columns import column

ROOT = Path(__file__).parents[2]
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), ["a", "", "ü\0𝄞", "x" * 5000]),
    "bytes": (pa.binary(), [b"", b"\xff\x00", b"abc"]),
    "ids": (pa.binary(16), [bytes(range(16)), bytes(16)]),
    "flags": (pa.bool_(), [True, False, True] * 7),
    "small": (pa.int8(), [-128, 127, 0]),
    "shards": (pa.int32(), [2**31 - 1, -(2**31)]),
    "rows": (pa.int64(), [2**63 - 1, -1]),
    "unsigned": (pa.uint16(), [0, 65535]),
    "scores": (pa.float64(), [0.1, -0.0, math.inf, 3]),
    "halves": (pa.float32(), [0.5, 1e-20]),
    "lists": (pa.list_(pa.string()), [["a"], [], ["b", "c"]]),
    "large": (pa.large_string(), ["a", "b"]),
}


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("holes", ["none", "some", "all", "no rows"])
def test_a_column_is_the_array_that_arrow_makes_and_so_is_the_file(kind: str, holes: str, tmp_path: Path) -> None:
    data_type, values = COLUMNS[kind]
    holed = {"none": values, "some": [None, *values, None], "all": [None, None], "no rows": []}[holes]
    made, expected = column(holed, data_type), pa.array(holed, data_type)
    made.validate(full=True)
    assert made.equals(expected)
    assert made.null_count == expected.null_count
    for name, array in (("made", made), ("expected", expected)):
        pq.write_table(pa.table({"x": array}), tmp_path / name, compression="zstd")
    assert (tmp_path / "made").read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        (pa.string(), "\ud800", UnicodeEncodeError),
        (pa.binary(16), b"short", AssertionError),
        (pa.int64(), 1.5, TypeError),
        (pa.int8(), 128, OverflowError),
        (pa.float64(), "1", TypeError),
    ],
)
def test_a_value_of_another_kind_is_refused(kind: pa.DataType, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        column([value], kind)


def test_shards_are_written_and_read_without_importing_pandas(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
import pyarrow as pa
from pipelines.documents import ShardWriter, read_rows
row = {"doc_id": bytes(16), "url": "", "text": "words", "source": "", "score": 0.5, "good": True}
extra = [pa.field("score", pa.float64()), pa.field("good", pa.bool_())]
with ShardWriter(Path(sys.argv[1]), "part-00000", extra) as shard:
    shard.keep(row)
    shard.reject(row, "rule", 1)
assert list(read_rows(Path(sys.argv[1]) / "part-00000.parquet")) == [row]
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True)
