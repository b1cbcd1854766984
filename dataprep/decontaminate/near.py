"""Near matches: items of which a few words were changed, left out or added.

What is found is what an exact search looks for, `ngram` words of an item in a row or all of a shorter one, with up to
`Windows.edits` words that differ. If e words differ, one of e + 1 equal parts does not: these parts, the seeds, are
looked up by their hashes, and from each seed found the rest is compared word by word, in both directions, with as few
edits as possible (the furthest points on each diagonal: Ukkonen 1985, Landau and Vishkin 1989).

An edit at the end of what is found would be no evidence, and counts only where an item begins or ends that is looked
for as a whole.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.decontaminate.keys import KeyTable, Windows, keys_of_runs, running_states
from dataprep.dedup.shingles import Words, mix, word_hashes

Array = np.ndarray[Any, Any]

MATCH = np.dtype([("word", "<u8"), ("length", "<u4"), ("item", "<u4")])
"""`length` words from word `word` of the texts are nearly words of item `item`."""

MOST_PLACES = 500
"""Seeds at more places in the items than this are left out, since each place in a text is compared with all of them.

An item is then found by its other seeds, if it has some. In validation and test of CoLA, MRPC, RTE, STS-B, WNLI and ax,
the most common seed is at 44 places with one edit, at 60 with two.
"""
_FOLDER = "seeds"
_BATCH = 1 << 17
"""Pairs of a place and a seed that are compared at a time."""


class SeedWriter:
    """Collects the seeds and the words of all items."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._keys: dict[int, list[Array]] = {}
        self._hashes = [np.empty(0, np.uint64)]
        self._counts = [np.empty(0, np.int64)]

    def add(self, words: Words, first_item: int) -> None:
        """Add the items in `words`, numbered from `first_item`; items left out before it have no near matches."""
        hashes, counts = word_hashes(words), np.diff(words.first)
        sizes = _seed_sizes(counts, self._windows)
        for length, state in enumerate(running_states(hashes, int(sizes.max(initial=0))), start=1):
            if len(items := np.flatnonzero(sizes == length)):
                keys = keys_of_runs(state, words, items, length, first_item)
                self._keys.setdefault(length, []).append(keys)
        left_out = np.zeros(first_item - sum(map(len, self._counts)), np.int64)
        self._hashes.append(hashes)
        self._counts += [left_out, counts]

    def save(self, folder: Path) -> int:
        """Write the seeds, and the hashes of the words of each item. Return how many seeds are too common to keep."""
        (folder / _FOLDER).mkdir()
        num_common = 0
        for length in sorted(self._keys):
            seeds = KeyTable.build(np.concatenate(self._keys.pop(length)))
            places = np.diff(seeds.ends, prepend=0)
            rare = places <= MOST_PLACES
            num_common += int(np.count_nonzero(~rare))
            if not rare.all():
                seeds = KeyTable.build(seeds.entries[np.repeat(rare, places)])
            seeds.save(folder / _FOLDER, length)
        np.save(folder / _FOLDER / "words.npy", np.concatenate(self._hashes))
        np.save(folder / _FOLDER / "first.npy", np.concatenate(([0], np.cumsum(np.concatenate(self._counts)))))
        return num_common


def _seed_sizes(counts: Array, windows: Windows) -> Array:
    """Return the number of words in the seeds of items of `counts` words; 0 if they have no near matches."""
    edits = windows.allowed_edits(counts)
    return np.where(edits > 0, np.minimum(counts, windows.ngram) // (edits + 1), 0)


class NearItems:
    """The items and their seeds, as a SeedWriter saved them."""

    def __init__(self, folder: Path, windows: Windows) -> None:
        self._windows = windows
        self._seeds = KeyTable.load_all(folder / _FOLDER)
        self._words, self._first = (
            np.load(folder / _FOLDER / name, mmap_mode="r").view(np.ndarray) for name in ("words.npy", "first.npy")
        )

    def search(self, words: Words, hashes: Array) -> Array:
        """Return the near matches in the texts of `words`, sorted, each once, as an array of MATCH."""
        matches = [np.empty(0, MATCH)]
        for length, state in enumerate(running_states(hashes, max(self._seeds, default=0)), start=1):
            if not (seeds := self._seeds.get(length)):
                continue
            places, keys = seeds.find(mix(state))
            text = np.searchsorted(words.first, places, side="right") - 1
            within = places + length <= words.first[text + 1]
            places, keys = places[within], keys[within]
            for some in _batches(seeds.num_entries(keys)):
                entries, counts = seeds.entries_of(keys[some])
                matches.append(self._compare(entries, np.repeat(places[some], counts), length, words, hashes))
        return np.unique(np.concatenate(matches))

    def _compare(self, seeds: Array, places: Array, length: int, words: Words, hashes: Array) -> Array:
        """Return the matches around these seeds (an array of KEY) of `length` words, found at word `places[i]`."""
        pairs = self._pairs(seeds, places, length, words)
        most = int(pairs.edits.max(initial=0))
        # One of the sides needs at most half of the edits; most pairs fail there.
        left, right = (_reach(side, self._words, hashes, most // 2, pairs.whole) for side in pairs.sides())
        possible = (pairs.start - left[-1][0] <= pairs.size - pairs.needed) | (
            pairs.start + length + right[-1][0] >= pairs.needed
        )
        pairs = pairs.take(np.flatnonzero(possible))
        left, right = (_reach(side, self._words, hashes, most, pairs.whole) for side in pairs.sides())
        matches = np.zeros(len(pairs.place), MATCH)
        for edits in range(most + 1):
            for on_left in range(edits + 1):
                (of_item, before), (rest, after) = left[on_left], right[edits - on_left]
                enough = of_item + length + rest >= pairs.needed
                new = enough & (pairs.edits >= edits) & (matches["length"] == 0)
                matches["word"][new] = (pairs.place - before)[new]
                matches["length"][new] = (before + length + after)[new]
        matches["item"] = pairs.item
        return np.unique(matches[matches["length"] > 0])

    def _pairs(self, seeds: Array, places: Array, length: int, words: Words) -> "_Pairs":
        text = np.searchsorted(words.first, places, side="right") - 1
        first, stop = self._first[seeds["item"]], self._first[seeds["item"] + 1]
        start = seeds["start"].astype(np.int64)
        return _Pairs(
            length=length,
            item=seeds["item"],
            start=start,
            size=stop - first,
            needed=np.minimum(stop - first, self._windows.ngram),
            edits=self._windows.allowed_edits(stop - first),
            at=first + start,
            place=places,
            before=places - words.first[text],
            after=words.first[text + 1] - places - length,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Places of seeds in texts; an array each, but for `length`, the words of the seeds."""

    length: int
    item: Array
    start: Array
    """Word of the item at which the seed starts."""
    size: Array
    """Words of the item."""
    needed: Array
    """Words of the item that make a match."""
    edits: Array
    at: Array
    """The seed among the words of all items, and `place`, among those of all texts."""
    place: Array
    before: Array
    """Words of the text before the seed, and `after` it."""
    after: Array

    @property
    def whole(self) -> Array:
        """Which items are looked for as a whole."""
        return self.size == self.needed

    def sides(self) -> "tuple[_Side, _Side]":
        """Return what is left and right of each seed, as far as it matters."""
        rest = self.needed - self.length
        return (
            _Side(-1, self.at - 1, np.minimum(self.start, rest), self.place - 1, self.before),
            _Side(
                1,
                self.at + self.length,
                np.minimum(self.size - self.start - self.length, rest),
                self.place + self.length,
                self.after,
            ),
        )

    def take(self, rows: Array) -> "_Pairs":
        """Return some of the pairs."""
        names = [name for name in self.__slots__ if name != "length"]
        return _Pairs(length=self.length, **{name: getattr(self, name)[rows] for name in names})


@dataclass(frozen=True, slots=True)
class _Side:
    """Where comparing starts in the items and the texts, in which direction, and how many words there are."""

    step: int
    item: Array
    item_words: Array
    text: Array
    text_words: Array


def _reach(side: _Side, items: Array, texts: Array, edits: int, whole: Array) -> list[tuple[Array, Array]]:
    """Return how many words of the item, and of the text, are compared with 0, 1, ... `edits` edits at most."""
    start = np.zeros(len(side.item), np.int64)
    furthest = {0: _slide(side, items, texts, start, 0)}
    best, in_text = furthest[0], furthest[0]
    reached = [(best, in_text)]
    for number in range(1, edits + 1):
        before, furthest = furthest, {}
        for diagonal in sorted(range(-number, number + 1), key=abs):
            edited = _edited(side, before, diagonal)
            furthest[diagonal] = slid = _slide(side, items, texts, edited, diagonal)
            evident = (slid > edited) | (whole & (slid == side.item_words))
            further = evident & (slid > best)
            best, in_text = np.where(further, slid, best), np.where(further, slid + diagonal, in_text)
        reached.append((best, in_text))
    return reached


def _edited(side: _Side, before: dict[int, Array], diagonal: int) -> Array:
    """Return the furthest word of the item on a diagonal after one more edit; -1 if there is none.

    On diagonal d, n words of the item are beside n + d words of the text.
    """
    best = np.full(len(side.item), -1, np.int64)
    for origin, words in ((diagonal, 1), (diagonal + 1, 1), (diagonal - 1, 0)):  # changed, left out, added
        if origin in before:
            moved = before[origin] + words
            possible = (before[origin] >= 0) & (moved <= side.item_words) & (moved + diagonal <= side.text_words)
            best = np.where(possible & (moved + diagonal >= 0), np.maximum(best, moved), best)
    return best


def _slide(side: _Side, items: Array, texts: Array, reached: Array, diagonal: int) -> Array:
    """Return the furthest word of the item on a diagonal without another edit."""
    reached = reached.copy()
    stop = np.minimum(side.item_words, side.text_words - diagonal)
    going = np.flatnonzero((reached >= 0) & (reached < stop))
    while len(going):
        at = reached[going]
        item, text = side.item[going] + side.step * at, side.text[going] + side.step * (at + diagonal)
        going = going[items[item] == texts[text]]
        reached[going] += 1
        going = going[reached[going] < stop[going]]
    return reached


def _batches(counts: Array) -> Iterator[slice]:
    """Yield ranges of keys that have about `_BATCH` entries together, or of one key that has more."""
    ends, start = np.cumsum(counts), 0
    while start < len(counts):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _BATCH, side="right")))
        yield slice(start, stop)
        start = stop
