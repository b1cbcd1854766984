"""What the hits in the documents mean: which count, what they are called, and which items stayed clean."""

import functools
from collections.abc import Iterable, Iterator
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
_BATCH = 1024
"""So many items, and their texts, are held at a time."""

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


def count_hits(hits: Iterable[Array], index: Index) -> dict[int, Array]:
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
        """For each row with hits, the first item of the first hit."""
        hits = hits[np.lexsort((hits["length"], hits["word"], hits["row"]))]
        rows, first = np.unique(hits["row"], return_index=True)
        hits, found = hits[first], np.empty(len(rows), np.int64)
        for length, table in self.index.tables.items():
            own = hits["length"] == length
            found[own] = table.first_entries(hits["key"][own])["item"]
        items = self.items.select(["task", "split", "index"]).take(pa.array(found)).to_pylist()
        return dict(zip(rows.tolist(), items, strict=True))

    def rows(self, hits: Array) -> Iterator[dict[str, Any]]:
        """One row per item and document, without the document's names: `row` is its number in the shard."""
        for found in self._batches(first_of_each(hits)):
            named = self.items.drop_columns("text").take(pa.array(found["item"])).to_pylist()
            places = (dict(zip(_PLACES, place, strict=True)) for place in found[[*_PLACES]].tolist())
            runs = _runs_of_words(self.items["text"], found["item"], found["first"], found["length"])
            for item, place, run, length in zip(named, places, runs, found["length"].tolist(), strict=True):
                yield {**item, **place, "kind": self.index.windows.kind(length), "ngram": run}

    def found_items(self, hits: Array) -> Array:
        """The items of these hits; some more than once."""
        found = [np.empty(0, np.uint32)]
        for length, table in self.index.tables.items():
            found.append(table.entries_of(np.unique(hits["key"][hits["length"] == length]))[0]["item"])
        return np.concatenate(found)

    def _batches(self, hits: Array) -> Iterator[Array]:
        """As `_found`, some rows at a time: one run of words may stand for many items."""
        counts = np.empty(len(hits), np.int64)
        for length, table in self.index.tables.items():
            own = hits["length"] == length
            counts[own] = table.num_entries(hits["key"][own])
        ends, rows = np.cumsum(counts), hits["row"].copy()
        start = 0
        while start < len(hits):
            before = ends[start - 1] if start else 0
            last = max(start, int(np.searchsorted(ends, before + _BATCH, side="right")) - 1)
            stop = int(np.searchsorted(rows, rows[last], side="right"))
            found = self._found(hits[start:stop])
            yield from (found[at : at + _BATCH] for at in range(0, len(found), _BATCH))
            start = stop

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
            common = np.flatnonzero(self.common[length])
            for keys in (common[at : at + _BATCH] for at in range(0, len(common), _BATCH)):
                first = table.first_entries(keys)
                runs = _runs_of_words(self.items["text"], first["item"], first["start"], length)
                kind = self.index.windows.kind(length)
                for key, ngram in zip(keys.tolist(), runs, strict=True):
                    items = len(np.unique(table.items(key)["item"]))
                    yield {"ngram": ngram, "kind": kind, "documents": int(self.counts[length][key]), "items": items}


def spans_by_row(hits: Array) -> Iterator[list[tuple[int, int]]]:
    """For each row with hits their spans, first character and the one after the last, those that overlap as one.

    `hits` are sorted by row. A long item that is copied whole is a hit at each of its words, and one span.
    """
    firsts = np.unique(hits["row"], return_index=True)[1]
    for each in np.split(hits, firsts)[1:]:
        own = each[np.argsort(each["start"], kind="stable")]
        ends = np.maximum.accumulate(own["end"])
        apart = own["start"][1:] > ends[:-1]
        starts, stops = own["start"][np.append(True, apart)], ends[np.append(apart, True)]
        yield list(zip(starts.tolist(), stops.tolist(), strict=True))


def _runs_of_words(texts: pa.ChunkedArray, items: Array, firsts: Array, lengths: Array | int) -> Iterator[str]:
    """Of the text of each item so many folded words from word `firsts[i]` on, with single spaces between them."""
    own, which = np.unique(items, return_inverse=True)
    words = find_words(fold_case(raw_texts(pa.concat_arrays(texts.take(pa.array(own)).chunks))))
    starts = words.first[:-1][which] + firsts
    return (words.text(*span) for span in zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
