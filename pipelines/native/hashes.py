"""XXH3 of many values at a time, in C: the ids of documents, and hashes of texts and of ids.

Installing the package builds it if there is a C compiler (setup.py). Otherwise the package xxhash does the same work,
one value at a time.
"""

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from pipelines.native import built

Array = np.ndarray[Any, Any]

DIGEST_BYTES = 16


@functools.cache
def module() -> Any:
    """Return the compiled module, or None if it was not built."""
    try:
        return built.load("pipelines.native._hashes", 1)
    except ImportError:
        return None


def digests(data: Array, starts: Array, ends: Array) -> Array:
    """Return xxh3_128 of each `data[starts[i]:ends[i]]`: (num_values, 16) uint8; data are bytes, the others int64."""
    out = np.empty((len(starts), DIGEST_BYTES), np.uint8)
    if native := module():
        native.spans(data, starts, ends, out)
        return out
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    return _digests_of([xxhash.xxh3_128_digest(data[start:end].tobytes()) for start, end in spans])


def pair_digests(first: pa.StringArray, second: pa.StringArray) -> Array:
    """Return xxh3_128 of first[i], NUL and second[i]: (num_rows, 16) uint8. Neither column has nulls."""
    if native := module():
        out = np.empty((len(first), DIGEST_BYTES), np.uint8)
        native.pairs(*_offsets_and_data(first), *_offsets_and_data(second), out)
        return out
    rows = zip(first.to_pylist(), second.to_pylist(), strict=True)
    return _digests_of([xxhash.xxh3_128_digest("\0".join(row).encode()) for row in rows])


def id_hashes(ids: pa.FixedSizeBinaryArray) -> Array:
    """Return xxh3_64 of each id, of 16 bytes: (num_ids,) uint64. None of them is null."""
    data = np.frombuffer(ids.buffers()[1] or b"", np.uint8)[DIGEST_BYTES * ids.offset :][: DIGEST_BYTES * len(ids)]
    if native := module():
        out = np.empty(len(ids), np.uint64)
        native.ids(data, out)
        return out
    return np.array([xxhash.xxh3_64_intdigest(each.tobytes()) for each in data.reshape(-1, DIGEST_BYTES)], np.uint64)


def _offsets_and_data(texts: pa.StringArray) -> tuple[Array, Any]:
    _, offsets, data = texts.buffers()
    return np.frombuffer(offsets or bytes(4), np.int32)[texts.offset : texts.offset + len(texts) + 1], data or b""


def _digests_of(values: list[bytes]) -> Array:
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, DIGEST_BYTES)
