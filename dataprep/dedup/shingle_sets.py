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
        self._rows.append(row)
        self._ends.append(self._ends[-1] + len(hashes))
        self._signatures.append(signature)
        hashes.astype("<u8").tofile(self._hashes)

    def close(self) -> None:
        """Write the tables that find a row's set."""
        self._hashes.close()
        np.array(self._rows, dtype="<u8").tofile(self._path("rows"))
        np.array(self._ends, dtype="<u8").tofile(self._path("ends"))
        signatures = np.stack(self._signatures) if self._signatures else np.empty(0)
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
        for pair in plausible.tolist():
            one, other = (self._set(int(shards[n]), int(places[n])) for n in (left[pair], right[pair]))
            result[pair] = jaccard(one, other, mode)
        return result

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

    def _set(self, shard: int, place: int) -> Array:
        ends = self._shards[shard].ends
        return self._shards[shard].hashes[int(ends[place]) : int(ends[place + 1])]

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


def jaccard(a: Array, b: Array, mode: Mode) -> float:
    """Shared shingles over those of the union, the smaller or the larger set; sets sorted and distinct."""
    if len(a) > len(b):
        a, b = b, a
    if not len(a):
        return 0.0
    shared = int(np.count_nonzero(b.take(b.searchsorted(a), mode="clip") == a))
    whole = {"union": len(a) + len(b) - shared, "min": len(a), "max": len(b)}[mode]
    return shared / whole


def least_jaccard(a: Array, b: Array, mode: Mode, threshold: float) -> Array:
    """The union Jaccard that sets of these sizes need to reach `threshold`; above 1 where they never can."""
    smaller, larger = np.minimum(a, b), np.maximum(a, b)
    shared = {"union": threshold * (a + b) / (1.0 + threshold), "min": threshold * smaller, "max": threshold * larger}
    needed = shared[mode] * (1.0 - 1e-12)  # rounding must not rule out a pair right at the threshold
    return np.where(needed > smaller, 2.0, needed / np.maximum(a + b - needed, 1.0))
