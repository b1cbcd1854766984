"""From edges between numbers to the published pairs of documents: the last step of find_duplicates."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.dedup.arrays import from_numpy
from dataprep.dedup.candidates import EDGE
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.pairs import PAIR_METADATA, PAIR_SCHEMA, take_rows, write_table
from dataprep.dedup.verification import Measure, distinct_edges, document_table
from pipelines.columns import column
from pipelines.command import Part
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

SHARDS_PER_PART = 16
"""Document shards whose pairs share one output file: part of the format, so a constant."""


def output_parts(found: Sequence[Path], signatures: Sequence[Path]) -> list[Part]:
    """One output file for every 16 document shards, by the first document of a pair."""
    count = -(-len(signatures) // SHARDS_PER_PART)
    return [Part(f"part-{number:05d}", (*found, *signatures)) for number in range(count)]


def write_pairs(part: Part, folder: Path, corpus: Corpus, measure: Measure) -> Counts:
    """The pairs whose first document is in one range of shards, with names for numbers."""
    number = int(part.name.removeprefix("part-"))
    last = len(corpus.first) - 1
    low, high = (corpus.first[min(SHARDS_PER_PART * n, last)] for n in (number, number + 1))
    files = [file for file in part.files if file.suffix == ".npy"]
    exact_files = [file for file in files if file.parent.name.startswith("exact-")]
    exact = _read_edges(exact_files, low, high)
    compared, old = corpus.compares(exact["a"], exact["b"]), exact["b"] < corpus.num_old
    found = {
        "exact": exact[compared],
        "near": _read_edges([file for file in files if file not in exact_files], low, high),
        "twin": exact[~compared & ~old],
    }
    pairs = np.concatenate(list(found.values()))
    order = np.lexsort((pairs["b"], pairs["a"]))
    kinds = np.repeat(list(found), [len(edges) for edges in found.values()])[order]
    signatures = [file for file in part.files if file.suffix == ".parquet"]
    table = _name_pairs(pairs[order], kinds, signatures, corpus)
    write_table(folder / f"{part.name}.parquet", table.replace_schema_metadata(_metadata(measure)))
    return Counts(
        rows_out=len(pairs), totals={f"{kind}_pairs": len(e) for kind, e in found.items() if len(e) or kind != "twin"}
    )


def _metadata(measure: Measure) -> dict[bytes, str]:
    made = {"threshold": measure.threshold, "jaccard": measure.mode, "sources": measure.sources}
    return {PAIR_METADATA: json.dumps({**made, **asdict(measure.meta)}, sort_keys=True)}


def _read_edges(files: Sequence[Path], low: int, high: int) -> Array:
    """The edges with low <= a < high of files that are each sorted by a."""
    pieces = [np.empty(0, EDGE)]
    for file in files:
        stored = np.load(file, mmap_mode="r")
        start, stop = np.searchsorted(stored["a"], np.array([low, high], dtype=np.uint64))
        pieces.append(np.array(stored[start:stop]))
    return distinct_edges(np.concatenate(pieces))


def _name_pairs(pairs: Array, kinds: Array, signatures: Sequence[Path], corpus: Corpus) -> pa.Table:
    numbers = np.unique(np.concatenate((pairs["a"], pairs["b"])))
    documents = document_table(numbers, signatures, corpus)
    columns: list[pa.ChunkedArray | pa.Array] = []
    for side in ("a", "b"):
        columns += take_rows(documents, np.searchsorted(numbers, pairs[side])).columns
    columns += [from_numpy(pairs["similarity"]), column(kinds.tolist(), pa.string())]
    return pa.Table.from_arrays(columns, schema=PAIR_SCHEMA)
