"""What the quality classifier sees of a text: which words and pairs of neighbouring words it has, hashed.

A text is folded (NFC, case, white space) and its words and word 2-grams are hashed as shingles are
(`dataprep.dedup.shingles`), by the native kernel if there is one. The first bits of a hash are the number of its
bucket, so there is no vocabulary. Each distinct n-gram counts once, however often it stands in the text (the word of a
text that has only one counts twice). Of a long text the first 1,048,576 characters count.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataprep.dedup.shingles import Shingle, Words, distinct_shingles, find_words, window_hashes, word_hashes
from dataprep.text.folding import Texts, fold_texts, raw_texts

Array = np.ndarray[Any, Any]

MOST_CHARACTERS = 1 << 20
_SIZES = (Shingle("word", 1), Shingle("word", 2))
_HASH_BITS = 64


@dataclass(frozen=True, slots=True)
class Features:
    """The buckets of several texts: text i has `buckets[first[i]:first[i + 1]]`, one for each distinct n-gram."""

    buckets: Array
    first: Array

    def of(self, number: int) -> Array:
        """Return the buckets of one text."""
        return self.buckets[self.first[number] : self.first[number + 1]]


def folded(texts: Sequence[str]) -> Texts:
    """Return texts as their n-grams are taken from them."""
    return fold_texts(raw_texts([text[:MOST_CHARACTERS] for text in texts]))


def find_features(texts: Texts, bits: int) -> Features:
    """Return the features of folded texts, in 2 ** bits buckets (uint32)."""
    words, pairs = (distinct_shingles(texts, size) for size in _SIZES)
    first = words.first + pairs.first
    hashes = np.empty(int(first[-1]), np.uint64)
    hashes[np.arange(len(words.hashes)) + np.repeat(pairs.first[:-1], np.diff(words.first))] = words.hashes
    hashes[np.arange(len(pairs.hashes)) + np.repeat(words.first[1:], np.diff(pairs.first))] = pairs.hashes
    return Features(_bucket(hashes, bits), first)


@dataclass(frozen=True, slots=True)
class NamedFeatures:
    """Each distinct n-gram of a text once, single words first, in the order in which they first stand there."""

    buckets: Array
    _words: Words
    _starts: Array
    _sizes: Array

    def __len__(self) -> int:
        return len(self.buckets)

    def name(self, number: int) -> str:
        """Return the words of one n-gram."""
        start = int(self._starts[number])
        return self._words.text(start, start + int(self._sizes[number]))


def named_features(text: str, bits: int) -> NamedFeatures:
    """Return the features of one text with what they stand for."""
    words = find_words(folded([text]))
    units = word_hashes(words)
    runs = [window_hashes(units, shingle.size) for shingle in _SIZES]
    starts = np.concatenate([np.arange(len(run)) for run in runs])
    sizes = np.repeat([shingle.size for shingle in _SIZES], [len(run) for run in runs])
    hashes = np.concatenate(runs)
    first = np.sort(np.unique(hashes, return_index=True)[1])
    return NamedFeatures(_bucket(hashes[first], bits), words, starts[first], sizes[first])


def _bucket(hashes: Array, bits: int) -> Array:
    return (hashes >> np.uint64(_HASH_BITS - bits)).astype(np.uint32)
