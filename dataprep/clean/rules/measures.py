"""What rules measure in a text: its words by kind, lines and paragraphs that occur again, and n-grams that occur again.

Memory is bounded on any text. Counts of n-grams are exact and take linear time: words are numbered, and an n-gram can
occur twice only where both of its (n - 1)-grams do, so each length looks only at the positions that the shorter length
left.
"""

import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import regex

from dataprep.clean.rules.document import DocumentText

Array = np.ndarray[Any, Any]

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
"""Gopher's eight (Rae et al. 2021, A.1.1), compared with case."""
SENTENCE_ENDS = r"\p{Sentence_Terminal}៖៙៚"
"""Body of a regex class: characters with Unicode's property Sentence_Terminal, and Khmer signs that datatrove adds."""
# huggingface/datatrove 0.10: utils/text.py, PUNCTUATION_SET. Emoji, bullets and signs such as € ° → are words there.
# The property has since gained 16 characters, of scripts such as Balinese and Coptic; words contain no white space.
_MARK = regex.compile(
    rf"[{SENTENCE_ENDS}{regex.escape(string.punctuation)}«´»–—’“”„…∶━►、。〈〉《》「」【】！％（），．１：；？～\x00-\x1f\x7f-\x9f]+"
)


@dataclass(slots=True)
class WordCounts:
    """How many words of each kind a text has."""

    total: int = 0
    """Words and marks."""
    marks: int = 0
    """Words of datatrove's punctuation alone."""
    characters: int = 0
    """Characters of the words that are not marks."""
    alphabetic: int = 0
    """Words with a letter."""
    stop_words: int = 0
    """How many of STOP_WORDS occur."""


def count_words(document: DocumentText) -> WordCounts:
    """Count all words by kind; for `DocumentText.once`."""
    counts = WordCounts()
    stop_words: set[str] = set()
    for words in document.word_blocks():
        numbers = Counter(words)
        counts.total += len(words)
        stop_words |= STOP_WORDS & numbers.keys()
        counts.alphabetic += len(words)
        counts.characters += sum(map(len, words))
        for word in [word for word in numbers if not word.isalpha()]:
            if _MARK.fullmatch(word):
                counts.marks += numbers[word]
                counts.characters -= len(word) * numbers[word]
            if not any(map(str.isalpha, word)):
                counts.alphabetic -= numbers[word]
    counts.stop_words = len(stop_words)
    return counts


def ratio(part: float, whole: float) -> float:
    """Return `part / whole`, or 0 if `whole` is 0."""
    return part / whole if whole else 0.0


@dataclass(frozen=True, slots=True)
class Duplicates:
    """How many lines or paragraphs of a text repeat an earlier one."""

    total: int
    """Lines or paragraphs, duplicates included."""
    duplicates: int
    characters: int
    """Characters of the duplicates."""


def find_duplicates(parts: Sequence[str]) -> Duplicates:
    """Count the parts of a text that occur again; the first occurrence is not a duplicate."""
    distinct = set(parts)
    if len(distinct) == len(parts):
        return Duplicates(len(parts), 0, 0)
    characters = sum(map(len, parts)) - sum(map(len, distinct))
    return Duplicates(len(parts), len(parts) - len(distinct), characters)


def duplicate_lines(document: DocumentText) -> Duplicates:
    """Count duplicates among the lines of the head, empty ones skipped; for `DocumentText.once`."""
    return find_duplicates([line for line in document.head.split("\n") if line])


def duplicate_paragraphs(document: DocumentText) -> Duplicates:
    """Count duplicates among the paragraphs of the head, which blank lines separate; for `DocumentText.once`."""
    paragraphs = (paragraph.strip("\n") for paragraph in document.head.strip().split("\n\n"))
    return find_duplicates([paragraph for paragraph in paragraphs if paragraph])


@dataclass(frozen=True, slots=True)
class _NGrams:
    """The n-grams of one length that occur at least twice, and how often every n-gram occurs."""

    positions: Array
    """(r,), rising positions of the first words of repeated n-grams."""
    ids: Array
    """(r,), one number per distinct n-gram."""
    first_positions: Array
    """(d,), where each distinct n-gram occurs first."""
    occurrences: Array
    """(d,), how often each distinct n-gram occurs; those that occur once are included."""


class RepeatedNGrams:
    """The n-grams of words that occur again in a document's head, for any n from 2."""

    def __init__(self, words: Sequence[str]) -> None:
        self._num_words = len(words)
        numbers = dict(zip(words, range(len(words)), strict=True))
        ids = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
        lengths = np.fromiter(map(len, words), np.int64, len(words))
        self._ends = np.concatenate(([0], np.cumsum(lengths)))
        positions = np.arange(max(0, len(words) - 1), dtype=np.int32)
        self._by_length = {2: _repeated(positions, ids[:-1] * len(words) + ids[1:])}

    def top_characters(self, length: int) -> int:
        """Return the characters in all occurrences of the most frequent n-gram of `length` words, spaces included.

        Of equally frequent n-grams, the first counts; without repetition, the first of the text.
        """
        if self._num_words < length:
            return 0
        ngrams = self._ngrams(length)
        occurrences = int(ngrams.occurrences.max(initial=1))
        first = int(ngrams.first_positions[ngrams.occurrences == occurrences].min()) if occurrences > 1 else 0
        return occurrences * (self._characters(first, length) + length - 1)

    def duplicate_characters(self, length: int) -> int:
        """Return the characters, without spaces, of n-grams that repeat an earlier one; duplicates do not overlap."""
        ngrams = self._ngrams(length)
        seen: set[int] = set()
        total = next_position = 0
        for position, ngram in zip(ngrams.positions.tolist(), ngrams.ids.tolist(), strict=True):
            if position < next_position:
                continue
            if ngram in seen:
                total += self._characters(position, length)
                next_position = position + length
            else:
                seen.add(ngram)
        return total

    def _characters(self, position: int, length: int) -> int:
        return int(self._ends[position + length] - self._ends[position])

    def _ngrams(self, length: int) -> _NGrams:
        if length not in self._by_length:
            shorter = self._ngrams(length - 1)
            if not len(shorter.positions):
                return shorter
            pairs = np.flatnonzero(shorter.positions[1:] - shorter.positions[:-1] == 1)
            ids = shorter.ids[pairs].astype(np.int64) * self._num_words + shorter.ids[pairs + 1]
            self._by_length[length] = _repeated(shorter.positions[pairs], ids)
        return self._by_length[length]


def _repeated(positions: Array, ids: Array) -> _NGrams:
    """Keep only the positions whose id occurs at least twice, and renumber the ids from 0."""
    if not len(ids):
        return _NGrams(positions, ids, positions, ids)
    order = ids.argsort(kind="stable")
    ordered = ids[order]
    is_first = np.empty(len(ids), bool)
    is_first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    firsts = np.flatnonzero(is_first)
    renumbered = np.empty(len(ids), np.int32)
    renumbered[order] = is_first.cumsum(dtype=np.int32) - 1
    occurrences = np.bincount(renumbered)
    keep = occurrences[renumbered] > 1
    return _NGrams(positions[keep], renumbered[keep], positions[order[firsts]], occurrences)


def repeated_ngrams(document: DocumentText) -> RepeatedNGrams:
    """Find the repeated n-grams of the document's head; for `DocumentText.once`."""
    return RepeatedNGrams(document.head_words)
