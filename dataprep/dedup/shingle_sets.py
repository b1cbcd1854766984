"""The shingle sets of candidate documents on disk, and their exact Jaccard similarity.

A folder has one file per document shard: the sorted 64-bit hashes of the distinct shingles of each document with a
set, one set after the other; the rows of these documents and the ends of their hashes; their signatures; their number.
Readers map the files, so memory holds only what is compared, and close them at once, so there may be any number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dataprep.native.kernel import kernel

Array = np.ndarray[Any, Any]
Mode = Literal["union", "min", "max"]

SURE = 5.0
"""A pair's sets are not read if the fraction of equal values in its signatures is this many standard deviations,
sqrt(J * (1 - J) / num_perm), below the Jaccard similarity J that the pair needs. A pair of exactly that similarity is
thus missed with probability 7e-7 at J = 0.7 and 2e-5 at J = 0.95 (binomial distribution, 128 permutations)."""
_BATCH = 4096


class ShingleSetWriter:
    """Writes the sets of one shard, row by row."""

    def __init__(self, folder: Path, name: str) -> None:
        self._rows: list[int] = []
        self._ends: list[int] = [0]
        self._signatures: list[Array] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._file = _path(folder, name).open("wb")

    def write(self, row: int, hashes: Array, signature: Array) -> None:
        """Add the set of a row. `hashes` must be sorted and distinct, and rows must come in order."""
        self.write_all(np.array([row]), np.array([0, len(hashes)]), hashes, signature[None])

    def write_all(self, rows: Array, first: Array, hashes: Array, signatures: Array) -> None:
        """Add the sets of many rows; `rows[i]` has the set `hashes[first[i]:first[i + 1]]`."""
        self._rows += rows.tolist()
        self._ends += (first[1:] + (self._ends[-1] - first[0])).tolist()
        self._signatures.append(signatures)
        hashes[first[0] : first[-1]].astype("<u8", copy=False).tofile(self._file)

    def close(self) -> None:
        """Write the tables that locate a row's set."""
        with self._file:
            np.array([*self._rows, *self._ends], dtype="<u8").tofile(self._file)
            for signatures in self._signatures:
                signatures.astype("<u4", copy=False).tofile(self._file)
            np.array([len(self._rows)], dtype="<u8").tofile(self._file)


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.sets"


@dataclass(frozen=True, slots=True)
class _Shard:
    rows: Array
    ends: Array
    hashes: Array
    signatures: Array

    @classmethod
    def open(cls, path: Path, num_perm: int) -> "_Shard":
        # Arrow's map outlives the closed file; each of Python's own maps would keep a descriptor open.
        with pa.memory_map(str(path)) as file:
            data = file.read_buffer()
        count = int(np.frombuffer(data, "<u8", 1, len(data) - 8)[0])
        signatures = len(data) - 8 - 4 * count * num_perm
        rows = signatures - 8 * (2 * count + 1)
        return cls(
            np.frombuffer(data, "<u8", count, rows),
            np.frombuffer(data, "<u8", count + 1, rows + 8 * count),
            np.frombuffer(data, "<u8", rows // 8),
            np.frombuffer(data, "<u4", count * num_perm, signatures).reshape(count, num_perm),
        )


@dataclass(frozen=True, slots=True)
class _Sets:
    """Set i is `arrays[which[i]][starts[i]:stops[i]]`."""

    arrays: tuple[Array, ...]
    which: Array
    starts: Array
    stops: Array
    signatures: Array

    def shared(self, left: Array, right: Array) -> Array:
        """Return how many shingles sets left[i] and right[i] share."""
        a, b = ((self.which[side], self.starts[side], self.stops[side]) for side in (left, right))
        if native := kernel():
            return native.shared(self.arrays, a, b)
        pairs = zip(*(each.tolist() for each in (*a, *b)), strict=True)
        shared = [count_shared(self.arrays[i][p:q], self.arrays[j][r:s]) for i, p, q, j, r, s in pairs]
        return np.array(shared, dtype=np.int64)


class ShingleSets:
    """All sets of a folder by document number; `first` has the number of each shard's first document."""

    def __init__(self, folder: Path, first: Sequence[int], num_perm: int) -> None:
        self._folder = folder
        self._first = np.array(first, dtype=np.uint64)
        self._num_perm = num_perm
        self._shards: dict[int, _Shard] = {}

    def similarity(self, a: Array, b: Array, mode: Mode, threshold: float) -> Array:
        """Return the exact similarity of documents a[i] and b[i], (num_pairs,) float64.

        Pairs that cannot reach `threshold` by their sizes, or are unlikely to by their signatures (`SURE`), get 0.
        """
        result = np.zeros(len(a))
        for start in range(0, len(a), _BATCH):
            batch = slice(start, start + _BATCH)
            result[batch] = self._similarity(a[batch], b[batch], mode, threshold)
        return result

    def _similarity(self, a: Array, b: Array, mode: Mode, threshold: float) -> Array:
        numbers, inverse = np.unique(np.concatenate((a, b)), return_inverse=True)
        sets = self._find(numbers)
        sizes = (sets.stops - sets.starts).astype(np.float64)
        left, right = inverse[: len(a)], inverse[len(a) :]
        needed = least_jaccard(sizes[left], sizes[right], mode, threshold)
        equal = np.count_nonzero(sets.signatures[left] == sets.signatures[right], axis=1)
        margin = SURE * np.sqrt(needed * (1.0 - needed).clip(0.0) / self._num_perm)
        plausible = np.flatnonzero((needed <= 1.0) & (equal / self._num_perm >= needed - margin))
        result = np.zeros(len(a))
        left, right = left[plausible], right[plausible]
        result[plausible] = set_similarity(sets.shared(left, right), sizes[left], sizes[right], mode)
        return result

    def _find(self, numbers: Array) -> _Sets:
        """Return the sets of documents, given their sorted numbers."""
        opened, begins = np.unique(np.searchsorted(self._first, numbers, side="right") - 1, return_index=True)
        ends = np.append(begins[1:], len(numbers))
        shards = [self._shards.get(number) or self._open(number) for number in opened.tolist()]
        starts, stops = np.empty((2, len(numbers)), np.int64)
        signatures = np.empty((len(numbers), self._num_perm), dtype=np.uint32)
        for shard, number, begin, end in zip(shards, opened, begins, ends, strict=True):
            documents = slice(begin, end)
            index = np.searchsorted(shard.rows, numbers[documents] - self._first[number])
            starts[documents], stops[documents] = shard.ends[index], shard.ends[index + 1]
            signatures[documents] = shard.signatures[index]
        which = np.repeat(np.arange(len(opened)), ends - begins)
        return _Sets(tuple(shard.hashes for shard in shards), which, starts, stops, signatures)

    def _open(self, number: int) -> _Shard:
        path = _path(self._folder, f"part-{number:05d}")
        shard = self._shards[number] = _Shard.open(path, self._num_perm)
        return shard


def count_shared(a: Array, b: Array) -> int:
    """Return how many values two sets share, both sorted and distinct."""
    if len(a) > len(b):
        a, b = b, a
    return int(np.count_nonzero(b.take(b.searchsorted(a), mode="clip") == a)) if len(a) else 0


def set_similarity(shared: Array, a: Array, b: Array, mode: Mode) -> Array:
    """Divide the shared shingles by those of the union, the smaller or the larger set; 0 for two empty sets.

    `a` and `b` are the sizes of the sets.
    """
    total = {"union": a + b - shared, "min": np.minimum(a, b), "max": np.maximum(a, b)}[mode]
    return shared / np.maximum(total, 1)


def least_jaccard(a: Array, b: Array, mode: Mode, threshold: float) -> Array:
    """Return the union Jaccard that sets of sizes a and b need to reach `threshold`; above 1 if they never can."""
    smaller, larger = np.minimum(a, b), np.maximum(a, b)
    shared = {"union": threshold * (a + b) / (1.0 + threshold), "min": threshold * smaller, "max": threshold * larger}
    needed = shared[mode] * (1.0 - 1e-12)  # rounding must not rule out a pair right at the threshold
    return np.where(needed > smaller, 2.0, needed / np.maximum(a + b - needed, 1.0))
