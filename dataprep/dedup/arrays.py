"""NumPy arrays to Arrow columns and back, equal to what `pa.array` and `to_numpy` make of them.

Those look whether they are given a pandas object, and import pandas for that: 0.2 s of every process. See
`pipelines.columns` for lists of Python values.
"""

from typing import Any

import numpy as np
import pyarrow as pa

Array = np.ndarray[Any, Any]


def from_numpy(values: Array) -> pa.Array:
    """An array of numbers or truth values, without a copy of the numbers."""
    if values.dtype == np.bool_:
        bits = np.packbits(values, bitorder="little")
        return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(bits)])
    buffers = [None, pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)


def to_numpy(values: pa.Array | pa.ChunkedArray) -> Array:
    """The reverse; of columns with nulls or of another type what Arrow makes of them."""
    kind = values.type
    truth = pa.types.is_boolean(kind)
    if values.null_count or not (truth or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return values.to_numpy() if isinstance(values, pa.ChunkedArray) else values.to_numpy(zero_copy_only=False)
    dtype = np.dtype(np.uint8 if truth else kind.to_pandas_dtype())
    pieces = [np.empty(0, bool if truth else dtype)]
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        stop = chunk.offset + len(chunk)
        data = np.frombuffer(chunk.buffers()[1] or b"", dtype)
        if truth:
            data = np.unpackbits(data, count=stop, bitorder="little").view(bool)
        pieces.append(data[chunk.offset : stop])
    return np.concatenate(pieces)


def empty_table(schema: pa.Schema) -> pa.Table:
    """A table without rows."""
    return pa.Table.from_batches([], schema)
