"""Clusters of duplicates: union-find on flat arrays, buckets linked by centres, survivors.

Nothing here opens a file; documents are numbers, and similarities come from a function.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.dedup.arrays import from_numpy, to_numpy
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.pairs import compare
from pipelines.columns import column

Array = np.ndarray[Any, Any]
SurvivorRule = Literal["longest", "first", "earliest_url", "best_source"]
Similarity = Callable[[Array, Array], Array]
"""Similarity of documents a[i] and b[i]."""


class UnionFind:
    """Disjoint sets of the nodes 0 to n - 1 in one array; a set's root is its smallest node."""

    def __init__(self, num_nodes: int) -> None:
        self.parent: Array = np.arange(num_nodes, dtype=np.int64)

    def union(self, a: Array, b: Array) -> None:
        """Join the sets of a[i] and b[i], for all i."""
        while True:
            roots_a, roots_b = self.parent[a], self.parent[b]
            low, high = np.minimum(roots_a, roots_b), np.maximum(roots_a, roots_b)
            apart = low != high
            if not apart.any():
                return
            np.minimum.at(self.parent, high[apart], low[apart])
            self._flatten()

    def _flatten(self) -> None:
        # Every node points at its root again: path lengths halve with each turn.
        while True:
            grandparent = self.parent[self.parent]
            if np.array_equal(grandparent, self.parent):
                return
            self.parent = grandparent

    def components(self, least: int = 2) -> list[Array]:
        """The nodes of each set of at least `least` nodes, ascending, in order of their roots."""
        order = np.argsort(self.parent, kind="stable")
        edges = np.flatnonzero(np.diff(self.parent[order])) + 1
        return [nodes for nodes in np.split(order, edges) if len(nodes) >= least]


def link_bucket(
    members: Array, labels: Array, similarity: Similarity, threshold: float, corpus: Corpus
) -> tuple[Array, Array, Array]:
    """Compare the members of a bucket until each pair is either compared or known to be connected.

    Each member in turn is the centre for all that were none and are not connected to it yet, so a bucket of
    one cluster costs one comparison per member, and no connection within a mixed bucket is missed. Where
    not all are compared with each other, the centres are members whose pairs are all there are.
    `members` are in order; `labels` are their sets as known so far, overwritten with the result.
    Returns the pairs found as positions a < b in `members`, and their similarity.
    """
    found: list[tuple[Array, Array, Array]] = []
    used = np.zeros(len(members), dtype=bool)
    for centre in _centres(members, corpus).tolist():
        if (labels == labels[0]).all():
            break
        others = np.flatnonzero((labels != labels[centre]) & ~used)
        used[centre] = True
        others = others[corpus.compares(np.full(len(others), members[centre]), members[others])]
        values = similarity(np.full(len(others), members[centre]), members[others])
        alike = values >= threshold
        matched = others[alike]
        found.append((np.minimum(centre, matched), np.maximum(centre, matched), values[alike]))
        labels[np.isin(labels, labels[matched])] = labels[centre]
    return _concatenate(found)


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


def all_pairs(members: Array, similarity: Similarity, threshold: float, corpus: Corpus) -> tuple[Array, Array, Array]:
    """Every pair of members that reaches the threshold, as positions a < b, and its similarity."""
    a, b = np.triu_indices(len(members), 1)
    compared = corpus.compares(members[a], members[b])
    a, b = a[compared], b[compared]
    values = similarity(members[a], members[b])
    alike = values >= threshold
    return a[alike], b[alike], values[alike]


def survivor_pairs(
    members: Array, order: Array, similarity: Similarity, threshold: float, corpus: Corpus
) -> tuple[Array, Array, Array]:
    """The pairs that grouping a large cluster needs: every survivor in `order` with all that are left.

    `order`: positions in `members`, best survivor first, the old ones before the new.
    """
    found: list[tuple[Array, Array, Array]] = []
    removed = np.zeros(len(members), dtype=bool)
    left = order[corpus.may_lose(members[order])]
    for centre in order[corpus.may_win(members[order])].tolist():
        if removed[centre]:
            continue
        left = left[left != centre]
        if not len(left):
            break
        values = similarity(np.full(len(left), members[centre]), members[left])
        alike = values >= threshold
        matched = left[alike]
        removed[matched] = True
        found.append((np.minimum(centre, matched), np.maximum(centre, matched), values[alike]))
        left = left[~alike]
    return _concatenate(found)


def _concatenate(found: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    a, b, values = zip(nothing, *found, strict=True)
    return np.concatenate(a), np.concatenate(b), np.concatenate(values)


def survivor_ranks(documents: pa.Table, rule: SurvivorRule, sources: Sequence[str] = ()) -> Array:
    """Rank of each document as a survivor, 0 the best: (num_documents,) int64.

    `documents` has DOCUMENT_FIELDS. `longest`: most characters; `first`: first in the input; `earliest_url`:
    lowest URL, none last; `best_source`: by the place of its source in `sources`, others last. Ties: lowest
    doc_id, then first in the input. Old documents come before all new ones, whatever the rule.
    """
    place = [("is_new", "ascending"), ("corpus", "ascending"), ("shard", "ascending"), ("row", "ascending")]
    keys = {
        "longest": [("length", "descending"), ("doc_id", "ascending")],
        "first": [],
        "earliest_url": [("no_url", "ascending"), ("url", "ascending"), ("doc_id", "ascending")],
        "best_source": [("preference", "ascending"), ("doc_id", "ascending")],
    }[rule]
    columns = {name: documents[name] for name in ("corpus", "shard", "row", "url", "length")}
    # Arrow sorts binary of variable size, not of fixed size.
    columns |= {"doc_id": documents["doc_id"].cast(pa.binary()), "position": from_numpy(np.arange(len(documents)))}
    columns |= {"is_new": compare("equal", documents["corpus"], ""), "no_url": compare("equal", documents["url"], "")}
    columns |= {"preference": _preference(documents["source"], sources)}
    ranks = np.empty(len(documents), dtype=np.int64)
    order = to_numpy(pa.table(columns).sort_by([place[0], *keys, *place[1:]])["position"])
    ranks[order] = np.arange(len(documents))
    return ranks


def _preference(values: pa.ChunkedArray, sources: Sequence[str]) -> pa.ChunkedArray:
    """Place of each source in `sources`, their number for one that is not there."""
    places = pc.call_function("index_in", [values], pc.SetLookupOptions(column(sources, pa.string())))
    return pc.call_function("coalesce", [places, column([len(sources)], pa.int32())[0]])


def assign_survivors(ranks: Array, a: Array, b: Array, similarity: Array) -> tuple[Array, Array]:
    """Each node's survivor and its similarity with it; a survivor has itself and 1.

    Nodes in order of rank: one that no survivor has claimed survives, and claims all its unclaimed
    neighbours. This is what regrouping comes to: the best of every cluster survives, the members alike
    with it go, and those left over (in a chain, unlike the survivor) are grouped again among themselves.
    """
    order = np.argsort(ranks, kind="stable")
    neighbours, weights, first = _adjacency(len(ranks), a, b, similarity)
    survivor = np.full(len(ranks), -1, dtype=np.int64)
    value = np.ones(len(ranks))
    for node in order.tolist():
        if survivor[node] >= 0:
            continue
        survivor[node] = node
        near = neighbours[first[node] : first[node + 1]]
        free = survivor[near] < 0
        survivor[near[free]] = node
        value[near[free]] = weights[first[node] : first[node + 1]][free]
    return survivor, value


def _adjacency(num_nodes: int, a: Array, b: Array, similarity: Array) -> tuple[Array, Array, Array]:
    """The graph as neighbour lists: those of node i are `neighbours[first[i]:first[i + 1]]`."""
    source, target = np.concatenate((a, b)), np.concatenate((b, a))
    weight = np.concatenate((similarity, similarity))
    order = np.lexsort((-weight, target, source))
    first = np.searchsorted(source[order], np.arange(num_nodes + 1))
    return target[order], weight[order], first
