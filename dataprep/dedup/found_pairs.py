"""From edges between numbers to the published pairs of documents: the last step of find_duplicates."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.dedup.arrays import from_numpy
from dataprep.dedup.buckets import Slice, even_cuts, key_ranges
from dataprep.dedup.candidates import EDGE
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.pairs import PAIR_METADATA, PAIR_SCHEMA, ROW_GROUP, RowGroups, take_rows
from dataprep.dedup.verification import Measure, distinct_edges, document_table
from pipelines.columns import column
from pipelines.command import Part
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

SHARDS_PER_PART = 16
"""Document shards whose pairs share one output file: part of the format, so a constant."""
_BYTES_PER_PAIR = 1500
"""Memory for each pair that is named at a time."""


def output_parts(found: Sequence[Path], signatures: Sequence[Path]) -> list[Part]:
    """One output file for every 16 document shards, by the first document of a pair."""
    count = -(-len(signatures) // SHARDS_PER_PART)
    return [Part(f"part-{number:05d}", (*found, *signatures)) for number in range(count)]


def write_pairs(part: Part, folder: Path, corpus: Corpus, measure: Measure, large_clusters: int, memory: int) -> Counts:
    """The pairs whose first document is in one range of shards, with names for numbers."""
    number = int(part.name.removeprefix("part-"))
    last = len(corpus.first) - 1
    low, high = (corpus.first[min(SHARDS_PER_PART * n, last)] for n in (number, number + 1))
    files = [file for file in part.files if file.suffix == ".npy"]
    signatures = [file for file in part.files if file.suffix == ".parquet"]
    rows = max(ROW_GROUP, memory // _BYTES_PER_PAIR)
    counts = Counts(totals={"exact_pairs": 0, "near_pairs": 0})
    schema = PAIR_SCHEMA.with_metadata(_metadata(measure, large_clusters))
    with RowGroups(folder / f"{part.name}.parquet", schema) as file:
        for piece in _ranges(files, low, high, rows):
            pairs, kinds = _sorted_pairs(files, piece, corpus, counts)
            for some in (slice(start, start + rows) for start in range(0, len(pairs), rows)):
                file.write(_name_pairs(pairs[some], kinds[some], signatures, corpus))
    counts.rows_out = sum(counts.totals.values())
    return counts


def _ranges(files: Sequence[Path], low: int, high: int, rows: int) -> list[Slice]:
    """The documents low <= a < high in ranges of about so many edges."""
    whole = Slice(range(1), low, high)
    firsts = [np.load(file, mmap_mode="r")["a"] for file in files]
    firsts = [numbers[whole.within(numbers)] for numbers in firsts]
    return key_ranges(even_cuts(firsts, -(-sum(map(len, firsts)) // rows)), whole.bands, low, high)


def _sorted_pairs(files: Sequence[Path], piece: Slice, corpus: Corpus, counts: Counts) -> tuple[Array, Array]:
    """The edges of one range of first documents in order, and of what kind each is."""
    exact_files = [file for file in files if file.parent.name.startswith("exact-")]
    exact = _read_edges(exact_files, piece)
    compared, old = corpus.compares(exact["a"], exact["b"]), exact["b"] < corpus.num_old
    found = {
        "exact": exact[compared],
        "near": _read_edges([file for file in files if file not in exact_files], piece),
        "twin": exact[~compared & ~old],
    }
    for kind, some in found.items():
        if len(some):
            counts.total(f"{kind}_pairs", len(some))
    pairs = np.concatenate(list(found.values()))
    order = np.lexsort((pairs["b"], pairs["a"]))
    return pairs[order], np.repeat(list(found), [len(some) for some in found.values()])[order]


def _metadata(measure: Measure, large_clusters: int) -> dict[bytes, str]:
    made = {"threshold": measure.threshold, "jaccard": measure.mode, "sources": measure.sources}
    return {
        PAIR_METADATA: json.dumps({**made, "large_clusters": large_clusters, **asdict(measure.meta)}, sort_keys=True)
    }


def _read_edges(files: Sequence[Path], piece: Slice) -> Array:
    """The edges of one range of first documents, of files that are each sorted by them."""
    pieces = [np.empty(0, EDGE)]
    for file in files:
        stored = np.load(file, mmap_mode="r")
        pieces.append(np.array(stored[piece.within(stored["a"])]))
    return distinct_edges(np.concatenate(pieces))


def _name_pairs(pairs: Array, kinds: Array, signatures: Sequence[Path], corpus: Corpus) -> pa.Table:
    numbers = np.unique(np.concatenate((pairs["a"], pairs["b"])))
    documents = document_table(numbers, signatures, corpus)
    columns: list[pa.ChunkedArray | pa.Array] = []
    for side in ("a", "b"):
        columns += take_rows(documents, np.searchsorted(numbers, pairs[side])).columns
    columns += [from_numpy(pairs["similarity"]), column(kinds.tolist(), pa.string())]
    return pa.Table.from_arrays(columns, schema=PAIR_SCHEMA)
