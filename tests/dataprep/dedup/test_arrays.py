"""Arrays: what `pa.array` and `to_numpy` make of the same values."""

import numpy as np
import pyarrow as pa
import pytest

from dataprep.dedup.arrays import empty_table, from_numpy, to_numpy


@pytest.mark.parametrize("kind", ["bool", "int32", "int64", "uint16", "uint64", "float32", "float64"])
def test_numpy_arrays_come_and_go_as_arrow_has_them(kind: str) -> None:
    values = np.arange(37).astype(kind)[::2]
    array = from_numpy(values)
    array.validate(full=True)
    assert array.equals(pa.array(np.ascontiguousarray(values)))
    pieces = pa.chunked_array([array.slice(3, 9), array.slice(0, 0), array.slice(12)], type=array.type)
    for made in (to_numpy(array), to_numpy(array.slice(0, 0)), to_numpy(pieces)):
        assert made.dtype == values.dtype
    assert to_numpy(array).tolist() == values.tolist()
    assert to_numpy(pieces).tolist() == values[3:].tolist()


def test_columns_with_nulls_and_texts_are_what_arrow_makes_of_them() -> None:
    assert np.isnan(to_numpy(pa.array([1, None]))[1])
    assert to_numpy(pa.chunked_array([["a", None]])).tolist() == ["a", None]
    assert to_numpy(pa.array(["a", "b"])).tolist() == ["a", "b"]


def test_an_empty_table_has_the_schema_and_no_rows() -> None:
    schema = pa.schema([("text", pa.string()), ("row", pa.int64())])
    assert empty_table(schema).equals(schema.empty_table())
