"""Groups of equal keys on disk: exact duplicates by text hash, candidates by band hash.

Every shard writes its keys sorted; a slice is a range of keys that one job gathers from all shards and
sorts again, so that memory is bounded by the slice, whose size follows from the memory budget. Slices in
order are the whole order, so no result depends on how many there are. A document's number is its place
in the whole corpus: the first number of its shard plus its row.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

SMALL_BUCKET = 16
"""Buckets of up to this many documents are compared pair by pair; larger ones by centres (`link_bucket`)."""
BYTES_PER_RECORD = 200
"""Peak memory of a slice per record: keys, numbers, their sort, and up to 7.5 pairs of 16 bytes."""
_LEAST_RECORDS = 1 << 12


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of bands, and the range of 64-bit keys `low <= key < high` (high None: no limit) in each."""

    bands: range
    low: int
    high: int | None


def plan_slices(num_documents: int, bands: int, memory: int, workers: int) -> list[Slice]:
    """Slices of about `memory` bytes each: whole bands where they fit, else ranges of one band's keys."""
    capacity = max(_LEAST_RECORDS, memory // BYTES_PER_RECORD)
    if num_documents <= capacity:
        group = min(
            capacity // max(1, num_documents), -(-bands // workers) if num_documents > _LEAST_RECORDS else bands
        )
        return [Slice(range(first, min(first + group, bands)), 0, None) for first in range(0, bands, max(1, group))]
    ranges = -(-num_documents // capacity)
    bounds = [(number << 64) // ranges for number in range(ranges)]
    ends = [*bounds[1:], None]
    return [
        Slice(range(band, band + 1), low, high) for band in range(bands) for low, high in zip(bounds, ends, strict=True)
    ]


def plan_name(kind: str, slices: Sequence[Slice]) -> str:
    """The folder of a step over these slices: another plan is other work, also one of as many slices.

    A search that was cut short may go on with another memory budget, and part 2 of 4 may then be other bands.
    """
    digest = hashlib.sha256(repr(list(slices)).encode()).hexdigest()
    return f"{kind}-{len(slices)}-{digest[:8]}"


def write_sorted_keys(path: Path, records: Array) -> None:
    """Sort each band's records by key and write them: (bands, columns, num_documents) uint64.

    Column 0 is the key, column 1 the document's number; further columns are carried along.
    """
    for band in range(len(records)):
        records[band] = records[band][:, np.argsort(records[band, 0], kind="stable")]
    np.save(path, records)


def gather_slice(files: Sequence[Path], part: Slice, band: int) -> Array:
    """The records of a slice in one band, sorted by key, then by number: (columns, num_records) uint64."""
    pieces: list[Array] = []
    for file in files:
        stored = np.load(file, mmap_mode="r")[band]
        start = int(np.searchsorted(stored[0], np.uint64(part.low)))
        stop = stored.shape[1] if part.high is None else int(np.searchsorted(stored[0], np.uint64(part.high)))
        pieces.append(np.array(stored[:, start:stop]))
    records = np.concatenate(pieces, axis=1)
    return records[:, np.argsort(records[0], kind="stable")]


def buckets(keys: Array) -> tuple[Array, Array]:
    """Start and size of every run of two and more equal keys; `keys` must be sorted."""
    edges = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1], [True])))
    sizes = np.diff(edges)
    shared = sizes > 1
    return edges[:-1][shared], sizes[shared]


def bucket_pairs(numbers: Array, starts: Array, sizes: Array) -> Array:
    """All pairs within the small buckets, each once, sorted: (num_pairs, 2) uint64 with a < b."""
    pairs: list[Array] = [np.empty((0, 2), np.uint64)]
    for size in range(2, SMALL_BUCKET + 1):
        members = numbers[starts[sizes == size][:, None] + np.arange(size)]
        left, right = np.triu_indices(size, 1)
        pairs.append(np.stack((members[:, left].ravel(), members[:, right].ravel()), axis=1))
    return distinct_pairs(np.concatenate(pairs))


def distinct_pairs(pairs: Array) -> Array:
    """Sorted by (a, b), each once."""
    if not len(pairs):
        return pairs
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    return ordered[np.concatenate(([True], (ordered[1:] != ordered[:-1]).any(axis=1)))]


def large_buckets(numbers: Array, starts: Array, sizes: Array) -> Iterator[Array]:
    """The members of each bucket above SMALL_BUCKET, in order of key."""
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        if size > SMALL_BUCKET:
            yield numbers[start : start + size]


def save_lists(folder: Path, name: str, lists: Sequence[Array]) -> None:
    """Write lists of numbers as `NAME.members.npy` and `NAME.ends.npy`."""
    members = [members.astype(np.uint64, copy=False) for members in lists]
    np.save(folder / f"{name}.members.npy", np.concatenate([*members, np.empty(0, np.uint64)]))
    np.save(folder / f"{name}.ends.npy", np.cumsum([len(members) for members in lists], dtype=np.int64))


def load_lists(folder: Path, name: str) -> Iterator[Array]:
    """The lists that `save_lists` wrote, one at a time from a memory map."""
    members = np.load(folder / f"{name}.members.npy", mmap_mode="r")
    ends = np.load(folder / f"{name}.ends.npy")
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=False):
        yield np.array(members[start:end])
