"""Repetition in a text: lines and paragraphs that stood before, and runs of words (n-grams) that occur again.

Exact and linear: words are numbered, and a run of n words can only occur twice where its two runs of n - 1 words
do, so each length looks only at the places that the length before it left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataprep.cleaning.document_text import DocumentText

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Pieces of a text that stood before in it."""

    pieces: int
    duplicates: int
    characters: int
    """Of the duplicates."""


def find_duplicates(pieces: Sequence[str]) -> Duplicates:
    """Count what occurs again; the first of its kind is no duplicate."""
    seen = set(pieces)
    if len(seen) == len(pieces):
        return Duplicates(len(pieces), 0, 0)
    characters = sum(map(len, pieces)) - sum(map(len, seen))
    return Duplicates(len(pieces), len(pieces) - len(seen), characters)


def duplicate_lines(document: DocumentText) -> Duplicates:
    """Lines of the head, empty ones skipped; for `DocumentText.once`."""
    return find_duplicates([line for line in document.head.split("\n") if line])


def duplicate_paragraphs(document: DocumentText) -> Duplicates:
    """What stands between blank lines in the head; for `DocumentText.once`."""
    paragraphs = (paragraph.strip("\n") for paragraph in document.head.strip().split("\n\n"))
    return find_duplicates([paragraph for paragraph in paragraphs if paragraph])


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of n words that occur at least twice: where each begins, and which run it is."""

    places: Array
    """(r,), rising positions of first words."""
    names: Array
    """(r,), the same number for the same run."""
    first_places: Array
    """Where each different run begins first."""
    times: Array
    """How often each different run occurs; those that occur once are still among them."""


class RepeatedRuns:
    """The runs of words in a document's head that occur again, for one length from 2 after the other."""

    def __init__(self, words: Sequence[str]) -> None:
        self._num_words = len(words)
        numbers = dict(zip(words, range(len(words)), strict=True))
        names = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        self._ends = np.concatenate(([0], np.cumsum(lengths)))
        places = np.arange(max(0, len(words) - 1), dtype=np.int32)
        self._of_length = {2: _repeated(places, names[:-1] * len(words) + names[1:])}

    def top_characters(self, length: int) -> int:
        """Characters of the most frequent run of `length` words, spaces between them, as often as it occurs.

        Of several equally frequent runs it is the first; without repetition, the first run of the text.
        """
        if self._num_words < length:
            return 0
        runs = self._runs(length)
        times = int(runs.times.max(initial=1))
        place = int(runs.first_places[runs.times == times].min()) if times > 1 else 0
        return times * (self._characters(place, length) + length - 1)

    def duplicate_characters(self, length: int) -> int:
        """Characters, without spaces, of the runs of `length` words that stood before; found ones do not overlap."""
        runs = self._runs(length)
        seen: set[int] = set()
        total = next_place = 0
        for place, name in zip(runs.places.tolist(), runs.names.tolist(), strict=True):
            if place < next_place:
                continue
            if name in seen:
                total += self._characters(place, length)
                next_place = place + length
            else:
                seen.add(name)
        return total

    def _characters(self, place: int, length: int) -> int:
        return int(self._ends[place + length] - self._ends[place])

    def _runs(self, length: int) -> _Runs:
        if length not in self._of_length:
            shorter = self._runs(length - 1)
            if not len(shorter.places):
                return shorter
            pairs = np.flatnonzero(shorter.places[1:] - shorter.places[:-1] == 1)
            names = shorter.names[pairs].astype(np.int64) * self._num_words + shorter.names[pairs + 1]
            self._of_length[length] = _repeated(shorter.places[pairs], names)
        return self._of_length[length]


def _repeated(places: Array, names: Array) -> _Runs:
    """Only the places whose name occurs at least twice, with names from 0 on."""
    if not len(names):
        return _Runs(places, names, places, names)
    order = names.argsort(kind="stable")
    ordered = names[order]
    is_first = np.empty(len(names), bool)
    is_first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    renamed = np.empty(len(names), np.int32)
    renamed[order] = is_first.cumsum(dtype=np.int32) - 1
    times = np.bincount(renamed)
    keep = times[renamed] > 1
    return _Runs(places[keep], renamed[keep], places[order[firsts]], times)


def repeated_runs(document: DocumentText) -> RepeatedRuns:
    """The runs of the document's head; for `DocumentText.once`."""
    return RepeatedRuns(document.head_words)
