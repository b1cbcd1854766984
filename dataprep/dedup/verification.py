"""From candidate pairs to verified ones: the steps of find_duplicates that compare shingle sets.

Every pair that is kept has its exact similarity. Clusters are then completed, so that whoever groups the
pairs finds the similarity of each document with its survivor: all pairs of a small cluster, and for a
large one those of every survivor, under each survivor rule, with all documents that are left. (By sources
only in the order that the search is given: under every order they would be all pairs.)
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.dedup.arrays import empty_table, from_numpy
from dataprep.dedup.buckets import Slice, distinct_pairs, load_lists, save_flat_lists, save_lists
from dataprep.dedup.candidates import EDGE, edges, load_large_buckets
from dataprep.dedup.clusters import (
    SMALL_CLUSTER,
    Similarity,
    SurvivorRule,
    UnionFind,
    all_pairs,
    survivor_pairs,
    survivor_ranks,
)
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.links import link_bucket
from dataprep.dedup.pairs import DOCUMENT_FIELDS, RANKED_FIELDS
from dataprep.dedup.shingle_sets import Mode, ShingleSets, ShingleSetWriter
from dataprep.dedup.shingles import distinct_shingles
from dataprep.dedup.signatures import SignatureMeta, Signer, read_signatures
from dataprep.text.folding import text_pieces
from pipelines.columns import column
from pipelines.command import Part
from pipelines.documents import read_batches
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

_BYTES_PER_RANKED = 500
"""Memory that ranking takes for each document."""


@dataclass(frozen=True, slots=True)
class Measure:
    """How two documents are compared."""

    meta: SignatureMeta
    mode: Mode
    threshold: float
    sources: tuple[str, ...] = ()
    """Sources in order of preference, if survivors may be chosen by them."""

    @property
    def rules(self) -> tuple[SurvivorRule, ...]:
        """The rules by which survivors may be chosen."""
        return ("longest", "first", "earliest_url", *(("best_source",) if self.sources else ()))

    def open(self, folder: Path, corpus: Corpus) -> ShingleSets:
        """The sets in `folder`, by the numbers of their documents."""
        return ShingleSets(folder, corpus.first, self.meta.num_perm)

    def on(self, sets: ShingleSets) -> Similarity:
        """The similarity of documents by number; 0 for most below the threshold."""
        return lambda a, b: sets.similarity(a, b, self.mode, self.threshold)

    def jaccard_on(self, sets: ShingleSets) -> Similarity | None:
        """The similarity whatever it is, where it is the Jaccard similarity."""
        return (lambda a, b: sets.similarity(a, b, "union", 0.0)) if self.mode == "union" else None


def write_sets(part: Part, folder: Path, corpus: Corpus, meta: SignatureMeta) -> Counts:
    """The shingle sets of one shard's candidates. `part.files`: documents, signatures, candidate marks."""
    documents, signature_file, marks_file = part.files
    shard = int(part.name.removeprefix("part-"))
    marks = np.load(marks_file, mmap_mode="r")[corpus.first[shard] : corpus.first[shard + 1]]
    signer = Signer.make(meta)
    writer = ShingleSetWriter(folder, part.name)
    first = 0
    for batch, (_, signatures) in zip(read_batches(documents, ["text"]), read_signatures(signature_file), strict=True):
        wanted = np.flatnonzero(marks[first : first + batch.num_rows])
        chosen = batch.take(from_numpy(wanted))
        for start, texts in text_pieces(chosen.column("text")):
            sets = distinct_shingles(signer.normalised(texts), signer.shingle)
            rows = wanted[start : start + len(texts)]
            writer.write_all(first + rows, sets.first, sets.hashes, signatures[rows])
        first += batch.num_rows
    writer.close()
    return Counts()


def verify_pairs(
    part: Part, folder: Path, slices: tuple[Slice, ...], corpus: Corpus, measure: Measure, sets: Path
) -> Counts:
    """Compare the candidate pairs (a, b) of one range of a, collected from all slices of keys."""
    this = slices[int(part.name.partition("-")[0])]
    pieces: list[Array] = [np.empty((0, 2), np.uint64)]
    for file in part.files:
        pairs = np.load(file, mmap_mode="r")
        pieces.append(np.array(pairs[this.within(pairs[:, 0])]))
    candidates = distinct_pairs(np.concatenate(pieces))
    similarity = measure.on(measure.open(sets, corpus))(candidates[:, 0], candidates[:, 1])
    alike = similarity >= measure.threshold
    np.save(folder / f"{part.name}.npy", edges(candidates[alike, 0], candidates[alike, 1], similarity[alike]))
    return Counts(totals={"candidate_pairs": len(candidates), "verified_candidates": int(alike.sum())})


def find_clusters(part: Part, folder: Path, corpus: Corpus, measure: Measure, sets: Path, memory: int) -> Counts:
    """Link the large buckets, then write every cluster of three and more documents.

    `part.files`: the signatures of all shards; verified edges, exact edges and large buckets. Writes
    `linked.npy`, `clusters.*`, and for the large clusters the order of survivors under each rule, `order-RULE.*`.
    Memory: a byte for each document, and about 60 for one that is in a verified pair or a large bucket.
    """
    num_shards = len(corpus.names)
    signatures, others = part.files[:num_shards], part.files[num_shards:]
    known, buckets = _of(others, "verified"), _of(others, "buckets")
    nodes = _nodes(known, buckets, corpus)
    sets_of = UnionFind(len(nodes))
    for file in known:
        pairs = np.load(file)
        sets_of.union(np.searchsorted(nodes, pairs["a"]), np.searchsorted(nodes, pairs["b"]))
    linked = _link(load_large_buckets(buckets), nodes, sets_of, measure, sets, corpus)
    np.save(folder / "linked.npy", linked)
    places, ends = sets_of.components(least=3)
    save_flat_lists(folder, "clusters", nodes[places], ends)
    sizes = np.diff(ends, prepend=0)
    big = [nodes[places[ends[n] - sizes[n] : ends[n]]] for n in np.flatnonzero(sizes > SMALL_CLUSTER)]
    orders = survivor_orders(big, _of(others, "exact"), signatures, corpus, measure, memory)
    for rule, lists in orders.items():
        save_lists(folder, f"order-{rule}", lists)
    pairs = int((np.minimum(sizes, SMALL_CLUSTER) * sizes).sum())
    totals = {"clusters": len(sizes), "large_clusters": len(big), "cluster_pairs": pairs}
    return Counts(totals={**totals, "largest_bucket": max(map(len, load_large_buckets(buckets)), default=0)})


def _of(files: Sequence[Path], kind: str) -> tuple[Path, ...]:
    """Those that an earlier step, named by its folder, has written."""
    return tuple(file for file in files if file.parent.name.split("-")[0] == kind)


def _nodes(known: Sequence[Path], buckets: Sequence[Path], corpus: Corpus) -> Array:
    """The numbers of all documents in these pairs and large buckets, sorted."""
    marks = np.zeros(corpus.num_documents, dtype=bool)
    for file in known:
        pairs = np.load(file, mmap_mode="r")
        marks[pairs["a"]] = marks[pairs["b"]] = True
    for members in load_large_buckets(buckets):
        marks[members] = True
    return np.flatnonzero(marks).astype(np.uint64)


def _link(
    large: Iterable[Array], nodes: Array, sets_of: UnionFind, measure: Measure, sets: Path, corpus: Corpus
) -> Array:
    found: list[Array] = [np.empty(0, EDGE)]
    opened = measure.open(sets, corpus)
    similarity, exact = measure.on(opened), measure.jaccard_on(opened)
    for members in large:
        places = np.searchsorted(nodes, members)
        a, b, values = link_bucket(members, sets_of.parent[places], similarity, measure.threshold, corpus, exact)
        sets_of.union(places[a], places[b])
        found.append(edges(members[a], members[b], values))
    return distinct_edges(np.concatenate(found))


def survivor_orders(
    clusters: Sequence[Array],
    exact_files: Sequence[Path],
    signature_files: Sequence[Path],
    corpus: Corpus,
    measure: Measure,
    memory: int,
) -> dict[SurvivorRule, list[Array]]:
    """For each survivor rule, each cluster's positions with the best survivor first.

    A document stands for its exact copies too: the best of them decides its place. Clusters are ranked together
    while `memory` holds what is known of their documents, and one by one where it does not.
    """
    orders: dict[SurvivorRule, list[Array]] = {rule: [] for rule in measure.rules}
    ends = np.cumsum([len(cluster) for cluster in clusters]) * _BYTES_PER_RANKED
    rounds = np.unique(ends // max(1, memory), return_index=True)[1] if len(clusters) else ()
    for some in np.split(np.arange(len(clusters)), rounds)[1:]:
        these = [clusters[number] for number in some]
        members = np.sort(np.concatenate(these))
        exact = _copies_of(members, exact_files, corpus)
        documents = np.sort(np.concatenate((members, exact["b"])))
        table = document_table(documents, signature_files, corpus, RANKED_FIELDS)
        for rule, lists in orders.items():
            ranks = survivor_ranks(table, rule, measure.sources)
            best = ranks[np.searchsorted(documents, members)].copy()
            copies = ranks[np.searchsorted(documents, exact["b"])]
            np.minimum.at(best, np.searchsorted(members, exact["a"]), copies)
            lists += [np.argsort(best[np.searchsorted(members, cluster)]) for cluster in these]
    return orders


def _copies_of(members: Array, exact_files: Sequence[Path], corpus: Corpus) -> Array:
    """The exact edges from these documents, which are sorted, to copies that are compared with them."""
    found: list[Array] = [np.empty(0, EDGE)]
    for file in exact_files:
        exact = np.load(file)
        exact = exact[np.isin(exact["a"], members, assume_unique=False)]
        found.append(exact[corpus.compares(exact["a"], exact["b"])])
    return np.concatenate(found)


def complete_clusters(part: Part, folder: Path, corpus: Corpus, measure: Measure, sets: Path) -> Counts:
    """The pairs within every n-th cluster; see the head of this module for which."""
    index, _, count = part.name.partition("-of-")
    similarity = measure.on(measure.open(sets, corpus))
    found: list[Array] = [np.empty(0, EDGE)]
    for number, (members, orders) in enumerate(_clusters(part.files[0].parent, measure.rules)):
        if number % int(count) != int(index):
            continue
        if orders:
            pieces = [survivor_pairs(members, order, similarity, measure.threshold, corpus) for order in orders]
        else:
            pieces = [all_pairs(members, similarity, measure.threshold, corpus)]
        found += [edges(members[a], members[b], values) for a, b, values in pieces]
    np.save(folder / f"{part.name}.npy", distinct_edges(np.concatenate(found)))
    return Counts()


def _clusters(folder: Path, rules: Sequence[SurvivorRule]) -> Iterator[tuple[Array, list[Array]]]:
    """Each cluster's members, and the survivor orders of a large one."""
    orders = [load_lists(folder, f"order-{rule}") for rule in rules]
    for members in load_lists(folder, "clusters"):
        yield members, [next(lists).astype(np.int64) for lists in orders] if len(members) > SMALL_CLUSTER else []


def distinct_edges(found: Array) -> Array:
    """Sorted by (a, b), each pair once."""
    found = found[np.lexsort((found["b"], found["a"]))]
    if len(found):
        repeated = (found["a"][1:] == found["a"][:-1]) & (found["b"][1:] == found["b"][:-1])
        found = found[np.concatenate(([True], ~repeated))]
    return found


def document_table(
    numbers: Array, signature_files: Sequence[Path], corpus: Corpus, fields: Sequence[pa.Field] = DOCUMENT_FIELDS
) -> pa.Table:
    """`fields`, of DOCUMENT_FIELDS with `corpus` first, of the documents with these numbers, which are sorted."""
    schema, stored = pa.schema(fields), pa.schema(fields[1:])
    tables = [empty_table(schema)]
    bounds = np.searchsorted(numbers, np.array(corpus.first, dtype=np.uint64))
    for shard in np.flatnonzero(np.diff(bounds)).tolist():
        rows = (numbers[bounds[shard] : bounds[shard + 1]] - np.uint64(corpus.first[shard])).astype(np.int64)
        first = 0
        for batch in read_batches(signature_files[shard], stored.names):
            wanted = slice(*np.searchsorted(rows, (first, first + batch.num_rows)))
            if wanted.start < wanted.stop:
                table = pa.Table.from_batches([batch.take(from_numpy(rows[wanted] - first))]).cast(stored)
                names = column([corpus.names[shard]] * len(table), pa.string())
                tables.append(table.add_column(0, schema.field(0), names))
            first += batch.num_rows
    return pa.concat_tables(tables)
