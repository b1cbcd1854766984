"""From signatures to candidate pairs: exact copies by text hash, near ones by band hash, from keys sorted on disk.

Every shard writes its keys sorted. A slice is a range of keys that one job gathers from all shards and sorts
again, so memory is bounded by the slice, whose size follows from the memory budget. All slices in order are the
whole order, so no result depends on their number. Documents are numbers (their position in the corpus, uint64).
Each function with a `part` is one shard of a step: it reads `part.files` and writes NumPy files into `folder`.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.dedup.banding import Banding
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.signatures import band_hashes, is_empty, read_signatures
from pipelines.command import Part
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

EDGE = np.dtype([("a", "<u8"), ("b", "<u8"), ("similarity", "<f8")])
"""A pair of documents a < b with its similarity."""
SMALL_BUCKET = 16
"""Buckets of up to this many documents are compared pair by pair; larger ones by centres (`link_bucket`)."""
BYTES_PER_RECORD = 200
"""Peak memory of a slice per record: keys, numbers, their sort, and up to 7.5 pairs of 16 bytes."""
_LEAST_RECORDS = 1 << 12
_SAMPLES = 256
"""Keys sampled for each range into which sorted keys are split: ranges differ by a few per cent."""
_LEAST_SAMPLES = 8
"""Keys sampled from each file at least."""

BandSplits = Callable[[int, int], Sequence[int]]
"""Returns the keys at which to split a band, given the band and the number of ranges."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of bands, and the range of 64-bit keys `low <= key < high` in each; no upper limit if `high` is None."""

    bands: range
    low: int
    high: int | None

    def within(self, keys: Array) -> slice:
        """Return the positions of this range's keys in sorted keys."""
        start = int(np.searchsorted(keys, np.uint64(self.low)))
        return slice(start, len(keys) if self.high is None else int(np.searchsorted(keys, np.uint64(self.high))))


def plan_slices(num_documents: int, bands: int, memory: int, workers: int, splits: BandSplits) -> list[Slice]:
    """Return slices of about `memory` bytes each: whole bands if they fit, else ranges of one band's keys."""
    capacity = max(_LEAST_RECORDS, memory // BYTES_PER_RECORD)
    if num_documents <= capacity:
        group = min(
            capacity // max(1, num_documents), -(-bands // workers) if num_documents > _LEAST_RECORDS else bands
        )
        return [Slice(range(first, min(first + group, bands)), 0, None) for first in range(0, bands, max(1, group))]
    ranges = -(-num_documents // capacity)
    return [part for band in range(bands) for part in key_ranges(splits(band, ranges), range(band, band + 1))]


def key_ranges(splits: Sequence[int], bands: range = range(1), low: int = 0, high: int | None = None) -> list[Slice]:
    """Return the ranges into which ascending `splits` divide the keys from `low` to below `high` of these bands."""
    return [Slice(bands, start, stop) for start, stop in zip((low, *splits), (*splits, high), strict=True)]


def quantile_splits(files: Sequence[Array], ranges: int) -> list[int]:
    """Return the values at which to split sorted arrays into ranges with about equal numbers of values.

    There are fewer splits if one value is so common that its range holds as many as several others. Reads a sample
    of each array.
    """
    total = sum(map(len, files))
    values, weights = [np.empty(0, np.uint64)], [np.empty(0)]
    for keys in files:
        count = min(len(keys), max(_LEAST_SAMPLES, _SAMPLES * ranges * len(keys) // max(1, total)))
        values.append(keys[np.arange(1, 2 * count, 2) * len(keys) // (2 * count)] if count else values[0])
        weights.append(np.full(count, len(keys) / max(1, count)))
    sample, weight = np.concatenate(values), np.concatenate(weights)
    order = np.argsort(sample, kind="stable")
    quantiles = np.searchsorted(np.cumsum(weight[order]), total * np.arange(1, ranges) / ranges)
    return np.unique(sample[order][quantiles[quantiles < len(sample)]]).tolist()


def slices_folder(kind: str, slices: Sequence[Slice]) -> str:
    """Return the name of a folder for a step over these slices, different for other slices of the same number.

    An interrupted search may resume with another memory budget, and part 2 of 4 may then have other keys.
    """
    digest = hashlib.sha256(repr(list(slices)).encode()).hexdigest()
    return f"{kind}-{len(slices)}-{digest[:8]}"


def create_keys(path: Path, bands: int, columns: int, num_documents: int) -> Array:
    """Create and map a file for the keys of one shard: (bands, columns, num_documents) uint64.

    Column 0 is the key, column 1 the document's number; further columns are carried along.
    """
    if bands * columns * num_documents == 0:  # an empty array cannot be mapped
        np.save(path, np.empty((bands, columns, num_documents), np.uint64))
        return np.empty((bands, columns, num_documents), np.uint64)
    return np.lib.format.open_memmap(path, "w+", np.uint64, (bands, columns, num_documents))


def sort_bands(records: Array) -> None:
    """Sort each band's records by key, in place."""
    for band in records:
        band[:] = band[:, np.argsort(band[0], kind="stable")]


def gather_slice(files: Sequence[Path], part: Slice, band: int) -> Array:
    """Read the records of a slice in one band, sorted by key, then by number: (columns, num_records) uint64."""
    of_files: list[Array] = []
    for file in files:
        stored = np.load(file, mmap_mode="r")[band]
        of_files.append(np.array(stored[:, part.within(stored[0])]))
    records = np.concatenate(of_files, axis=1)
    return records[:, np.argsort(records[0], kind="stable")]


def buckets(keys: Array) -> tuple[Array, Array]:
    """Return start and size of every run of two or more equal keys; `keys` must be sorted."""
    bounds = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1], [True])))
    sizes = np.diff(bounds)
    shared = sizes > 1
    return bounds[:-1][shared], sizes[shared]


def bucket_pairs(numbers: Array, starts: Array, sizes: Array) -> Array:
    """Return all pairs within the small buckets, each once, sorted: (num_pairs, 2) uint64 with a < b."""
    pairs: list[Array] = [np.empty((0, 2), np.uint64)]
    for size in range(2, SMALL_BUCKET + 1):
        members = numbers[starts[sizes == size][:, None] + np.arange(size)]
        left, right = np.triu_indices(size, 1)
        pairs.append(np.stack((members[:, left].ravel(), members[:, right].ravel()), axis=1))
    return distinct_pairs(np.concatenate(pairs))


def distinct_pairs(pairs: Array) -> Array:
    """Return pairs sorted by (a, b), each once."""
    if not len(pairs):
        return pairs
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    return ordered[np.concatenate(([True], (ordered[1:] != ordered[:-1]).any(axis=1)))]


def large_buckets(numbers: Array, starts: Array, sizes: Array) -> Iterator[Array]:
    """Yield the members of each bucket above SMALL_BUCKET, in order of key."""
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        if size > SMALL_BUCKET:
            yield numbers[start : start + size]


def save_lists(folder: Path, name: str, lists: Sequence[Array]) -> None:
    """Write lists of numbers as `NAME.members.npy` and `NAME.ends.npy`."""
    members = [members.astype(np.uint64, copy=False) for members in lists]
    ends = np.cumsum([len(members) for members in lists], dtype=np.int64)
    save_flat_lists(folder, name, np.concatenate([*members, np.empty(0, np.uint64)]), ends)


def save_flat_lists(folder: Path, name: str, members: Array, ends: Array) -> None:
    """Write lists that are concatenated already, as `save_lists` does; `ends` has the end of each."""
    np.save(folder / f"{name}.members.npy", members)
    np.save(folder / f"{name}.ends.npy", ends)


def load_lists(folder: Path, name: str) -> Iterator[Array]:
    """Yield the lists that `save_lists` wrote, one at a time from a memory map."""
    members = np.load(folder / f"{name}.members.npy", mmap_mode="r")
    ends = np.load(folder / f"{name}.ends.npy")
    for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=False):
        yield np.array(members[start:end])


def edges(a: Array, b: Array, similarity: Array | float) -> Array:
    """Return an array of EDGE, sorted by (a, b)."""
    unsorted = np.empty(len(a), dtype=EDGE)
    unsorted["a"], unsorted["b"], unsorted["similarity"] = a, b, similarity
    return unsorted[np.lexsort((b, a))]


def sort_keys(part: Part, folder: Path, corpus: Corpus, banding: Banding) -> Counts:
    """Write the sorted keys of one shard of signatures: text hashes, and the hash of every band."""
    shard = int(part.name.removeprefix("part-"))
    first, stop = corpus.first[shard : shard + 2]
    num_filled = sum(int(np.count_nonzero(~is_empty(signatures))) for _, signatures in read_signatures(part.file))
    texts = create_keys(folder / f"{part.name}.texts.npy", 1, 3, stop - first)
    bands = create_keys(folder / f"{part.name}.bands.npy", banding.bands, 2, num_filled)
    row = filled_row = 0
    for hashes, signatures in read_signatures(part.file):
        numbers = np.arange(first + row, first + row + len(hashes), dtype=np.uint64)
        texts[0, :, row : row + len(hashes)] = hashes[:, 0], numbers, hashes[:, 1]
        row += len(hashes)
        filled = ~is_empty(signatures)
        end = filled_row + np.count_nonzero(filled)
        bands[:, 0, filled_row:end] = band_hashes(signatures[filled], banding.bands, banding.rows).T
        bands[:, 1, filled_row:end] = numbers[filled]
        filled_row = end
    sort_bands(texts)
    sort_bands(bands)
    return Counts()


def find_copies(part: Part, folder: Path, slices: tuple[Slice, ...]) -> Counts:
    """Find the exact duplicates of one slice of text hashes: an edge from the first document to each copy.

    There are edges even between documents that are not compared with each other, because in the search by
    signatures one of them represents all.
    """
    records = gather_slice(part.files, slices[int(part.name.partition("-")[0])], 0)
    low, numbers, high = records[:, np.lexsort((records[2], records[0]))]
    starts = np.concatenate(([True], (low[1:] != low[:-1]) | (high[1:] != high[:-1])))[: len(low)]
    original = numbers[np.maximum.accumulate(np.where(starts, np.arange(len(low)), 0))]
    np.save(folder / f"{part.name}.npy", edges(original[~starts], numbers[~starts], 1.0))
    return Counts()


def mark_copies(part: Part, folder: Path, corpus: Corpus) -> Counts:
    """Write one byte per document: whether it is an exact copy of an earlier one."""
    marks = np.lib.format.open_memmap(folder / "copies.npy", "w+", np.bool_, (corpus.num_documents,))
    counts = Counts()
    for file in part.files:
        copies = np.load(file)["b"]
        marks[copies] = True
        counts.total("exact_copies", len(copies))
    marks.flush()
    return counts


def find_bucket_pairs(part: Part, folder: Path, slices: tuple[Slice, ...], corpus: Corpus) -> Counts:
    """Find the candidates of one slice of band hashes: pairs of the small buckets, members of the large ones.

    `part.files`: the sorted keys of all shards, then the marks of exact copies, which are left out.
    """
    *keys, copies_file = part.files
    copies = np.load(copies_file, mmap_mode="r")
    key_range = slices[int(part.name.partition("-")[0])]
    pairs: list[Array] = [np.empty((0, 2), np.uint64)]
    large: list[Array] = []
    counts = Counts()
    for band in key_range.bands:
        records = gather_slice(keys, key_range, band)
        records = records[:, ~copies[records[1]]]
        starts, sizes = buckets(records[0])
        pairs.append(bucket_pairs(records[1], starts, sizes))
        large += (members for members in large_buckets(records[1], starts, sizes) if corpus.compares_any(members))
        counts.total("buckets", len(sizes))
    distinct = distinct_pairs(np.concatenate(pairs))
    compared = distinct[corpus.compares(distinct[:, 0], distinct[:, 1])]
    np.save(folder / f"{part.name}.pairs.npy", compared)
    save_lists(folder, f"{part.name}.large", large)
    counts.total("bucket_pairs", len(compared))
    counts.total("large_buckets", len(large))
    counts.total("in_large_buckets", sum(map(len, large)))
    return counts


def mark_candidates(part: Part, folder: Path, corpus: Corpus) -> Counts:
    """Write one byte per document: whether it is in any candidate pair or large bucket."""
    marks = np.lib.format.open_memmap(folder / "candidates.npy", "w+", np.bool_, (corpus.num_documents,))
    for file in part.files:
        if file.name.endswith(".pairs.npy"):
            marks[np.load(file, mmap_mode="r").reshape(-1)] = True
        elif file.name.endswith(".members.npy"):
            marks[np.load(file, mmap_mode="r")] = True
    marks.flush()
    return Counts(totals={"candidate_documents": int(np.count_nonzero(marks))})


def load_large_buckets(files: Sequence[Path]) -> Iterator[Array]:
    """Yield the large buckets of all slices, in order of band and key, one at a time."""
    for file in files:
        if file.name.endswith(".members.npy"):
            yield from load_lists(file.parent, file.name.removesuffix(".members.npy"))
