"""Linking the members of a large bucket: which of them are alike, without a comparison of all with all."""

from typing import Any

import numpy as np

from dataprep.dedup.clusters import Similarity, concatenate_pairs
from dataprep.dedup.corpus import Corpus

Array = np.ndarray[Any, Any]

_ROUNDING = 1e-9
"""Far above the error of a difference of two similarities, far below what tells two sets apart."""
_WORTH = 16
"""A survey is made where it may save this many times its own comparisons."""
_PATIENCE = 8
"""And where those of surveys in vain are at most one in so many of all."""


def link_bucket(
    members: Array, labels: Array, similarity: Similarity, threshold: float, corpus: Corpus, exact: Similarity | None
) -> tuple[Array, Array, Array]:
    """Compare the members of a bucket until each pair is compared, ruled out, or known to be connected.

    Each member in turn is the centre for all that were none and are not connected to it yet, so a bucket of
    one cluster costs one comparison per member, and no connection within a mixed bucket is missed. Where
    not all are compared with each other, the centres are members whose pairs are all there are.
    `exact`: the Jaccard similarity where `similarity` is that too but may say 0 for pairs below the threshold;
    with it, families that are tight and unlike cost about one comparison per member and family as well.
    `members` are in order; `labels` are their sets as known so far, overwritten with the result.
    Returns the pairs found as positions a < b in `members`, and their similarity.
    """
    found: list[tuple[Array, Array, Array]] = []
    used = np.zeros(len(members), dtype=bool)
    survey = _Survey(members, threshold, exact)
    for centre in _centres(members, corpus).tolist() if (labels != labels[:1]).any() else []:
        used[centre] = True
        others = survey.others(centre)
        others = others[(labels[others] != labels[centre]) & ~used[others]]
        others = others[corpus.compares(np.full(len(others), members[centre]), members[others])]
        if not len(others):
            continue
        values = similarity(np.full(len(others), members[centre]), members[others])
        alike = values >= threshold
        matched = others[alike]
        found.append((np.minimum(centre, matched), np.maximum(centre, matched), values[alike]))
        labels[np.isin(labels, labels[matched])] = labels[centre]
        if (labels == labels[0]).all():
            break
        survey.learn(centre, labels, used, len(others))
    return concatenate_pairs(found)


def _centres(members: Array, corpus: Corpus) -> Array:
    """Positions of members one of which is in every pair: the new ones.

    Where these are compared with old ones only, old and new ones in turn until either are used up: of one
    cluster the first old one connects all the new ones, and the first new one all the old ones.
    """
    new = np.flatnonzero(corpus.may_lose(members))
    if corpus.against != "old":
        return new
    old = np.flatnonzero(corpus.may_win(members))
    turns = min(len(old), len(new))
    return np.stack((old[:turns], new[:turns]), axis=1).ravel()


class _Survey:
    """Which members one can be alike at all, from exact distances to a few centres.

    1 - Jaccard similarity is a metric: distance(x, y) >= distance(centre, y) - distance(centre, x). So x of the
    centre's own set can be alike only those y that are hardly farther from the centre than x is.
    Source: Kosub, A note on the triangle inequality for the Jaccard distance, 2019.
    """

    def __init__(self, members: Array, threshold: float, exact: Similarity | None) -> None:
        self._members = members
        self._reach = 1.0 - threshold + _ROUNDING
        self._exact = exact
        self._nearest: list[Array] = [np.arange(len(members))]
        self._list = np.zeros(len(members), dtype=np.int64)
        self._count = np.full(len(members), len(members))
        self._spent = self._in_vain = 0

    def others(self, member: int) -> Array:
        """Positions of all that this one can be alike, and not connected to."""
        return self._nearest[self._list[member]][: self._count[member]]

    def learn(self, centre: int, labels: Array, used: Array, compared: int) -> None:
        """Measure from a centre, if it is worth it, its own set and the rest; `compared`: with how many it just was."""
        self._spent += compared
        if self._exact is None or self._in_vain * _PATIENCE > self._spent:
            return
        own = labels == labels[centre]
        family, rest = np.flatnonzero(own & ~used & (self._list == 0)), np.flatnonzero(~own & ~used)
        cost = len(family) + len(rest)
        if len(family) * len(rest) < _WORTH * cost:
            return
        distances = self._distances(centre, rest)
        order = np.argsort(distances, kind="stable")
        counts = np.searchsorted(distances[order], self._distances(centre, family) + self._reach, side="right")
        fewer = counts <= len(rest) // 2
        if 2 * np.count_nonzero(fewer) < len(family):
            self._in_vain += cost
        self._list[family[fewer]] = len(self._nearest)
        self._count[family[fewer]] = counts[fewer]
        self._nearest.append(rest[order[: counts[fewer].max(initial=0)]])
        used[family[counts == 0]] = True

    def _distances(self, centre: int, others: Array) -> Array:
        assert self._exact is not None
        return 1.0 - self._exact(np.full(len(others), self._members[centre]), self._members[others])
