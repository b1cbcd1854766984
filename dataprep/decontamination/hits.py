"""What the hits in the documents mean: which count, what they are called, and which items stayed clean."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.decontamination.ngrams import Index, Windows

Array = np.ndarray[Any, Any]

CONTAMINATION_SCHEMA = pa.schema(
    [
        pa.field("task", pa.string()),
        pa.field("split", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("field", pa.string()),
        pa.field("shard", pa.int32()),
        pa.field("row", pa.int64()),
        pa.field("doc_id", pa.binary(16)),
        pa.field("url", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("ngram", pa.string()),
        pa.field("word", pa.int64()),
        pa.field("action", pa.string()),
    ]
)
"""One item in one document: the first run of words that both have, at which word of the document."""

IGNORED_SCHEMA = pa.schema(
    [
        pa.field("ngram", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("documents", pa.int64()),
        pa.field("items", pa.int64()),
    ]
)
"""A run of words that is in so many documents that it says nothing about any item."""


def count_hits(hits: Sequence[Array], index: Index) -> dict[int, Array]:
    """In how many documents each key of each length occurs."""
    counts = {length: np.zeros(len(table.keys), dtype=np.int64) for length, table in index.tables.items()}
    for found in hits:
        for length in counts:
            keys = found["key"][found["length"] == length]
            counts[length] += np.bincount(keys, minlength=len(counts[length]))
    return counts


class Findings:
    """The index, its items, and which of its keys are too common to count."""

    def __init__(self, folder: Path, counts: Path, windows: Windows, threshold: int) -> None:
        self._folder = folder
        self.index = Index(folder, windows)
        self.counts = {length: np.load(counts / f"counts-{length:02d}.npy") for length in self.index.tables}
        self.common = {length: documents >= threshold for length, documents in self.counts.items()}

    @functools.cached_property
    def items(self) -> pa.Table:
        """Every text of every item (`dataprep.glue.items.ITEM_SCHEMA`); its row number is the item."""
        return pq.read_table(str(self._folder / "items.parquet"))

    def counting(self, hits: Array) -> Array:
        """The hits whose key is not too common."""
        keep = np.ones(len(hits), dtype=bool)
        for length, common in self.common.items():
            here = hits["length"] == length
            keep[here] = ~common[hits["key"][here]]
        return hits[keep]

    def drops(self, length: int) -> bool:
        """Whether a run of this many words is reason enough to drop a document."""
        return self.index.windows.kind(length) != "sentence"

    def by_row(self, hits: Array) -> dict[int, str]:
        """For each row that a hit would drop, its first item as `task/split/index`."""
        first: dict[int, str] = {}
        for hit in hits[np.lexsort((hits["length"], hits["start"], hits["row"]))]:
            if self.drops(int(hit["length"])) and int(hit["row"]) not in first:
                item = self.items.slice(int(self._entries(hit)["item"][0]), 1).to_pylist()[0]
                first[int(hit["row"])] = f"{item['task']}/{item['split']}/{item['index']}"
        return first

    def rows(self, hits: Array) -> Iterator[dict[str, Any]]:
        """One row per item and document, without the document's names: `row` is its number in the shard."""
        seen: set[tuple[int, int]] = set()
        for hit in hits[np.lexsort((hits["length"], hits["start"], hits["row"]))]:
            row, length = int(hit["row"]), int(hit["length"])
            for entry in self._entries(hit):
                if (row, int(entry["item"])) in seen:
                    continue
                seen.add((row, int(entry["item"])))
                item = self.items.slice(int(entry["item"]), 1).to_pylist()[0]
                words = item.pop("words").split(" ")[int(entry["start"]) :][:length]
                kind = self.index.windows.kind(length)
                yield {**item, "row": row, "kind": kind, "ngram": " ".join(words), "word": int(hit["start"])}

    def found_items(self, hits: Array) -> Array:
        """The items of these hits, each once."""
        items = [
            table.items(key)["item"]
            for length, table in self.index.tables.items()
            for key in np.unique(hits["key"][hits["length"] == length]).tolist()
        ]
        return np.unique(np.concatenate([*items, np.empty(0, np.uint32)]))

    def ignored(self) -> Iterator[dict[str, Any]]:
        """The keys that are too common, the shortest first."""
        for length, table in self.index.tables.items():
            for key in np.flatnonzero(self.common[length]).tolist():
                entries = table.items(key)
                words = self.items["words"][int(entries["item"][0])].as_py().split(" ")
                ngram = " ".join(words[int(entries["start"][0]) :][:length])
                items = len(np.unique(entries["item"]))
                kind = self.index.windows.kind(length)
                yield {"ngram": ngram, "kind": kind, "documents": int(self.counts[length][key]), "items": items}

    def _entries(self, hit: Any) -> Array:
        return self.index.tables[int(hit["length"])].items(int(hit["key"]))
