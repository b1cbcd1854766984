"""Clusters of duplicates: union-find on flat arrays, buckets linked by centres, survivors.

Nothing here opens a file; documents are numbers, and similarities come from a function.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = np.ndarray[Any, Any]
SurvivorRule = Literal["longest", "first", "earliest_url"]
Similarity = Callable[[Array, Array], Array]
"""Similarity of documents a[i] and b[i]."""

SURVIVOR_RULES: tuple[SurvivorRule, ...] = ("longest", "first", "earliest_url")


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


def link_bucket(members: Array, labels: Array, similarity: Similarity, threshold: float) -> tuple[Array, Array, Array]:
    """Compare the members of a bucket until each pair is either compared or known to be connected.

    Each member in turn is the centre for all later ones that are not connected to it yet, so a bucket of
    one cluster costs one comparison per member, and no connection within a mixed bucket is missed.
    `labels` are the members' sets as known so far, overwritten with the result.
    Returns the pairs found as positions a < b in `members`, and their similarity.
    """
    found: list[tuple[Array, Array, Array]] = []
    for centre in range(len(members)):
        if (labels == labels[0]).all():
            break
        others = np.flatnonzero(labels != labels[centre])
        others = others[others > centre]
        values = similarity(np.full(len(others), members[centre]), members[others])
        alike = values >= threshold
        found.append((np.full(int(alike.sum()), centre), others[alike], values[alike]))
        labels[np.isin(labels, labels[others[alike]])] = labels[centre]
    return _concatenate(found)


def all_pairs(members: Array, similarity: Similarity, threshold: float) -> tuple[Array, Array, Array]:
    """Every pair of members that reaches the threshold, as positions a < b, and its similarity."""
    a, b = np.triu_indices(len(members), 1)
    values = similarity(members[a], members[b])
    alike = values >= threshold
    return a[alike], b[alike], values[alike]


def survivor_pairs(
    members: Array, order: Array, similarity: Similarity, threshold: float
) -> tuple[Array, Array, Array]:
    """The pairs that grouping a large cluster needs: every survivor in `order` with all that are left.

    `order`: positions in `members`, best survivor first.
    """
    found: list[tuple[Array, Array, Array]] = []
    left = order
    while len(left) > 1:
        centre, others = left[0], left[1:]
        values = similarity(np.full(len(others), members[centre]), members[others])
        alike = values >= threshold
        matched = others[alike]
        found.append((np.minimum(centre, matched), np.maximum(centre, matched), values[alike]))
        left = others[~alike]
    return _concatenate(found)


def _concatenate(found: list[tuple[Array, Array, Array]]) -> tuple[Array, Array, Array]:
    nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    a, b, values = zip(nothing, *found, strict=True)
    return np.concatenate(a), np.concatenate(b), np.concatenate(values)


def survivor_ranks(documents: pa.Table, rule: SurvivorRule) -> Array:
    """Rank of each document as a survivor, 0 the best: (num_documents,) int64.

    `documents` has `doc_id`, `url`, `length`, `shard`, `row`. `longest`: most characters; `first`: first
    in the input; `earliest_url`: lowest URL, none last. Ties: lowest doc_id, then first in the input.
    """
    place = [("shard", "ascending"), ("row", "ascending")]
    keys = {
        "longest": [("length", "descending"), ("doc_id", "ascending"), *place],
        "first": place,
        "earliest_url": [("no_url", "ascending"), ("url", "ascending"), ("doc_id", "ascending"), *place],
    }[rule]
    no_url = np.asarray(pc.call_function("binary_length", [documents["url"]]).to_numpy()) == 0
    columns = {name: documents[name] for name in ("url", "length", "shard", "row")}
    # Arrow sorts binary of variable size, not of fixed size.
    columns |= {"doc_id": documents["doc_id"].cast(pa.binary()), "no_url": pa.array(no_url)}
    table = pa.table({**columns, "position": pa.array(np.arange(len(documents)))})
    ranks = np.empty(len(table), dtype=np.int64)
    ranks[table.sort_by(keys)["position"].to_numpy()] = np.arange(len(table))
    return ranks


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
