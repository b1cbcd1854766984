"""Finding evaluation items in documents: an index of word n-grams, and the look-up in many texts at a time.

An item with at least `ngram` words is searched for by each of its runs of that many words; one with
`min_words` to `ngram - 1` words by its whole text; a shorter one only as a complete sentence, because a few common
words mean little. Words are those of `dataprep.decontaminate.offsets`; hits are given in characters of the original
text.

If `Windows.edits` says so, items of which some words differ are found too (`dataprep.decontaminate.near`).

Sentences matter for short items, and for cuts, which go on to the end of one. `.`, `!` and `?` end a sentence if no
word follows directly: not in `3.14` or `example.com`. The stops of other scripts, many of which leave no space after
them, end one anywhere.
"""

import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.decontaminate.keys import NEAR, KeyTable, Windows, running_states
from dataprep.decontaminate.near import NearItems
from dataprep.decontaminate.offsets import OffsetMap, compared_words
from dataprep.dedup.shingles import Words, mix, word_hashes
from dataprep.text.characters import wide_characters
from dataprep.text.folding import Texts

Array = np.ndarray[Any, Any]

HIT = np.dtype([("row", "<u8"), ("length", "<u4"), ("key", "<u4"), ("word", "<u4"), ("start", "<u8"), ("end", "<u8")])
"""A hit in row `row`: key number `key` of those with `length` words (or NEAR), at word `word`, characters `start` to
`end`."""

STOPS = ".!?"
WIDE_STOPS = "。！？｡．︒︕︖﹒﹖﹗‼‽⁇⁈⁉։؝؞؟۔܀܁܂߹।॥၊။።፧፨។៕᠃᠉"
"""Unicode's Sentence_Terminal in scripts in daily use; none is part of a word, or changes when folded."""

_STOP_BYTES = np.isin(np.arange(256), np.frombuffer(STOPS.encode(), np.uint8))
_BREAK_BYTES = _STOP_BYTES | (np.arange(256) == ord("\n"))
_WIDE_POINTS = np.array([ord(stop) for stop in WIDE_STOPS], np.int32)
_SENTENCE_END = re.compile(rf"[{STOPS}]+(?!\w)|[{WIDE_STOPS}]+")


class Index:
    """All key tables of a folder, by length."""

    def __init__(self, folder: Path, windows: Windows) -> None:
        self.windows = windows
        self.tables = KeyTable.load_all(folder)
        self._near = NearItems(folder, windows) if windows.edits else None

    def search(self, texts: Texts, first_row: int) -> Array:
        """Return all hits in `texts`, sorted by (row, length, key, word)."""
        words = compared_words(texts)
        hashes = word_hashes(words)
        starts_sentence, ends_sentence = sentence_edges(words)
        of_lengths: list[Array] = [np.empty(0, HIT)]
        for length, state in enumerate(running_states(hashes, max(self.tables, default=0)), start=1):
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
        lengths = hits["length"]
        if self._near:
            near, near_lengths = self._near_hits(self._near.search(words, hashes), words, hits)
            hits, lengths = np.concatenate((hits, near)), np.concatenate((lengths, near_lengths))
        order = np.lexsort((hits["word"], hits["key"], hits["length"], hits["row"]))
        hits = hits[order]
        _set_spans(hits, lengths[order], texts, words)
        hits["row"] += np.uint64(first_row)
        return hits

    def _near_hits(self, matches: Array, words: Words, exact: Array) -> tuple[Array, Array]:
        """Return the matches as hits without spans, with their lengths in words; none of an item with an exact hit."""
        near = np.zeros(len(matches), HIT)
        near["row"] = np.searchsorted(words.first, matches["word"], side="right") - 1
        near["word"] = matches["word"] - words.first[near["row"]].astype(np.uint64)
        near["length"], near["key"] = NEAR, matches["item"]
        found = [np.empty(0, np.uint64)]
        for length, table in self.tables.items():
            of_length = exact[exact["length"] == length]
            entries, counts = table.entries_of(of_length["key"])
            found.append(np.repeat(of_length["row"], counts) << np.uint64(32) | entries["item"])
        others = ~np.isin(near["row"] << np.uint64(32) | near["key"], np.concatenate(found))
        return near[others], matches["length"][others]


def _hits(words: Words, first_words: Array, keys: Array, length: int) -> Array:
    """Return an array of HIT without spans, leaving out runs that reach into the next text."""
    text = np.searchsorted(words.first, first_words, side="right") - 1
    within = first_words + length <= words.first[text + 1]
    hits = np.zeros(int(within.sum()), dtype=HIT)
    hits["row"], hits["key"], hits["length"] = text[within], keys[within], length
    hits["word"] = (first_words - words.first[text])[within]
    return hits


def _set_spans(hits: Array, lengths: Array, texts: Texts, words: Words) -> None:
    """Set the span of each hit, of `lengths` words, in its original text; `hits` are sorted by row.

    Texts without hits cost nothing.
    """
    rows, firsts = np.unique(hits["row"], return_index=True)
    stops = np.append(firsts[1:], len(hits))[: len(firsts)]
    for row, start, stop in zip(rows.tolist(), firsts.tolist(), stops.tolist(), strict=True):
        of_row = hits[start:stop]
        first = words.first[row] + of_row["word"]
        last = first + lengths[start:stop] - 1
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
