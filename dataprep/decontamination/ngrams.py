"""Finding evaluation items in documents: an index of word n-grams, and the look-up in many texts at a time.

An item with at least `ngram` words is looked for by each of its runs of that many words; one with
`min_words` to `ngram - 1` words by its whole text; a shorter one only as a sentence of its own, because
a few common words say little. Words are those of `dataprep.dedup.shingles`, after NFC and case folding; hits
are told in characters of the text as it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.decontamination.offsets import OffsetMap
from dataprep.decontamination.sentences import sentence_edges
from dataprep.dedup.shingles import BASE, Words, find_words, mix, word_hashes
from dataprep.text.folding import Texts, fold_case

Array = np.ndarray[Any, Any]

KEY = np.dtype([("key", "<u8"), ("item", "<u4"), ("start", "<u4")])
"""A run of words of an item: its hash, the item, and the item's word at which it starts."""
HIT = np.dtype([("row", "<u8"), ("length", "<u4"), ("key", "<u4"), ("word", "<u4"), ("start", "<u8"), ("end", "<u8")])
"""A row that holds key number `key` among those of `length` words, at word `word`: characters `start` to `end`."""

_BITS_PER_KEY = 16


@dataclass(frozen=True, slots=True)
class Windows:
    """Which runs of words stand for an item."""

    ngram: int
    min_words: int

    def kind(self, length: int) -> str:
        """How runs of this many words are found: ngram, whole or sentence."""
        return "ngram" if length >= self.ngram else "whole" if length >= self.min_words else "sentence"

    def item_keys(self, words: Words, first_item: int) -> dict[int, Array]:
        """The keys of the items in `words` by their length in words; items are numbered from `first_item`."""
        counts = np.diff(words.first)
        found: dict[int, Array] = {}
        for length, state in enumerate(_running_states(word_hashes(words), self.ngram), start=1):
            items = np.flatnonzero(counts >= length if length == self.ngram else counts == length)
            runs = counts[items] - length + 1
            ends = np.cumsum(runs)
            if not len(items):
                continue
            keys = np.empty(int(ends[-1]), dtype=KEY)
            keys["start"] = np.arange(len(keys)) - np.repeat(ends - runs, runs)
            keys["key"] = mix(state[np.repeat(words.first[:-1][items], runs) + keys["start"]])
            keys["item"] = np.repeat(items, runs) + first_item
            found[length] = keys
        return found

    def joined_keys(self, words: Words, first_item: int, field_counts: Sequence[Array]) -> dict[int, Array]:
        """Those keys of items of several fields end to end that no single field has: runs over a field's end.

        `field_counts` has the number of words of each item in each field.
        """
        ends = np.cumsum(np.stack(list(field_counts)), axis=0)[:-1]
        found: dict[int, Array] = {}
        for length, keys in self.item_keys(words, first_item).items():
            edges = ends[:, keys["item"] - first_item]
            crosses = ((keys["start"] < edges) & (edges < keys["start"] + length)).any(axis=0)
            if crosses.any():
                found[length] = keys[crosses]
        return found


def _running_states(units: Array, longest: int) -> Iterator[Array]:
    """Before the last mix, the hashes of all runs of 1, 2, ... `longest` words: entry j starts at word j."""
    state = units.copy()
    for length in range(1, longest + 1):
        if length > 1:
            state = state[: max(0, len(units) - length + 1)]
            state *= np.uint64(BASE)
            state += units[length - 1 :][: len(state)]
        yield state


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The keys of one length: sorted hashes, the items behind each, and a filter that most hashes fail.

    Key i belongs to `entries[ends[i - 1]:ends[i]]`.
    """

    keys: Array
    ends: Array
    entries: Array
    filter: Array

    @classmethod
    def build(cls, entries: Array) -> "KeyTable":
        """From the keys of all items, in order of item and start."""
        entries = entries[np.argsort(entries["key"], kind="stable")]
        last = np.concatenate((entries["key"][1:] != entries["key"][:-1], [True]))[: len(entries)]
        keys = entries["key"][last]
        size = 1 << max(10, int(len(keys) * _BITS_PER_KEY - 1).bit_length())
        bits = np.zeros(size // 8, dtype=np.uint8)
        place = keys & np.uint64(size - 1)
        np.bitwise_or.at(bits, place >> np.uint64(3), np.uint8(1) << (place & np.uint64(7)).astype(np.uint8))
        return cls(keys, np.flatnonzero(last) + 1, entries, bits)

    def find(self, hashes: Array) -> tuple[Array, Array]:
        """Which of `hashes` are keys, and which keys they are."""
        place = hashes & np.uint64(8 * len(self.filter) - 1)
        passed = self.filter[place >> np.uint64(3)] >> (place & np.uint64(7)).astype(np.uint8) & 1
        maybe = np.flatnonzero(passed)
        key = np.minimum(np.searchsorted(self.keys, hashes[maybe]), len(self.keys) - 1)
        found = self.keys[key] == hashes[maybe]
        return maybe[found], key[found]

    def items(self, key: int) -> Array:
        """The items with this key, and where it starts in them: an array of KEY."""
        return self.entries[int(self.ends[key - 1]) if key else 0 : int(self.ends[key])]

    def first_entries(self, keys: Array) -> Array:
        """The first entry of each of these keys: that of the first item."""
        return self.entries[self._spans(keys)[0]]

    def num_entries(self, keys: Array) -> Array:
        """How many entries each of these keys has."""
        return self._spans(keys)[1]

    def _spans(self, keys: Array) -> tuple[Array, Array]:
        """The first entry of each key, and how many it has."""
        firsts = np.where(keys > 0, self.ends[np.maximum(keys, 1) - 1], 0)
        return firsts, self.ends[keys] - firsts

    def entries_of(self, keys: Array) -> tuple[Array, Array]:
        """The entries of many keys one after the other, and how many each key has."""
        firsts, counts = self._spans(keys)
        ends = np.cumsum(counts)
        return self.entries[np.arange(counts.sum()) + np.repeat(firsts - (ends - counts), counts)], counts

    def save(self, folder: Path, length: int) -> None:
        """Write the table of one length."""
        for name in ("keys", "ends", "entries", "filter"):
            np.save(folder / f"{name}-{length:02d}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path, length: int) -> "KeyTable":
        """Map a saved table into memory, shared by all processes of the machine."""
        paths = (folder / f"{name}-{length:02d}.npy" for name in ("keys", "ends", "entries", "filter"))
        return cls(*(np.load(path, mmap_mode="r").view(np.ndarray) for path in paths))


class Index:
    """All key tables of a folder, by length."""

    def __init__(self, folder: Path, windows: Windows) -> None:
        self.windows = windows
        lengths = sorted(int(path.stem.removeprefix("keys-")) for path in folder.glob("keys-*.npy"))
        self.tables = {length: KeyTable.load(folder, length) for length in lengths}

    def search(self, texts: Texts, first_row: int) -> Array:
        """All hits in `texts`, sorted by (row, length, key, word)."""
        words = find_words(fold_case(texts))
        starts_sentence, ends_sentence = sentence_edges(words)
        found: list[Array] = [np.empty(0, HIT)]
        for length, state in enumerate(_running_states(word_hashes(words), max(self.tables, default=0)), start=1):
            if length not in self.tables or not len(state):
                continue
            if self.windows.kind(length) == "sentence":
                places = np.flatnonzero(starts_sentence[: len(state)] & ends_sentence[length - 1 :])
                hit, key = self.tables[length].find(mix(state[places]))
                hit = places[hit]
            else:
                hit, key = self.tables[length].find(mix(state))
            found.append(_hits(words, hit, key, length))
        hits = np.concatenate(found)
        hits = hits[np.lexsort((hits["word"], hits["key"], hits["length"], hits["row"]))]
        _set_spans(hits, texts, words)
        hits["row"] += np.uint64(first_row)
        return hits


def _hits(words: Words, places: Array, keys: Array, length: int) -> Array:
    """As an array of HIT without spans, without runs that reach into the next text."""
    text = np.searchsorted(words.first, places, side="right") - 1
    within = places + length <= words.first[text + 1]
    hits = np.zeros(int(within.sum()), dtype=HIT)
    hits["row"], hits["key"], hits["length"] = text[within], keys[within], length
    hits["word"] = (places - words.first[text])[within]
    return hits


def _set_spans(hits: Array, texts: Texts, words: Words) -> None:
    """The characters of each hit in its text as it is; `hits` are sorted by row. Texts without hits cost nothing."""
    rows, firsts = np.unique(hits["row"], return_index=True)
    stops = np.append(firsts[1:], len(hits))[: len(firsts)]
    for row, start, stop in zip(rows.tolist(), firsts.tolist(), stops.tolist(), strict=True):
        own = hits[start:stop]
        first = words.first[row] + own["word"]
        last = first + own["length"] - 1
        offsets, begin = OffsetMap.of(texts.encoded(row)), words.texts.starts[row]
        own["start"] = offsets.first_characters(words.starts[first] - begin)
        own["end"] = offsets.last_characters(words.starts[last] + words.lengths[last] - begin)


def first_of_each(hits: Array) -> Array:
    """Of sorted hits, the first of each key in each row."""
    first = np.ones(len(hits), dtype=bool)
    for column in ("row", "length", "key"):
        first[1:] &= hits[column][1:] == hits[column][:-1]
    first[1:] = ~first[1:]
    return hits[first]
