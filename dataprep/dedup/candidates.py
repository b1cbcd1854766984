"""From signatures to candidate pairs: the steps of find_duplicates that sort keys on disk.

Documents are numbers (their place in the corpus, uint64). Each function is one shard of a step: it reads
`part.files` and writes NumPy files into `folder`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.dedup.banding import Banding
from dataprep.dedup.buckets import (
    Slice,
    bucket_pairs,
    buckets,
    create_keys,
    distinct_pairs,
    gather_slice,
    large_buckets,
    load_lists,
    save_lists,
    sort_bands,
)
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.minhash import band_hashes, is_empty
from dataprep.dedup.signatures import read_signatures
from pipelines.command import Part
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

EDGE = np.dtype([("a", "<u8"), ("b", "<u8"), ("similarity", "<f8")])
"""A pair of documents a < b with its similarity."""


def edges(a: Array, b: Array, similarity: Array | float) -> Array:
    """As an array of EDGE, sorted by (a, b)."""
    found = np.empty(len(a), dtype=EDGE)
    found["a"], found["b"], found["similarity"] = a, b, similarity
    return found[np.lexsort((found["b"], found["a"]))]


def sort_keys(part: Part, folder: Path, corpus: Corpus, banding: Banding) -> Counts:
    """The keys of one shard of signatures, sorted: text hashes, and the hash of every band."""
    shard = int(part.name.removeprefix("part-"))
    first, stop = corpus.first[shard : shard + 2]
    num_filled = sum(int(np.count_nonzero(~is_empty(signatures))) for _, signatures in read_signatures(part.file))
    texts = create_keys(folder / f"{part.name}.texts.npy", 1, 3, stop - first)
    bands = create_keys(folder / f"{part.name}.bands.npy", banding.bands, 2, num_filled)
    place = filled_place = 0
    for hashes, signatures in read_signatures(part.file):
        numbers = np.arange(first + place, first + place + len(hashes), dtype=np.uint64)
        texts[0, :, place : place + len(hashes)] = hashes[:, 0], numbers, hashes[:, 1]
        place += len(hashes)
        filled = ~is_empty(signatures)
        end = filled_place + np.count_nonzero(filled)
        bands[:, 0, filled_place:end] = band_hashes(signatures[filled], banding.bands, banding.rows).T
        bands[:, 1, filled_place:end] = numbers[filled]
        filled_place = end
    sort_bands(texts)
    sort_bands(bands)
    return Counts()


def find_copies(part: Part, folder: Path, slices: tuple[Slice, ...]) -> Counts:
    """Exact duplicates of one slice of text hashes: an edge from the first document to each copy.

    Also between documents that are not compared with each other: one stands for all in the search by signatures.
    """
    records = gather_slice(part.files, slices[int(part.name.partition("-")[0])], 0)
    keys, numbers, more = records[:, np.lexsort((records[2], records[0]))]
    starts = np.concatenate(([True], (keys[1:] != keys[:-1]) | (more[1:] != more[:-1])))[: len(keys)]
    original = numbers[np.maximum.accumulate(np.where(starts, np.arange(len(keys)), 0))]
    np.save(folder / f"{part.name}.npy", edges(original[~starts], numbers[~starts], 1.0))
    return Counts()


def mark_copies(part: Part, folder: Path, corpus: Corpus) -> Counts:
    """One byte per document: whether it is an exact copy of an earlier one."""
    marks = np.lib.format.open_memmap(folder / "copies.npy", "w+", np.bool_, (corpus.num_documents,))
    counts = Counts()
    for file in part.files:
        copies = np.load(file)["b"]
        marks[copies] = True
        counts.total("exact_copies", len(copies))
    marks.flush()
    return counts


def find_bucket_pairs(part: Part, folder: Path, slices: tuple[Slice, ...], corpus: Corpus) -> Counts:
    """Candidates of one slice of band hashes: pairs of the small buckets, members of the large ones.

    `part.files`: the sorted keys of all shards, then the marks of exact copies, which stay out.
    """
    *keys, copies_file = part.files
    copies = np.load(copies_file, mmap_mode="r")
    this = slices[int(part.name.partition("-")[0])]
    pairs: list[Array] = [np.empty((0, 2), np.uint64)]
    large: list[Array] = []
    counts = Counts()
    for band in this.bands:
        records = gather_slice(keys, this, band)
        records = records[:, ~copies[records[1]]]
        starts, sizes = buckets(records[0])
        pairs.append(bucket_pairs(records[1], starts, sizes))
        large += (members for members in large_buckets(records[1], starts, sizes) if corpus.compares_any(members))
        counts.total("buckets", len(sizes))
    found = distinct_pairs(np.concatenate(pairs))
    found = found[corpus.compares(found[:, 0], found[:, 1])]
    np.save(folder / f"{part.name}.pairs.npy", found)
    save_lists(folder, f"{part.name}.large", large)
    counts.total("bucket_pairs", len(found))
    counts.total("large_buckets", len(large))
    counts.total("in_large_buckets", sum(map(len, large)))
    return counts


def mark_candidates(part: Part, folder: Path, corpus: Corpus) -> Counts:
    """One byte per document: whether it is in any candidate pair or large bucket."""
    marks = np.lib.format.open_memmap(folder / "candidates.npy", "w+", np.bool_, (corpus.num_documents,))
    for file in part.files:
        if file.name.endswith(".pairs.npy"):
            marks[np.load(file, mmap_mode="r").reshape(-1)] = True
        elif file.name.endswith(".members.npy"):
            marks[np.load(file, mmap_mode="r")] = True
    marks.flush()
    return Counts(totals={"candidate_documents": int(np.count_nonzero(marks))})


def load_large_buckets(files: Sequence[Path]) -> Iterator[Array]:
    """The large buckets of all slices, in order of band and key, one at a time."""
    for file in files:
        if file.name.endswith(".members.npy"):
            yield from load_lists(file.parent, file.name.removesuffix(".members.npy"))
