"""From candidate pairs to verified ones: the steps of find_duplicates that compare shingle sets.

Every pair that is kept has its exact similarity. Clusters are then completed, so that whoever groups the
pairs finds the similarity of each document with its survivor: all pairs of a small cluster, and for a
large one those of every survivor, under each survivor rule, with all documents that are left. (By sources
only in the order that the search is given: under every order they would be all pairs.)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.dedup.arrays import empty_table, from_numpy
from dataprep.dedup.buckets import distinct_pairs, load_lists, save_lists
from dataprep.dedup.candidates import EDGE, edges, load_large_buckets
from dataprep.dedup.clusters import (
    Similarity,
    SurvivorRule,
    UnionFind,
    all_pairs,
    link_bucket,
    survivor_pairs,
    survivor_ranks,
)
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.pairs import DOCUMENT_FIELDS, STORED_FIELDS
from dataprep.dedup.shingle_sets import Mode, ShingleSets, ShingleSetWriter
from dataprep.dedup.shingles import distinct_shingles
from dataprep.dedup.signatures import SignatureMeta, Signer, read_signatures
from dataprep.text.folding import text_pieces
from pipelines.columns import column
from pipelines.command import Part
from pipelines.documents import read_batches
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

SMALL_CLUSTER = 32
"""Clusters of up to this many documents get all their pairs."""


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

    def on(self, folder: Path, corpus: Corpus) -> Similarity:
        """The similarity of documents by number, on the sets in `folder`."""
        sets = ShingleSets(folder, corpus.first, self.meta.num_perm)
        return lambda a, b: sets.similarity(a, b, self.mode, self.threshold)


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


def verify_pairs(part: Part, folder: Path, corpus: Corpus, measure: Measure, sets: Path) -> Counts:
    """Compare the candidate pairs (a, b) of one range of a, collected from all slices."""
    index, _, count = part.name.partition("-of-")
    low, high = (corpus.num_documents * (int(index) + step) // int(count) for step in (0, 1))
    pieces: list[Array] = [np.empty((0, 2), np.uint64)]
    for file in part.files:
        pairs = np.load(file, mmap_mode="r")
        start, stop = np.searchsorted(pairs[:, 0], np.array([low, high], dtype=np.uint64))
        pieces.append(np.array(pairs[start:stop]))
    candidates = distinct_pairs(np.concatenate(pieces))
    similarity = measure.on(sets, corpus)(candidates[:, 0], candidates[:, 1])
    alike = similarity >= measure.threshold
    np.save(folder / f"{part.name}.npy", edges(candidates[alike, 0], candidates[alike, 1], similarity[alike]))
    return Counts(totals={"candidate_pairs": len(candidates), "verified_candidates": int(alike.sum())})


def find_clusters(part: Part, folder: Path, corpus: Corpus, measure: Measure, sets: Path) -> Counts:
    """Link the large buckets, then write every cluster of three and more documents.

    `part.files`: the signatures of all shards; verified edges, exact edges and large buckets. Writes
    `linked.npy`, `clusters.*`, and for the large clusters the order of survivors under each rule, `order-RULE.*`.
    """
    num_shards = len(corpus.names)
    signatures, others = part.files[:num_shards], part.files[num_shards:]
    known = np.concatenate([np.empty(0, EDGE), *(np.load(file) for file in _of(others, "verified"))])
    large = load_large_buckets(_of(others, "buckets"))
    nodes = np.unique(np.concatenate((known["a"], known["b"], *large)))
    sets_of = UnionFind(len(nodes))
    sets_of.union(np.searchsorted(nodes, known["a"]), np.searchsorted(nodes, known["b"]))
    linked = _link(large, nodes, sets_of, measure.on(sets, corpus), measure.threshold, corpus)
    np.save(folder / "linked.npy", linked)
    clusters = [nodes[members] for members in sets_of.components(least=3)]
    save_lists(folder, "clusters", clusters)
    big = [members for members in clusters if len(members) > SMALL_CLUSTER]
    orders = survivor_orders(big, _of(others, "exact"), signatures, corpus, measure)
    for rule, lists in zip(measure.rules, orders, strict=True):
        save_lists(folder, f"order-{rule}", lists)
    pairs = sum(min(len(members), SMALL_CLUSTER) * len(members) for members in clusters)
    totals = {"clusters": len(clusters), "large_clusters": len(big), "cluster_pairs": pairs}
    return Counts(totals={**totals, "largest_bucket": max(map(len, large), default=0)})


def _of(files: Sequence[Path], kind: str) -> tuple[Path, ...]:
    """Those that an earlier step, named by its folder, has written."""
    return tuple(file for file in files if file.parent.name.split("-")[0] == kind)


def _link(
    large: list[Array], nodes: Array, sets_of: UnionFind, similarity: Similarity, threshold: float, corpus: Corpus
) -> Array:
    found: list[Array] = [np.empty(0, EDGE)]
    for members in large:
        places = np.searchsorted(nodes, members)
        a, b, values = link_bucket(members, sets_of.parent[places], similarity, threshold, corpus)
        sets_of.union(places[a], places[b])
        found.append(edges(members[a], members[b], values))
    return np.concatenate(found)


def survivor_orders(
    clusters: Sequence[Array],
    exact_files: Sequence[Path],
    signature_files: Sequence[Path],
    corpus: Corpus,
    measure: Measure,
) -> list[list[Array]]:
    """For each survivor rule, each cluster's positions with the best survivor first.

    A document stands for its exact copies too: the best of them decides its place.
    """
    if not clusters:
        return [[] for _ in measure.rules]
    members = np.sort(np.concatenate(clusters))
    exact = np.concatenate([np.empty(0, EDGE), *(np.load(file) for file in exact_files)])
    exact = exact[np.isin(exact["a"], members) & corpus.compares(exact["a"], exact["b"])]
    documents = np.sort(np.concatenate((members, exact["b"])))
    table = document_table(documents, signature_files, corpus)
    orders: list[list[Array]] = []
    for rule in measure.rules:
        ranks = survivor_ranks(table, rule, measure.sources)
        best = ranks[np.searchsorted(documents, members)].copy()
        copies = ranks[np.searchsorted(documents, exact["b"])]
        np.minimum.at(best, np.searchsorted(members, exact["a"]), copies)
        orders.append([np.argsort(best[np.searchsorted(members, cluster)]) for cluster in clusters])
    return orders


def complete_clusters(part: Part, folder: Path, corpus: Corpus, measure: Measure, sets: Path) -> Counts:
    """The pairs within every n-th cluster; see the head of this module for which."""
    index, _, count = part.name.partition("-of-")
    similarity = measure.on(sets, corpus)
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


def document_table(numbers: Array, signature_files: Sequence[Path], corpus: Corpus) -> pa.Table:
    """DOCUMENT_FIELDS of the documents with these numbers, which are sorted."""
    schema, stored = pa.schema(DOCUMENT_FIELDS), pa.schema(STORED_FIELDS)
    tables = [empty_table(schema)]
    for shard, file in enumerate(signature_files):
        low, high = np.searchsorted(numbers, np.array(corpus.first[shard : shard + 2], dtype=np.uint64))
        if low < high:
            rows = numbers[low:high] - np.uint64(corpus.first[shard])
            with pq.ParquetFile(str(file)) as opened:
                table = opened.read(stored.names).take(from_numpy(rows)).cast(stored)
            names = column([corpus.names[shard]] * len(rows), pa.string())
            tables.append(table.add_column(0, schema.field(0), names))
    return pa.concat_tables(tables)
