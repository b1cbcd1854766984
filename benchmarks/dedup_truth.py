"""The truth about duplicates, by an exact join of all pairs, and what a run's kept documents are worth against it.

Documents are alike by the Jaccard similarity of their sets of word 5-grams, by our rule for words
(`dataprep.dedup.shingles`), after NFC, case folding and collapsing white space. No MinHash comes near it: rarest
shingles first, two sets of similarity t share one of the first n - ceil(t n) + 1 of each (the prefix filter of
Bayardo, Ma and Srikant: Scaling Up All Pairs Similarity Search, WWW 2007), and whoever does is compared in full.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dataprep.dedup.shingles import Shingle, Shingles, distinct_shingles
from dataprep.text.folding import fold_texts, raw_texts

Array = np.ndarray[Any, Any]

ORPHAN, THRESHOLD = 0.4, 0.7
"""A removed document without a kept one of this similarity is lost; with one of that it was rightly removed."""
_ROWS = 2000
"""Documents whose candidates are held at once."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """All pairs of documents `a[i] < b[i]` from some similarity on, each side the number of its line."""

    a: Array
    b: Array
    jaccard: Array


@dataclass(frozen=True, slots=True)
class Score:
    """What a run did, against the truth."""

    removed: int
    found: dict[str, tuple[int, int]]
    """For each range of similarity: pairs of which at most one document was kept, and all pairs."""
    justified: int
    """Removed documents with a kept one at the threshold."""
    orphans: int
    """Removed documents that no kept one is like."""


RANGES = {"J >= 0.9": (0.9, 2.0), "J >= 0.8": (0.8, 2.0), "J >= 0.7": (0.7, 2.0), "0.7 to 0.8": (0.7, 0.8)}


def shingle_sets(texts: Sequence[str]) -> Shingles:
    """The set of word 5-grams of each text."""
    pieces = [
        distinct_shingles(fold_texts(raw_texts(texts[start : start + _ROWS])), Shingle("word", 5))
        for start in range(0, len(texts), _ROWS)
    ]
    sizes = np.concatenate([np.diff(piece.first) for piece in pieces])
    first = np.concatenate(([0], np.cumsum(sizes)))
    return Shingles(np.concatenate([piece.hashes for piece in pieces]), first)


def jaccard(one: Array, other: Array) -> float:
    """Shared elements of two sorted sets over those of the union; 1 for two empty ones."""
    shared = len(np.intersect1d(one, other, assume_unique=True))
    union = len(one) + len(other) - shared
    return shared / union if union else 1.0


def exact_join(sets: Shingles, least: float = ORPHAN) -> Pairs:
    """Every pair with similarity of at least `least`; texts without any word are like none."""
    found = [
        (a, b, value)
        for a, b in _candidates(_prefixes(sets, least), np.diff(sets.first), least)
        if (value := jaccard(sets.of(a), sets.of(b))) >= least
    ]
    a, b, values = zip(*found, strict=True) if found else ((), (), ())
    return Pairs(np.array(a, np.int64), np.array(b, np.int64), np.array(values, np.float64))


def _needed(sizes: Array, least: float) -> Array:
    """Shingles that a set of this size shares at least; a hair less, so that 0.7 * 10 never becomes 8."""
    return np.ceil(sizes * least - 1e-9).astype(np.int64)


def _prefixes(sets: Shingles, least: float) -> sp.csr_matrix:
    """Documents by shingles: the rarest of each document, as many as the similarity asks for."""
    _, number, times = np.unique(sets.hashes, return_inverse=True, return_counts=True)
    rank = np.empty(len(times), np.int64)
    rank[np.argsort(times, kind="stable")] = np.arange(len(times))
    sizes = np.diff(sets.first)
    document = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((rank[number], document))
    place = np.arange(len(order)) - np.repeat(sets.first[:-1], sizes)
    taken = order[(place <= np.repeat(sizes - _needed(sizes, least), sizes)) & (times[number[order]] > 1)]
    entries = (np.ones(len(taken), np.int32), (document[taken], number[taken]))
    return sp.csr_matrix(entries, shape=(len(sizes), len(times)))


def _candidates(prefixes: sp.csr_matrix, sizes: Array, least: float) -> Iterator[tuple[int, int]]:
    """Pairs, the lower number first, whose prefixes share so much that the rest could make them alike.

    Of what two sets share, all but `shared` lies behind the prefix of the one whose prefix ends with the rarer
    shingle; so it is at most what lies behind the longer of both.
    """
    columns, behind = prefixes.T.tocsr(), _needed(sizes, least) - 1
    for start in range(0, prefixes.shape[0], _ROWS):
        product = (prefixes[start : start + _ROWS] @ columns).tocoo()
        a, b, shared = product.row + start, product.col, product.data
        most = shared + np.maximum(behind[a], behind[b])
        likely = (a < b) & (most * (1 + least) >= least * (sizes[a] + sizes[b]) - 1e-6)
        yield from zip(a[likely].tolist(), b[likely].tolist(), strict=True)


def score(truth: Pairs, kept: Array) -> Score:
    """Judge a run by whether it kept each document: (num_documents,) bool."""
    hit = ~(kept[truth.a] & kept[truth.b])
    found: dict[str, tuple[int, int]] = {}
    for name, (low, high) in RANGES.items():
        inside = (truth.jaccard >= low) & (truth.jaccard < high)
        found[name] = (int((hit & inside).sum()), int(inside.sum()))
    nearest = np.zeros(len(kept))
    for one, other in ((truth.a, truth.b), (truth.b, truth.a)):
        np.maximum.at(nearest, one[kept[other]], truth.jaccard[kept[other]])
    gone = nearest[~kept]
    return Score(len(gone), found, int((gone >= THRESHOLD).sum()), int((gone < ORPHAN).sum()))


def share(part: int, whole: int) -> str:
    """`0.998 (1,773 of 1,776)`, rounded down: no share looks complete that is not."""
    return f"{math.floor(1000 * part / whole) / 1000:.3f} ({part:,} of {whole:,})" if whole else "none"
