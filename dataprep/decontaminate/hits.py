"""What the hits in the documents mean: which of them count, the items they belong to, and which items are clean."""

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.decontaminate.keys import NEAR, Windows
from dataprep.decontaminate.ngrams import Index, first_of_each
from dataprep.decontaminate.offsets import compared_words
from dataprep.text.folding import raw_texts
from pipelines import store

Array = np.ndarray[Any, Any]

ITEM_HIT = np.dtype(
    [
        *((name, "<u8") for name in ("row", "start", "end")),
        *((name, "<u4") for name in ("word", "length", "item", "first")),
    ]
)
"""An item in a row: a run of `length` words from word `first` of the item, at word `word` of the document."""
_LOCATION = ("row", "word", "start", "end")
_BATCH = 1024
"""Items, with their texts, that are held at a time."""

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
"""One item in one document: the first run of words that both share, as folded words, and its location in the
document: its first word, and `text[start:end]` in characters (code points). If it is `near`, all words of the item."""

IGNORED_SCHEMA = pa.schema(
    [
        pa.field("ngram", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("documents", pa.int64()),
        pa.field("items", pa.int64()),
    ]
)
"""A run of words in too many documents to indicate any item."""


def count_hits(hits: Iterable[Array], index: Index) -> dict[int, Array]:
    """Count the documents in which each key of each length occurs."""
    counts = {length: np.zeros(len(table.keys), dtype=np.int64) for length, table in index.tables.items()}
    for of_shard in hits:
        first = first_of_each(of_shard)
        for length in counts:
            counts[length] += np.bincount(first["key"][first["length"] == length], minlength=len(counts[length]))
    return counts


class CountedIndex:
    """The index, its items, and which of its keys are too common to count."""

    def __init__(self, folder: Path, counts: Path, windows: Windows, threshold: int) -> None:
        self._folder = folder
        self.index = Index(folder, windows)
        self.counts = {length: np.load(counts / f"counts-{length:02d}.npy") for length in self.index.tables}
        self.common = {length: documents >= threshold for length, documents in self.counts.items()}

    @functools.cached_property
    def items(self) -> pa.Table:
        """Every text of every item (`dataprep.decontaminate.items.ITEM_SCHEMA`); the row number is the item's."""
        with pa.ipc.open_file(pa.memory_map(str(self._folder / "items.arrow"))) as file:
            return file.read_all()

    @functools.cached_property
    def sources(self) -> list[dict[str, Any]]:
        """The sources of the index: task, split, sha256, and the range of its items."""
        return store.read_json(self._folder / "sources.json")

    @functools.cached_property
    def broken_lines(self) -> list[dict[str, Any]]:
        """The lines of targets that are not items: url (target:line), rule, value."""
        return store.read_json(self._folder / "broken.json")

    def is_glue(self, task: str) -> bool:
        """Return whether a task is one of GLUE's, not a target of the user."""
        return any(source["is_glue"] for source in self.sources if source["task"] == task)

    def without_common(self, hits: Array) -> Array:
        """Return the hits whose key is not too common."""
        keep = np.ones(len(hits), dtype=bool)
        for length, common in self.common.items():
            of_length = hits["length"] == length
            keep[of_length] = ~common[hits["key"][of_length]]
        return hits[keep]

    def long_enough(self, hits: Array) -> Array:
        """Return the hits that justify dropping or cutting a document: near ones, and by default those of 8 words."""
        return hits[(hits["length"] >= self.index.windows.min_words) | (hits["length"] == NEAR)]

    def first_items(self, hits: Array) -> dict[int, dict[str, Any]]:
        """Return, for each row with hits, the first item of the first hit."""
        hits = hits[np.lexsort((hits["length"], hits["word"], hits["row"]))]
        rows, first = np.unique(hits["row"], return_index=True)
        hits, numbers = hits[first], np.empty(len(rows), np.int64)
        for length, table in self.index.tables.items():
            of_length = hits["length"] == length
            numbers[of_length] = table.first_entries(hits["key"][of_length])["item"]
        items = self.items.select(["task", "split", "index"]).take(pa.array(numbers)).to_pylist()
        return dict(zip(rows.tolist(), items, strict=True))

    def rows(self, hits: Array) -> Iterator[dict[str, Any]]:
        """Yield a row per item and document, without the document's id and URL: `row` is its number in the shard."""
        for batch in self._batches(first_of_each(hits)):
            items = self.items.drop_columns("text").take(pa.array(batch["item"])).to_pylist()
            locations = (dict(zip(_LOCATION, location, strict=True)) for location in batch[[*_LOCATION]].tolist())
            runs = _runs_of_words(self.items["text"], batch["item"], batch["first"], batch["length"])
            for item, location, run, length in zip(items, locations, runs, batch["length"].tolist(), strict=True):
                yield {**item, **location, "kind": self.index.windows.kind(length), "ngram": run}

    def items_of(self, hits: Array) -> Array:
        """Return the items of these hits, with repetitions."""
        numbers = [np.empty(0, np.uint32)]
        for length, table in self.index.tables.items():
            numbers.append(table.entries_of(np.unique(hits["key"][hits["length"] == length]))[0]["item"])
        return np.concatenate(numbers)

    def _batches(self, hits: Array) -> Iterator[Array]:
        """Yield the results of `_item_hits` for a few rows at a time: one run of words may represent many items."""
        counts = np.empty(len(hits), np.int64)
        for length, table in self.index.tables.items():
            of_length = hits["length"] == length
            counts[of_length] = table.num_entries(hits["key"][of_length])
        ends, rows = np.cumsum(counts), hits["row"].copy()
        start = 0
        while start < len(hits):
            before = ends[start - 1] if start else 0
            last = max(start, int(np.searchsorted(ends, before + _BATCH, side="right")) - 1)
            stop = int(np.searchsorted(rows, rows[last], side="right"))
            item_hits = self._item_hits(hits[start:stop])
            yield from (item_hits[at : at + _BATCH] for at in range(0, len(item_hits), _BATCH))
            start = stop

    def _item_hits(self, hits: Array) -> Array:
        """Return each item once for each row that has it, as an array of ITEM_HIT, in order of first word."""
        of_lengths = [np.empty(0, ITEM_HIT)]
        for length, table in self.index.tables.items():
            of_length = hits[hits["length"] == length]
            entries, counts = table.entries_of(of_length["key"])
            each = np.empty(len(entries), ITEM_HIT)
            for name in ("row", "word", "start", "end", "length"):
                each[name] = np.repeat(of_length[name], counts)
            each["item"], each["first"] = entries["item"], entries["start"]
            of_lengths.append(each)
        every = np.concatenate(of_lengths)
        every = every[np.lexsort((every["first"], every["length"], every["word"], every["item"], every["row"]))]
        repeated = (every["item"][1:] == every["item"][:-1]) & (every["row"][1:] == every["row"][:-1])
        every = every[np.concatenate(([True], ~repeated))[: len(every)]]
        return every[np.lexsort((every["item"], every["length"], every["word"], every["row"]))]

    def clean_rows(self, is_found: Array) -> dict[str, dict[str, list[int]]]:
        """Return task -> split -> the ascending `index` of every row without a found text; `is_found` is by item."""
        clean: dict[str, dict[str, list[int]]] = {}
        indexes = self.items["index"].to_numpy()
        for source in self.sources:
            items = slice(source["first_item"], source["first_item"] + source["num_items"])
            rows = np.setdiff1d(indexes[items], indexes[items][is_found[items]])
            clean.setdefault(source["task"], {})[source["split"]] = rows.tolist()
        return clean

    def ignored(self) -> Iterator[dict[str, Any]]:
        """Yield the keys that are too common, the shortest first."""
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
    """Yield the spans of hits in each row that has some, as (first character, end); overlapping spans are merged.

    `hits` are sorted by row. A long item that is copied completely has a hit at each of its words, but one span.
    """
    firsts = np.unique(hits["row"], return_index=True)[1]
    for of_row in np.split(hits, firsts)[1:]:
        ordered = of_row[np.argsort(of_row["start"], kind="stable")]
        ends = np.maximum.accumulate(ordered["end"])
        apart = ordered["start"][1:] > ends[:-1]
        starts, stops = ordered["start"][np.append(True, apart)], ends[np.append(apart, True)]
        yield list(zip(starts.tolist(), stops.tolist(), strict=True))


def _runs_of_words(texts: pa.ChunkedArray, items: Array, firsts: Array, lengths: Array | int) -> Iterator[str]:
    """Yield `lengths[i]` folded words of each item's text from word `firsts[i]`, separated by single spaces.

    Of an item with near matches, all words.
    """
    distinct, which = np.unique(items, return_inverse=True)
    words = compared_words(raw_texts(pa.concat_arrays(texts.take(pa.array(distinct)).chunks)))
    starts = words.first[:-1][which] + firsts
    stops = np.where(np.equal(lengths, NEAR), words.first[1:][which], starts + lengths)
    return (words.text(*span) for span in zip(starts.tolist(), stops.tolist(), strict=True))
