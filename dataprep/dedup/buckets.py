"""Groups of equal keys on disk: exact duplicates by text hash, candidates by band hash.

Every shard writes its keys sorted; a slice is a range of keys that one job gathers from all shards and
sorts again, so that memory is bounded by the slice, whose size follows from the memory budget. Slices in
order are the whole order, so no result depends on how many there are. A document's number is its place
in the whole corpus: the first number of its shard plus its row.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
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
_SAMPLES = 256
"""Keys looked at for each range into which sorted keys are cut: ranges differ by a few per cent."""
_LEAST_SAMPLES = 8
"""And at least in each file."""

Cuts = Callable[[int, int], Sequence[int]]
"""Where to cut the keys of a band into so many ranges."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of bands, and the range of 64-bit keys `low <= key < high` (high None: no limit) in each."""

    bands: range
    low: int
    high: int | None

    def within(self, keys: Array) -> slice:
        """Where in sorted keys those of this range stand."""
        start = int(np.searchsorted(keys, np.uint64(self.low)))
        return slice(start, len(keys) if self.high is None else int(np.searchsorted(keys, np.uint64(self.high))))


def plan_slices(num_documents: int, bands: int, memory: int, workers: int, cuts: Cuts) -> list[Slice]:
    """Slices of about `memory` bytes each: whole bands where they fit, else ranges of one band's keys."""
    capacity = max(_LEAST_RECORDS, memory // BYTES_PER_RECORD)
    if num_documents <= capacity:
        group = min(
            capacity // max(1, num_documents), -(-bands // workers) if num_documents > _LEAST_RECORDS else bands
        )
        return [Slice(range(first, min(first + group, bands)), 0, None) for first in range(0, bands, max(1, group))]
    ranges = -(-num_documents // capacity)
    return [part for band in range(bands) for part in key_ranges(cuts(band, ranges), range(band, band + 1))]


def key_ranges(cuts: Sequence[int], bands: range = range(1), low: int = 0, high: int | None = None) -> list[Slice]:
    """The keys from `low` on of these bands, cut in front of each of `cuts`, which ascend."""
    return [Slice(bands, start, stop) for start, stop in zip((low, *cuts), (*cuts, high), strict=True)]


def even_cuts(files: Sequence[Array], ranges: int) -> list[int]:
    """Where to cut sorted arrays so that all ranges hold about as many of their values, however skewed these are.

    Fewer cuts where values repeat so often that one range holds as many as several. Reads a sample of each array.
    """
    total = sum(map(len, files))
    values, weights = [np.empty(0, np.uint64)], [np.empty(0)]
    for keys in files:
        count = min(len(keys), max(_LEAST_SAMPLES, _SAMPLES * ranges * len(keys) // max(1, total)))
        values.append(keys[np.arange(1, 2 * count, 2) * len(keys) // (2 * count)] if count else values[0])
        weights.append(np.full(count, len(keys) / max(1, count)))
    sample, weight = np.concatenate(values), np.concatenate(weights)
    order = np.argsort(sample, kind="stable")
    places = np.searchsorted(np.cumsum(weight[order]), total * np.arange(1, ranges) / ranges)
    return np.unique(sample[order][places[places < len(sample)]]).tolist()


def plan_name(kind: str, slices: Sequence[Slice]) -> str:
    """The folder of a step over these slices: another plan is other work, also one of as many slices.

    A search that was cut short may go on with another memory budget, and part 2 of 4 may then be other keys.
    """
    digest = hashlib.sha256(repr(list(slices)).encode()).hexdigest()
    return f"{kind}-{len(slices)}-{digest[:8]}"


def create_keys(path: Path, bands: int, columns: int, num_documents: int) -> Array:
    """A file for the keys of one shard, mapped: (bands, columns, num_documents) uint64.

    Column 0 is the key, column 1 the document's number; further columns are carried along.
    """
    if bands * columns * num_documents == 0:  # nothing that could be mapped
        np.save(path, np.empty((bands, columns, num_documents), np.uint64))
        return np.empty((bands, columns, num_documents), np.uint64)
    return np.lib.format.open_memmap(path, "w+", np.uint64, (bands, columns, num_documents))


def sort_bands(records: Array) -> None:
    """Sort each band's records by key, in place."""
    for band in records:
        band[:] = band[:, np.argsort(band[0], kind="stable")]


def gather_slice(files: Sequence[Path], part: Slice, band: int) -> Array:
    """The records of a slice in one band, sorted by key, then by number: (columns, num_records) uint64."""
    pieces: list[Array] = []
    for file in files:
        stored = np.load(file, mmap_mode="r")[band]
        pieces.append(np.array(stored[:, part.within(stored[0])]))
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
    ends = np.cumsum([len(members) for members in lists], dtype=np.int64)
    save_flat_lists(folder, name, np.concatenate([*members, np.empty(0, np.uint64)]), ends)


def save_flat_lists(folder: Path, name: str, members: Array, ends: Array) -> None:
    """The same of lists that lie end to end already."""
    np.save(folder / f"{name}.members.npy", members)
    np.save(folder / f"{name}.ends.npy", ends)


def load_lists(folder: Path, name: str) -> Iterator[Array]:
    """The lists that `save_lists` wrote, one at a time from a memory map."""
    members = np.load(folder / f"{name}.members.npy", mmap_mode="r")
    ends = np.load(folder / f"{name}.ends.npy")
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=False):
        yield np.array(members[start:end])
