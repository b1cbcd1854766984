"""Finding evaluation items in documents: an index of word n-grams, and the look-up in many texts at a time.

An item with at least `ngram` words is searched for by each of its runs of that many words; one with
`min_words` to `ngram - 1` words by its whole text; a shorter one only as a complete sentence, because a few common
words mean little. Words are those of `dataprep.decontaminate.offsets`; hits are given in characters of the original
text.

Sentences matter for short items, and for cuts, which go on to the end of one. `.`, `!` and `?` end a sentence if no
word follows directly: not in `3.14` or `example.com`. The stops of other scripts, many of which leave no space after
them, end one anywhere.
"""

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.decontaminate.offsets import OffsetMap, compared_words
from dataprep.dedup.shingles import BASE, Words, mix, word_hashes
from dataprep.text.characters import wide_characters
from dataprep.text.folding import Texts

Array = np.ndarray[Any, Any]

KEY = np.dtype([("key", "<u8"), ("item", "<u4"), ("start", "<u4")])
"""A run of words of an item: its hash, the number of the item, and the item's word at which it starts."""
HIT = np.dtype([("row", "<u8"), ("length", "<u4"), ("key", "<u4"), ("word", "<u4"), ("start", "<u8"), ("end", "<u8")])
"""A hit in row `row`: key number `key` of those with `length` words, at word `word`, characters `start` to `end`."""

STOPS = ".!?"
WIDE_STOPS = "。！？｡．︒︕︖﹒﹖﹗‼‽⁇⁈⁉։؝؞؟۔܀܁܂߹।॥၊။።፧፨។៕᠃᠉"
"""Unicode's Sentence_Terminal in scripts in daily use; none is part of a word, or changes when folded."""

_BITS_PER_KEY = 16
_STOP_BYTES = np.isin(np.arange(256), np.frombuffer(STOPS.encode(), np.uint8))
_BREAK_BYTES = _STOP_BYTES | (np.arange(256) == ord("\n"))
_WIDE_POINTS = np.array([ord(stop) for stop in WIDE_STOPS], np.int32)
_SENTENCE_END = re.compile(rf"[{STOPS}]+(?!\w)|[{WIDE_STOPS}]+")


@dataclass(frozen=True, slots=True)
class Windows:
    """Which runs of words represent an item, by their length."""

    ngram: int
    min_words: int

    def kind(self, length: int) -> str:
        """Return how runs of this many words are searched for: ngram, whole or sentence."""
        return "ngram" if length >= self.ngram else "whole" if length >= self.min_words else "sentence"

    def item_keys(self, words: Words, first_item: int) -> dict[int, Array]:
        """Return the keys of the items in `words` by length in words; items are numbered from `first_item`."""
        counts = np.diff(words.first)
        by_length: dict[int, Array] = {}
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
            by_length[length] = keys
        return by_length

    def joined_keys(self, words: Words, first_item: int, field_counts: Sequence[Array]) -> dict[int, Array]:
        """Return the keys that only the joined fields of an item have, as runs across the end of a field.

        `words` are those of the joined fields; `field_counts` has the number of words of each item in each field.
        """
        ends = np.cumsum(np.stack(list(field_counts)), axis=0)[:-1]
        by_length: dict[int, Array] = {}
        for length, keys in self.item_keys(words, first_item).items():
            edges = ends[:, keys["item"] - first_item]
            crosses = ((keys["start"] < edges) & (edges < keys["start"] + length)).any(axis=0)
            if crosses.any():
                by_length[length] = keys[crosses]
        return by_length


def _running_states(units: Array, longest: int) -> Iterator[Array]:
    """Yield, for runs of 1, 2, ... `longest` words, all hashes before the last mix: entry j starts at word j."""
    state = units.copy()
    for length in range(1, longest + 1):
        if length > 1:
            state = state[: max(0, len(units) - length + 1)]
            state *= np.uint64(BASE)
            state += units[length - 1 :][: len(state)]
        yield state


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The keys of one length: sorted hashes, the items of each, and a filter that rejects most other hashes.

    Key i belongs to `entries[ends[i - 1]:ends[i]]`.
    """

    keys: Array
    ends: Array
    entries: Array
    filter: Array

    @classmethod
    def build(cls, entries: Array) -> "KeyTable":
        """Build the table from the keys of all items, in order of item and start."""
        entries = entries[np.argsort(entries["key"], kind="stable")]
        last = np.concatenate((entries["key"][1:] != entries["key"][:-1], [True]))[: len(entries)]
        keys = entries["key"][last]
        size = 1 << max(10, int(len(keys) * _BITS_PER_KEY - 1).bit_length())
        bits = np.zeros(size // 8, dtype=np.uint8)
        bit = keys & np.uint64(size - 1)
        np.bitwise_or.at(bits, bit >> np.uint64(3), np.uint8(1) << (bit & np.uint64(7)).astype(np.uint8))
        return cls(keys, np.flatnonzero(last) + 1, entries, bits)

    def find(self, hashes: Array) -> tuple[Array, Array]:
        """Return the positions of the `hashes` that are keys, and the numbers of these keys."""
        bit = hashes & np.uint64(8 * len(self.filter) - 1)
        passed = self.filter[bit >> np.uint64(3)] >> (bit & np.uint64(7)).astype(np.uint8) & 1
        possible = np.flatnonzero(passed)
        key = np.minimum(np.searchsorted(self.keys, hashes[possible]), len(self.keys) - 1)
        equal = self.keys[key] == hashes[possible]
        return possible[equal], key[equal]

    def items(self, key: int) -> Array:
        """Return the items with this key, and where it starts in them: an array of KEY."""
        return self.entries[int(self.ends[key - 1]) if key else 0 : int(self.ends[key])]

    def first_entries(self, keys: Array) -> Array:
        """Return the first entry of each key, which is that of its first item."""
        return self.entries[self._spans(keys)[0]]

    def num_entries(self, keys: Array) -> Array:
        """Return how many entries each key has."""
        return self._spans(keys)[1]

    def _spans(self, keys: Array) -> tuple[Array, Array]:
        """Return the index of each key's first entry, and how many it has."""
        firsts = np.where(keys > 0, self.ends[np.maximum(keys, 1) - 1], 0)
        return firsts, self.ends[keys] - firsts

    def entries_of(self, keys: Array) -> tuple[Array, Array]:
        """Return the entries of all keys, one key after the other, and how many each key has."""
        firsts, counts = self._spans(keys)
        ends = np.cumsum(counts)
        return self.entries[np.arange(counts.sum()) + np.repeat(firsts - (ends - counts), counts)], counts

    def save(self, folder: Path, length: int) -> None:
        """Write the table for one length."""
        for name in ("keys", "ends", "entries", "filter"):
            np.save(folder / f"{name}-{length:02d}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path, length: int) -> "KeyTable":
        """Map a saved table into memory, where all processes of the machine share it."""
        paths = (folder / f"{name}-{length:02d}.npy" for name in ("keys", "ends", "entries", "filter"))
        return cls(*(np.load(path, mmap_mode="r").view(np.ndarray) for path in paths))


class Index:
    """All key tables of a folder, by length."""

    def __init__(self, folder: Path, windows: Windows) -> None:
        self.windows = windows
        lengths = sorted(int(path.stem.removeprefix("keys-")) for path in folder.glob("keys-*.npy"))
        self.tables = {length: KeyTable.load(folder, length) for length in lengths}

    def search(self, texts: Texts, first_row: int) -> Array:
        """Return all hits in `texts`, sorted by (row, length, key, word)."""
        words = compared_words(texts)
        starts_sentence, ends_sentence = sentence_edges(words)
        of_lengths: list[Array] = [np.empty(0, HIT)]
        for length, state in enumerate(_running_states(word_hashes(words), max(self.tables, default=0)), start=1):
            if length not in self.tables or not len(state):
                continue
            if self.windows.kind(length) == "sentence":
                sentences = np.flatnonzero(starts_sentence[: len(state)] & ends_sentence[length - 1 :])
                found, key = self.tables[length].find(mix(state[sentences]))
                first_word = sentences[found]
            else:
                first_word, key = self.tables[length].find(mix(state))
            of_lengths.append(_hits(words, first_word, key, length))
        hits = np.concatenate(of_lengths)
        hits = hits[np.lexsort((hits["word"], hits["key"], hits["length"], hits["row"]))]
        _set_spans(hits, texts, words)
        hits["row"] += np.uint64(first_row)
        return hits


def _hits(words: Words, first_words: Array, keys: Array, length: int) -> Array:
    """Return an array of HIT without spans, leaving out runs that reach into the next text."""
    text = np.searchsorted(words.first, first_words, side="right") - 1
    within = first_words + length <= words.first[text + 1]
    hits = np.zeros(int(within.sum()), dtype=HIT)
    hits["row"], hits["key"], hits["length"] = text[within], keys[within], length
    hits["word"] = (first_words - words.first[text])[within]
    return hits


def _set_spans(hits: Array, texts: Texts, words: Words) -> None:
    """Set the span of each hit in its original text; `hits` are sorted by row. Texts without hits cost nothing."""
    rows, firsts = np.unique(hits["row"], return_index=True)
    stops = np.append(firsts[1:], len(hits))[: len(firsts)]
    for row, start, stop in zip(rows.tolist(), firsts.tolist(), stops.tolist(), strict=True):
        of_row = hits[start:stop]
        first = words.first[row] + of_row["word"]
        last = first + of_row["length"] - 1
        offsets, begin = OffsetMap.of(texts.encoded(row)), words.texts.starts[row]
        of_row["start"] = offsets.first_characters(words.starts[first] - begin)
        of_row["end"] = offsets.last_characters(words.starts[last] + words.lengths[last] - begin)


def sentence_ends(text: str) -> "array[int]":
    """Return the offset after each character run that ends a sentence, ascending; eight bytes each."""
    return array("q", (match.end() for match in _SENTENCE_END.finditer(text)))


def sentence_edges(words: Words) -> tuple[Array, Array]:
    """Return which words begin a sentence, and which end one; a line break and the end of a text end one too."""
    data = words.texts.data
    starts, _, points = wide_characters(data)
    breaks = np.concatenate((np.flatnonzero(_BREAK_BYTES[data]), starts[np.isin(points, _WIDE_POINTS)]))
    # The first word after each break; adjacent breaks have the same word.
    begins = np.zeros(len(words.starts) + 1, dtype=bool)
    begins[np.searchsorted(words.starts, breaks)] = True
    begins = begins[:-1]
    # "3.14" and "example.com": the stop touches words on both sides.
    touching = np.flatnonzero(words.starts[1:] == words.starts[:-1] + words.lengths[:-1] + 1) + 1
    begins[touching[_STOP_BYTES[data[words.starts[touching] - 1]]]] = False
    begins[words.first[:-1][words.first[:-1] < len(begins)]] = True
    return begins, np.append(begins[1:], True)[: len(begins)]


def first_of_each(hits: Array) -> Array:
    """Return the first hit of each key in each row; `hits` are sorted."""
    first = np.ones(len(hits), dtype=bool)
    for column in ("row", "length", "key"):
        first[1:] &= hits[column][1:] == hits[column][:-1]
    first[1:] = ~first[1:]
    return hits[first]
