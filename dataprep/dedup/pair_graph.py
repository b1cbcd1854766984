"""Pairs as a graph: documents are numbers in order of their places, and what is known of them is read afterwards."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.dedup.arrays import empty_table, from_numpy, to_numpy
from dataprep.dedup.clusters import SMALL_CLUSTER, UnionFind, assign_survivors
from dataprep.dedup.pairs import DOCUMENT_FIELDS, PAIR_SCHEMA, compare, read_tables
from pipelines.columns import column

Array = np.ndarray[Any, Any]

_PLACE = np.dtype([("corpus", "<i4"), ("shard", "<i4"), ("row", "<i8")])
_SIDES = ("_a", "_b")
_BYTES_PER_PAIR = 200
_BYTES_PER_DOCUMENT = 500


def memory_needed(num_pairs: int) -> int:
    """Bytes that grouping takes at most: what it takes for a pair and for two documents."""
    return num_pairs * (_BYTES_PER_PAIR + 2 * _BYTES_PER_DOCUMENT)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of documents, which are numbered from 0: the old ones first, then in order of (shard, row)."""

    a: Array
    b: Array
    jaccard: Array
    exact: Array
    """Of exact copies, twins among them."""
    twin: Array
    mentions: Array
    """Where each document is named in the files: n as first of the n-th pair, n plus their number as second."""

    @classmethod
    def read(cls, files: Sequence[Path]) -> "Pairs":
        """All pairs of these files."""
        places, jaccard = [np.empty((2, 0), _PLACE)], [np.empty(0)]
        exact, twin = [np.empty(0, bool)], [np.empty(0, bool)]
        corpora: dict[str, int] = {}
        for table in _read(files, ["corpus", "shard", "row"], ["jaccard", "kind"]):
            places.append(np.stack([_places(table, side, corpora) for side in _SIDES]))
            jaccard.append(to_numpy(table["jaccard"]))
            exact.append(to_numpy(compare("not_equal", table["kind"], "near")))
            twin.append(to_numpy(compare("equal", table["kind"], "twin")))
        numbers, mentions = _number(np.concatenate(places, axis=1).ravel(), corpora)
        a, b = numbers.reshape(2, -1)
        return cls(a, b, np.concatenate(jaccard), np.concatenate(exact), np.concatenate(twin), mentions)

    def incomplete(self, threshold: float) -> int:
        """Clusters that lack pairs at this threshold if find_duplicates was run at a lower one: large ones.

        It writes the pairs of small clusters all, of a large one those that grouping needs at its own threshold.
        """
        near = ~self.exact
        clusters = UnionFind(len(self.mentions))
        clusters.union(self.a[near], self.b[near])
        sizes = np.bincount(clusters.parent)
        below = clusters.parent[self.a[near & (self.jaccard < threshold)]]
        return len(np.unique(below[sizes[below] > SMALL_CLUSTER]))

    def counted(self, threshold: float) -> "Pairs":
        """The exact pairs and the near ones that reach the threshold, and their documents."""
        counts = self.exact | (self.jaccard >= threshold)
        named = np.zeros(len(self.mentions), bool)
        named[self.a[counts]] = named[self.b[counts]] = True
        number = np.cumsum(named) - 1
        a, b = number[self.a[counts]], number[self.b[counts]]
        return Pairs(a, b, self.jaccard[counts], self.exact[counts], self.twin[counts], self.mentions[named])


def _read(files: Sequence[Path], fields: Sequence[str], more: Sequence[str] = ()) -> Iterator[pa.Table]:
    names = [*(f"{name}{side}" for side in _SIDES for name in fields), *more]
    schema = pa.schema([PAIR_SCHEMA.field(name) for name in names])
    for file in files:
        yield from read_tables(file, schema)


def _places(table: pa.Table, side: str, corpora: dict[str, int]) -> Array:
    """Where the documents of one side stand; `corpora` numbers the names as they come."""
    places = np.empty(len(table), _PLACE)
    for name in table[f"corpus{side}"].unique().to_pylist():
        places["corpus"][to_numpy(compare("equal", table[f"corpus{side}"], name))] = corpora.setdefault(
            name, len(corpora)
        )
    places["shard"], places["row"] = to_numpy(table[f"shard{side}"]), to_numpy(table[f"row{side}"])
    return places


def _number(places: Array, corpora: dict[str, int]) -> tuple[Array, Array]:
    """The number of the document at each place, and where each document comes first."""
    last = sorted(corpora, key=lambda name: (name == "", name))  # new documents after all old ones
    rank = np.argsort([corpora[name] for name in last])
    places["corpus"] = rank[places["corpus"]] if len(rank) else 0
    order = np.lexsort((places["row"], places["shard"], places["corpus"]))
    ordered = places[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(order)]
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(first) - 1
    return numbers, order[first]


def read_documents(files: Sequence[Path], num_pairs: int, mentions: Array) -> pa.Table:
    """DOCUMENT_FIELDS of the documents in the order of `mentions`, which says where they are named."""
    names = [field.name for field in DOCUMENT_FIELDS]
    order = np.argsort(mentions)
    wanted = mentions[order]
    found: dict[str, list[pa.Table]] = {side: [] for side in _SIDES}
    start = 0
    for table in _read(files, names):
        for side, first in zip(_SIDES, (start, num_pairs + start), strict=True):
            low, high = np.searchsorted(wanted, (first, first + len(table)))
            sides = table.select([f"{name}{side}" for name in names]).rename_columns(names)
            found[side].append(sides.take(from_numpy(wanted[low:high] - first)))
        start += len(table)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    schema = pa.schema(DOCUMENT_FIELDS)
    columns = pa.concat_tables([empty_table(schema), *found["_a"], *found["_b"]]).columns
    found.clear()
    for _ in names:  # one after the other, so that there is never a second copy of them all
        values = columns.pop(0)
        values = values.combine_chunks() if len(values) else column([], values.type)  # of nothing it imports pandas
        pa.default_memory_pool().release_unused()  # else the pieces stay with the process, a third of the peak
        columns.append(values.take(from_numpy(place)))
    return pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class Graph:
    """Each document's survivor (a number) and similarity with it; how many were clustered and regrouped."""

    survivor: Array
    jaccard: Array
    is_copy: Array
    num_clusters: int
    num_regrouped: int

    @classmethod
    def build(cls, ranks: Array, pairs: Pairs) -> "Graph":
        """Exact copies act as one document, which stands where the best of them stands; twins do until it survives."""
        copies = UnionFind(len(ranks))
        copies.union(pairs.a[pairs.exact], pairs.b[pairs.exact])
        roots, text = np.unique(copies.parent, return_inverse=True)
        best = np.full(len(roots), len(ranks))
        np.minimum.at(best, text, ranks)
        best_document = np.argsort(ranks)[best]
        near = ~pairs.exact
        near_a, near_b = text[pairs.a[near]], text[pairs.b[near]]
        survivor, value = assign_survivors(best, near_a, near_b, pairs.jaccard[near])
        clusters = UnionFind(len(roots))
        clusters.union(near_a, near_b)
        num_clusters = len(np.unique(clusters.parent))
        num_survivors = int(np.count_nonzero(survivor == np.arange(len(roots))))
        own = best_document[survivor[text]]
        twins = np.unique(np.concatenate((pairs.a[pairs.twin], pairs.b[pairs.twin])))
        kept = twins[survivor[text[twins]] == text[twins]]
        own[kept] = kept
        return cls(
            own,
            value[text],
            survivor[text] == text,
            num_clusters,
            num_survivors - num_clusters,
        )
