"""Arrow columns from lists of Python values, equal to what `pa.array` makes of them.

`pa.array` and `pa.Table.from_pylist` look whether a list is a pandas object, and import pandas for that: 0.2 s
of every process, more than a small stage needs for its work. Text and bytes also take a third of the time here.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

Values = Sequence[Any]

_TYPECODES: Mapping[pa.DataType, str] = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint8(): "B",
    pa.uint16(): "H",
    pa.uint32(): "I",
    pa.uint64(): "Q",
    pa.float32(): "f",
    pa.float64(): "d",
}
"""Numbers that `array.array` checks and packs as Arrow has them."""


def column(values: Values, kind: pa.DataType) -> pa.Array:
    """`values`, of which any may be None, as an Arrow array of type `kind`."""
    if pa.types.is_string(kind):
        return _strings([None if value is None else value.encode() for value in values], kind)
    if pa.types.is_binary(kind):
        return _strings(values, kind)
    if pa.types.is_fixed_size_binary(kind):
        return _fixed_bytes(values, kind)
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(kind, len(values), [_validity(values), _bits(values)])
    if pa.types.is_list(kind) and None not in values:
        offsets = array("i", accumulate(map(len, values), initial=0))
        items = column([item for value in values for item in value], kind.value_type)
        return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(offsets)], children=[items])
    if kind in _TYPECODES:
        numbers = array(_TYPECODES[kind], (0 if value is None else value for value in values))
        return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(numbers)])
    return pa.array(values, kind)


def _strings(values: Values, kind: pa.DataType) -> pa.Array:
    data = [value or b"" for value in values] if None in values else values
    offsets = array("i", accumulate(map(len, data), initial=0))
    buffers = [_validity(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _fixed_bytes(values: Values, kind: pa.DataType) -> pa.Array:
    width: int = kind.byte_width
    data = [bytes(width) if value is None else value for value in values]
    assert set(map(len, data)) <= {width}, f"every value has {width} bytes"
    return pa.Array.from_buffers(kind, len(values), [_validity(values), pa.py_buffer(b"".join(data))])


def _validity(values: Values) -> pa.Buffer | None:
    """Arrow's bitmap of the values that are not None; none where all are there."""
    return _bits([value is not None for value in values]) if None in values else None


def _bits(flags: Values) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.array(flags, dtype=bool), bitorder="little"))
