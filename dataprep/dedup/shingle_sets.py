"""The shingle sets of candidate documents on disk, and their exact Jaccard similarity.

One folder holds, per document shard, which rows have a set, the sorted 64-bit hashes of their distinct
shingles end to end, and their signatures. Readers map the files, so memory holds what is compared.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dataprep.native.kernel import kernel

Array = np.ndarray[Any, Any]
Mode = Literal["union", "min", "max"]

SURE = 5.0
"""A pair is ruled out unread when its estimate is this many standard deviations too low (3 in 10 million)."""
_BATCH = 4096


class ShingleSetWriter:
    """Writes the sets of one shard, row by row."""

    def __init__(self, folder: Path, name: str) -> None:
        self._stem = folder / name
        self._rows: list[int] = []
        self._ends: list[int] = [0]
        self._signatures: list[Array] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._hashes = self._path("hashes").open("wb")

    def _path(self, kind: str) -> Path:
        return self._stem.with_name(f"{self._stem.name}.{kind}")

    def write(self, row: int, hashes: Array, signature: Array) -> None:
        """Add the set of a row: `hashes` sorted and distinct; rows must come in order."""
        self.write_all(np.array([row]), np.array([0, len(hashes)]), hashes, signature[None])

    def write_all(self, rows: Array, first: Array, hashes: Array, signatures: Array) -> None:
        """Add the sets of many rows: that of `rows[i]` is `hashes[first[i]:first[i + 1]]`."""
        self._rows += rows.tolist()
        self._ends += (first[1:] + (self._ends[-1] - first[0])).tolist()
        self._signatures.append(signatures)
        hashes[first[0] : first[-1]].astype("<u8", copy=False).tofile(self._hashes)

    def close(self) -> None:
        """Write the tables that find a row's set."""
        self._hashes.close()
        np.array(self._rows, dtype="<u8").tofile(self._path("rows"))
        np.array(self._ends, dtype="<u8").tofile(self._path("ends"))
        signatures = np.concatenate(self._signatures) if self._signatures else np.empty(0)
        signatures.astype("<u4").tofile(self._path("signatures"))


@dataclass(frozen=True, slots=True)
class _Shard:
    rows: Array
    ends: Array
    hashes: Array
    signatures: Array


class ShingleSets:
    """All sets of a folder, by document number; `first` is the number of each shard's first document."""

    def __init__(self, folder: Path, first: Sequence[int], num_perm: int) -> None:
        self._folder = folder
        self._first = np.array(first, dtype=np.uint64)
        self._num_perm = num_perm
        self._shards: dict[int, _Shard] = {}

    def similarity(self, a: Array, b: Array, mode: Mode, threshold: float) -> Array:
        """Exact similarity of documents a[i] and b[i], (num_pairs,) float64.

        Pairs that cannot reach `threshold` by their sizes, or not plausibly by their signatures, get 0.
        """
        result = np.zeros(len(a))
        for start in range(0, len(a), _BATCH):
            batch = slice(start, start + _BATCH)
            result[batch] = self._similarity(a[batch], b[batch], mode, threshold)
        return result

    def _similarity(self, a: Array, b: Array, mode: Mode, threshold: float) -> Array:
        numbers, inverse = np.unique(np.concatenate((a, b)), return_inverse=True)
        shards, places, sizes, signatures = self._find(numbers)
        left, right = inverse[: len(a)], inverse[len(a) :]
        needed = least_jaccard(sizes[left], sizes[right], mode, threshold)
        estimate = np.count_nonzero(signatures[left] == signatures[right], axis=1) / self._num_perm
        margin = SURE * np.sqrt(needed * (1.0 - needed).clip(0.0) / self._num_perm)
        plausible = np.flatnonzero((needed <= 1.0) & (estimate >= needed - margin))
        result = np.zeros(len(a))
        left, right = left[plausible], right[plausible]
        shared = self._shared(shards, places, left, right)
        result[plausible] = share(shared, sizes[left], sizes[right], mode)
        return result

    def _shared(self, shards: Array, places: Array, left: Array, right: Array) -> Array:
        """How many shingles documents left[i] and right[i] share."""
        opened, which = np.unique(shards, return_inverse=True)
        starts, stops = np.empty((2, len(shards)), np.int64)
        for index, shard in enumerate(opened.tolist()):
            here = which == index
            ends = self._shards[shard].ends
            starts[here], stops[here] = ends[places[here]], ends[places[here] + 1]
        arrays = tuple(self._shards[shard].hashes for shard in opened.tolist())
        a, b = ((which[side], starts[side], stops[side]) for side in (left, right))
        if native := kernel():
            return native.shared(arrays, a, b)
        pairs = zip(*(each.tolist() for each in (*a, *b)), strict=True)
        return np.array([count_shared(arrays[i][p:q], arrays[j][r:s]) for i, p, q, j, r, s in pairs], dtype=np.int64)

    def _find(self, numbers: Array) -> tuple[Array, Array, Array, Array]:
        """Shard and place therein, size of the set and signature of each document."""
        shards = np.searchsorted(self._first, numbers, side="right") - 1
        places, sizes = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.float64)
        signatures = np.empty((len(numbers), self._num_perm), dtype=np.uint32)
        for number in np.unique(shards).tolist():
            shard = self._shards.get(number) or self._open(number)
            here = np.flatnonzero(shards == number)
            place = np.searchsorted(shard.rows, numbers[here] - self._first[number])
            places[here] = place
            sizes[here] = shard.ends[place + 1] - shard.ends[place]
            signatures[here] = shard.signatures[place]
        return shards, places, sizes, signatures

    def _open(self, number: int) -> _Shard:
        stem = self._folder / f"part-{number:05d}"
        signatures = _map(stem.with_name(f"{stem.name}.signatures"), "<u4").reshape(-1, self._num_perm)
        rows, ends, hashes = (_map(stem.with_name(f"{stem.name}.{kind}"), "<u8") for kind in ("rows", "ends", "hashes"))
        shard = self._shards[number] = _Shard(rows, ends, hashes, signatures)
        return shard


def _map(path: Path, dtype: str) -> Array:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return np.empty(0, dtype)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype)


def count_shared(a: Array, b: Array) -> int:
    """How many values two sets share; both sorted and distinct."""
    if len(a) > len(b):
        a, b = b, a
    return int(np.count_nonzero(b.take(b.searchsorted(a), mode="clip") == a)) if len(a) else 0


def share(shared: Array, a: Array, b: Array, mode: Mode) -> Array:
    """Shared shingles over those of the union, the smaller or the larger set, of sizes a and b; 0 without any."""
    whole = {"union": a + b - shared, "min": np.minimum(a, b), "max": np.maximum(a, b)}[mode]
    return shared / np.maximum(whole, 1)


def least_jaccard(a: Array, b: Array, mode: Mode, threshold: float) -> Array:
    """The union Jaccard that sets of these sizes need to reach `threshold`; above 1 where they never can."""
    smaller, larger = np.minimum(a, b), np.maximum(a, b)
    shared = {"union": threshold * (a + b) / (1.0 + threshold), "min": threshold * smaller, "max": threshold * larger}
    needed = shared[mode] * (1.0 - 1e-12)  # rounding must not rule out a pair right at the threshold
    return np.where(needed > smaller, 2.0, needed / np.maximum(a + b - needed, 1.0))
