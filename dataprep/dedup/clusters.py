"""Clusters of duplicates: union-find on flat arrays, the pairs that a cluster needs, survivors.

Nothing here opens a file; documents are numbers, and similarities come from a function.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.dedup.arrays import to_numpy
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.pairs import compare
from pipelines.columns import column

Array = np.ndarray[Any, Any]
SurvivorRule = Literal["longest", "first", "earliest_url", "best_source"]
Similarity = Callable[[Array, Array], Array]
"""Similarity of documents a[i] and b[i]."""

SMALL_CLUSTER = 32
"""Clusters of up to this many documents get all their pairs."""


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

    def components(self, least: int) -> tuple[Array, Array]:
        """The nodes of all sets of at least `least` nodes, end to end in order of their roots, and where each ends."""
        sizes = np.bincount(self.parent, minlength=len(self.parent))
        nodes = np.flatnonzero(sizes[self.parent] >= least)
        return nodes[np.argsort(self.parent[nodes], kind="stable")], np.cumsum(sizes[sizes >= max(least, 1)])


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
    return concatenate_pairs(found)


def concatenate_pairs(found: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    """Pairs in pieces, each a, b and similarity, as one piece."""
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    a, b, values = zip(nothing, *found, strict=True)
    return np.concatenate(a), np.concatenate(b), np.concatenate(values)


def survivor_ranks(documents: pa.Table, rule: SurvivorRule, sources: Sequence[str] = ()) -> Array:
    """Rank of each document as a survivor, 0 the best: (num_documents,) int64.

    `documents` has RANKED_FIELDS. `longest`: most characters; `first`: first in the input; `earliest_url`:
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
    columns |= {"doc_id": documents["doc_id"].cast(pa.binary())}
    columns |= {"is_new": compare("equal", documents["corpus"], ""), "no_url": compare("equal", documents["url"], "")}
    columns |= {"preference": _preference(documents["source"], sources)}
    ranks = np.empty(len(documents), dtype=np.int64)
    order = pc.call_function("sort_indices", [pa.table(columns)], pc.SortOptions([place[0], *keys, *place[1:]]))
    ranks[to_numpy(order)] = np.arange(len(documents))
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
