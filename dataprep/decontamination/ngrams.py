"""Finding evaluation items in documents: an index of word n-grams, and the look-up in many texts at a time.

An item with at least `ngram` words is looked for by each of its runs of that many words; one with
`min_words` to `ngram - 1` words by its whole text; a shorter one only as a sentence of its own, because
a few common words say little. Words are those of `dataprep.dedup.shingles`, after NFC and case folding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.dedup.shingles import BASE, Words, mix, word_hashes

Array = np.ndarray[Any, Any]

KEY = np.dtype([("key", "<u8"), ("item", "<u4"), ("start", "<u4")])
"""A run of words of an item: its hash, the item, and the item's word at which it starts."""
HIT = np.dtype([("row", "<u8"), ("length", "<u4"), ("key", "<u4"), ("start", "<u4")])
"""A document's row that holds key number `key` among those of `length` words, first at word `start`."""

_BITS_PER_KEY = 16
_SENTENCE_ENDS = b".!?"


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
        states = _running_hashes(word_hashes(words), self.ngram)
        for length, hashes in enumerate(states, start=1):
            items = np.flatnonzero(counts >= length if length == self.ngram else counts == length)
            runs = counts[items] - length + 1
            ends = np.cumsum(runs)
            if not len(items):
                continue
            keys = np.empty(int(ends[-1]), dtype=KEY)
            keys["start"] = np.arange(len(keys)) - np.repeat(ends - runs, runs)
            keys["key"] = hashes[np.repeat(words.first[:-1][items], runs) + keys["start"]]
            keys["item"] = np.repeat(items, runs) + first_item
            found[length] = keys
        return found


def _running_hashes(units: Array, longest: int) -> Iterator[Array]:
    """Hashes of all runs of 1, 2, ... `longest` words: entry j is that of the run which starts at word j."""
    state = units.copy()
    for length in range(1, longest + 1):
        if length > 1:
            state = state[: max(0, len(units) - length + 1)] * np.uint64(BASE)
            state += units[length - 1 :][: len(state)]
        yield mix(state)


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
        """From the keys of all items, in any order."""
        entries = entries[np.lexsort((entries["start"], entries["item"], entries["key"]))]
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

    def search(self, words: Words, first_row: int) -> Array:
        """All hits in the texts of `words`, each key once per text, sorted by (row, length, key)."""
        starts_sentence, ends_sentence = sentence_edges(words)
        found: list[Array] = [np.empty(0, HIT)]
        for length, hashes in enumerate(_running_hashes(word_hashes(words), max(self.tables, default=0)), start=1):
            if length not in self.tables or not len(hashes):
                continue
            if self.windows.kind(length) == "sentence":
                places = np.flatnonzero(starts_sentence[: len(hashes)] & ends_sentence[length - 1 :])
                hit, key = self.tables[length].find(hashes[places])
                hit = places[hit]
            else:
                hit, key = self.tables[length].find(hashes)
            found.append(_hits(words, hit, key, length, first_row))
        hits = np.concatenate(found)
        return hits[np.lexsort((hits["start"], hits["key"], hits["length"], hits["row"]))]


def _hits(words: Words, places: Array, keys: Array, length: int, first_row: int) -> Array:
    """As an array of HIT, without runs that reach into the next text, the first of each key per text."""
    text = np.searchsorted(words.first, places, side="right") - 1
    within = places + length <= words.first[text + 1]
    hits = np.empty(int(within.sum()), dtype=HIT)
    hits["row"], hits["key"], hits["length"] = text[within] + first_row, keys[within], length
    hits["start"] = (places - words.first[text])[within]
    _, first = np.unique(hits[["row", "key"]], return_index=True)
    return hits[np.sort(first)]


def sentence_edges(words: Words) -> tuple[Array, Array]:
    """Which words begin a sentence, and which end one.

    A sentence ends at a line break, at the end of the text, and at . ! or ? before anything but a word.
    """
    data = words.texts.data
    stops = np.isin(data, np.frombuffer(_SENTENCE_ENDS, np.uint8))
    breaks = np.flatnonzero(stops | (data == ord("\n")))
    passed = np.searchsorted(breaks, words.starts)
    begins = np.ones(len(words.starts), dtype=bool)
    begins[1:] = passed[1:] != passed[:-1]
    # "3.14" and "example.com": the stop touches words on both sides.
    touching = np.flatnonzero(words.starts[1:] == words.starts[:-1] + words.lengths[:-1] + 1) + 1
    begins[touching[stops[words.starts[touching] - 1]]] = False
    begins[words.first[:-1][words.first[:-1] < len(begins)]] = True
    return begins, np.append(begins[1:], True)[: len(begins)]
