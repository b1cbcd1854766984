"""What the hits in the documents mean: which count, what they are called, and which items stayed clean."""

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.decontamination.ngrams import Index, Windows, first_of_each
from dataprep.dedup.shingles import find_words
from dataprep.text.folding import fold_case, raw_texts
from pipelines import store

Array = np.ndarray[Any, Any]

FOUND = np.dtype(
    [
        *((name, "<u8") for name in ("row", "start", "end")),
        *((name, "<u4") for name in ("word", "length", "item", "first")),
    ]
)
"""An item in a row: a run of `length` words, the item's from word `first` on, at word `word` of the document."""
_PLACES = ("row", "word", "start", "end")
_BATCH_ROWS = 4096

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
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("action", pa.string()),
    ]
)
"""One item in one document: the first run of words that both have, as folded words, and where it stands in the
document: at which word, and as `text[start:end]`, in characters (code points)."""

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
        first = first_of_each(found)
        for length in counts:
            counts[length] += np.bincount(first["key"][first["length"] == length], minlength=len(counts[length]))
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
        """Every text of every item (`dataprep.decontamination.items.ITEM_SCHEMA`); its row number is the item."""
        with pa.ipc.open_file(pa.memory_map(str(self._folder / "items.arrow"))) as file:
            return file.read_all()

    @functools.cached_property
    def sources(self) -> list[dict[str, Any]]:
        """What the index was made of: task, split, sha256, and which items are its own."""
        return store.read_json(self._folder / "sources.json")

    @functools.cached_property
    def broken_lines(self) -> list[dict[str, Any]]:
        """The lines of targets that are no items: url (target:line), rule, value."""
        return store.read_json(self._folder / "broken.json")

    def is_glue(self, task: str) -> bool:
        """Whether a task is one of GLUE's, not a target of the user's own."""
        return any(source["is_glue"] for source in self.sources if source["task"] == task)

    def counting(self, hits: Array) -> Array:
        """The hits whose key is not too common."""
        keep = np.ones(len(hits), dtype=bool)
        for length, common in self.common.items():
            here = hits["length"] == length
            keep[here] = ~common[hits["key"][here]]
        return hits[keep]

    def removing(self, hits: Array) -> Array:
        """The hits that are reason enough to drop or cut a document: those of 8 words and more, by default."""
        return hits[hits["length"] >= self.index.windows.min_words]

    def first_items(self, hits: Array) -> dict[int, dict[str, Any]]:
        """For each row with hits, its first item."""
        found = self._found(hits)
        rows, first = np.unique(found["row"], return_index=True)
        items = self.items.select(["task", "split", "index"]).take(pa.array(found["item"][first])).to_pylist()
        return dict(zip(rows.tolist(), items, strict=True))

    def spans(self, hits: Array, row: int) -> list[tuple[int, int]]:
        """First character, and the one after the last, of each of the hits in a row; hits are sorted by row."""
        first, stop = np.searchsorted(hits["row"], np.array([row, row + 1], hits["row"].dtype)).tolist()
        own = hits[first:stop]
        return list(zip(own["start"].tolist(), own["end"].tolist(), strict=True))

    def rows(self, hits: Array) -> Iterator[dict[str, Any]]:
        """One row per item and document, without the document's names: `row` is its number in the shard."""
        found = self._found(first_of_each(hits))
        for at in range(0, len(found), _BATCH_ROWS):
            batch = found[at : at + _BATCH_ROWS]
            items = self.items.take(pa.array(batch["item"]))
            places = (dict(zip(_PLACES, place, strict=True)) for place in batch[[*_PLACES]].tolist())
            named = items.drop_columns("text").to_pylist()
            runs = _runs_of_words(items["text"], batch["first"], batch["length"])
            for item, place, run, length in zip(named, places, runs, batch["length"].tolist(), strict=True):
                yield {**item, **place, "kind": self.index.windows.kind(length), "ngram": run}

    def found_items(self, hits: Array) -> Array:
        """The items of these hits, each once."""
        return np.unique(self._found(first_of_each(hits))["item"])

    def _found(self, hits: Array) -> Array:
        """Each item once for each row that holds it, as an array of FOUND, by first place in the row."""
        found = [np.empty(0, FOUND)]
        for length, table in self.index.tables.items():
            own = hits[hits["length"] == length]
            entries, counts = table.entries_of(own["key"])
            each = np.empty(len(entries), FOUND)
            for name in ("row", "word", "start", "end", "length"):
                each[name] = np.repeat(own[name], counts)
            each["item"], each["first"] = entries["item"], entries["start"]
            found.append(each)
        every = np.concatenate(found)
        every = every[np.lexsort((every["first"], every["length"], every["word"], every["item"], every["row"]))]
        again = (every["item"][1:] == every["item"][:-1]) & (every["row"][1:] == every["row"][:-1])
        every = every[np.concatenate(([True], ~again))[: len(every)]]
        return every[np.lexsort((every["item"], every["length"], every["word"], every["row"]))]

    def clean_rows(self, found: Array) -> dict[str, dict[str, list[int]]]:
        """Task -> split -> the `index` of every row none of whose texts is `found`, in ascending order."""
        clean: dict[str, dict[str, list[int]]] = {}
        indexes = self.items["index"].to_numpy()
        for source in self.sources:
            own = slice(source["first_item"], source["first_item"] + source["num_items"])
            rows = np.setdiff1d(indexes[own], indexes[own][found[own]])
            clean.setdefault(source["task"], {})[source["split"]] = rows.tolist()
        return clean

    def ignored(self) -> Iterator[dict[str, Any]]:
        """The keys that are too common, the shortest first."""
        for length, table in self.index.tables.items():
            for key in np.flatnonzero(self.common[length]).tolist():
                entries = table.items(key)
                texts = self.items["text"].take(pa.array(entries["item"][:1]))
                (ngram,) = _runs_of_words(texts, entries["start"][:1], np.array([length]))
                items = len(np.unique(entries["item"]))
                kind = self.index.windows.kind(length)
                yield {"ngram": ngram, "kind": kind, "documents": int(self.counts[length][key]), "items": items}


def _runs_of_words(texts: pa.ChunkedArray, firsts: Array, lengths: Array) -> Iterator[str]:
    """Of each text so many folded words from word `firsts[i]` on, with single spaces between them."""
    words = find_words(fold_case(raw_texts(pa.concat_arrays(texts.chunks))))
    starts = words.first[:-1] + firsts
    return (words.text(*span) for span in zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
