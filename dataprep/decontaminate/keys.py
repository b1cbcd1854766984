"""Runs of words as keys: which runs represent an item, their hashes, and tables in which hashes are looked up."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.dedup.shingles import BASE, Words, mix, word_hashes

Array = np.ndarray[Any, Any]

KEY = np.dtype([("key", "<u8"), ("item", "<u4"), ("start", "<u4")])
"""A run of words of an item: its hash, the number of the item, and the item's word at which it starts."""
NEAR = 0
"""The length under which near matches are kept, whatever their number of words; their key is the item's number."""

_BITS_PER_KEY = 16


@dataclass(frozen=True, slots=True)
class Windows:
    """Which runs of words represent an item, by their length."""

    ngram: int
    min_words: int
    edits: int = 0
    """Words that may differ in a near match; none in items of fewer than 8 words, one in those of fewer than 12."""

    @property
    def most_edits(self) -> int:
        """The most words that may differ in any item: a greater `edits` allows no more than this."""
        return max(0, self.ngram // 4 - 1)

    def kind(self, length: int) -> str:
        """Return how runs of this many words are searched for: ngram, whole or sentence; near if it is NEAR."""
        if length == NEAR:
            return "near"
        return "ngram" if length >= self.ngram else "whole" if length >= self.min_words else "sentence"

    def allowed_edits(self, sizes: Array) -> Array:
        """Return how many words may differ in items of these numbers of words: intact parts have four words or more."""
        return np.where(sizes < self.min_words, 0, np.clip(np.minimum(sizes, self.ngram) // 4 - 1, 0, self.edits))

    def item_keys(self, words: Words, first_item: int) -> dict[int, Array]:
        """Return the keys of the items in `words` by length in words; items are numbered from `first_item`."""
        counts = np.diff(words.first)
        by_length: dict[int, Array] = {}
        for length, state in enumerate(running_states(word_hashes(words), self.ngram), start=1):
            items = np.flatnonzero(counts >= length if length == self.ngram else counts == length)
            if len(items):
                by_length[length] = keys_of_runs(state, words, items, length, first_item)
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


def keys_of_runs(state: Array, words: Words, items: Array, length: int, first_item: int) -> Array:
    """Return the keys of all runs of `length` words in these items, of which `state` is that of `running_states`."""
    runs = np.diff(words.first)[items] - length + 1
    ends = np.cumsum(runs)
    keys = np.empty(int(ends[-1]), dtype=KEY)
    keys["start"] = np.arange(len(keys)) - np.repeat(ends - runs, runs)
    keys["key"] = mix(state[np.repeat(words.first[:-1][items], runs) + keys["start"]])
    keys["item"] = np.repeat(items, runs) + first_item
    return keys


def running_states(units: Array, longest: int) -> Iterator[Array]:
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

    @classmethod
    def load_all(cls, folder: Path) -> "dict[int, KeyTable]":
        """Map all saved tables of a folder into memory, by length."""
        lengths = sorted(int(path.stem.removeprefix("keys-")) for path in folder.glob("keys-*.npy"))
        return {length: cls.load(folder, length) for length in lengths}
