"""From pairs to groups: the graph of pairs with each document's survivor, and a description of the groups.

Documents are numbered in order of their location (corpus, shard, row), and their fields are read afterwards.

One group with a large share of all documents is seldom one text: usually it is a cookie notice, an error page or a
log-in form that extraction left on many pages, or the shingles do not tell documents apart. Such groups raise an alarm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.dedup.clusters import SMALL_CLUSTER, UnionFind, assign_survivors
from dataprep.dedup.pairs import DOCUMENT_FIELDS, GROUP_SCHEMA, PAIR_SCHEMA, compare, read_table, read_tables
from pipelines.columns import column, empty_table, from_numpy, to_numpy
from pipelines.command import Source
from pipelines.documents import is_jsonl
from pipelines.manifest import Manifest, manifest_path

Array = np.ndarray[Any, Any]

LARGEST = 10
SAMPLES = 3
"""Documents of a large group whose texts are shown: the survivor and the first of the others."""
_LOCATION = np.dtype([("corpus", "<i4"), ("shard", "<i4"), ("row", "<i8")])
_SIDES = ("_a", "_b")
_BYTES_PER_PAIR = 200
_BYTES_PER_DOCUMENT = 500


def memory_needed(num_pairs: int) -> int:
    """Return the most bytes that grouping takes, with two documents for each pair."""
    return num_pairs * (_BYTES_PER_PAIR + 2 * _BYTES_PER_DOCUMENT)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of documents, which are numbered from 0: old ones first, then in order of (shard, row)."""

    a: Array
    b: Array
    jaccard: Array
    exact: Array
    """Whether the pair are exact copies, including twins."""
    twin: Array
    mentions: Array
    """Where each document is named in the files: n as first of the n-th pair, n plus the number of pairs as second."""

    @classmethod
    def read(cls, files: Sequence[Path]) -> "Pairs":
        """Read all pairs of these files."""
        locations, jaccard = [np.empty((2, 0), _LOCATION)], [np.empty(0)]
        exact, twin = [np.empty(0, bool)], [np.empty(0, bool)]
        corpora: dict[str, int] = {}
        for table in _read(files, ["corpus", "shard", "row"], ["jaccard", "kind"]):
            locations.append(np.stack([_locations(table, side, corpora) for side in _SIDES]))
            jaccard.append(to_numpy(table["jaccard"]))
            exact.append(to_numpy(compare("not_equal", table["kind"], "near")))
            twin.append(to_numpy(compare("equal", table["kind"], "twin")))
        numbers, mentions = _number(np.concatenate(locations, axis=1).ravel(), corpora)
        a, b = numbers.reshape(2, -1)
        return cls(a, b, np.concatenate(jaccard), np.concatenate(exact), np.concatenate(twin), mentions)

    def incomplete(self, threshold: float) -> int:
        """Count the large clusters that lack pairs at this threshold if find_duplicates was run at a lower one.

        It writes all pairs of a small cluster, but of a large one only those that grouping needs at its own threshold.
        """
        near = ~self.exact
        clusters = UnionFind(len(self.mentions))
        clusters.union(self.a[near], self.b[near])
        sizes = np.bincount(clusters.parent)
        below = clusters.parent[self.a[near & (self.jaccard < threshold)]]
        return len(np.unique(below[sizes[below] > SMALL_CLUSTER]))

    def at_threshold(self, threshold: float) -> "Pairs":
        """Return the exact pairs and the near ones that reach the threshold, with their documents numbered anew."""
        keep = self.exact | (self.jaccard >= threshold)
        named = np.zeros(len(self.mentions), bool)
        named[self.a[keep]] = named[self.b[keep]] = True
        number = np.cumsum(named) - 1
        a, b = number[self.a[keep]], number[self.b[keep]]
        return Pairs(a, b, self.jaccard[keep], self.exact[keep], self.twin[keep], self.mentions[named])


def _read(files: Sequence[Path], fields: Sequence[str], more: Sequence[str] = ()) -> Iterator[pa.Table]:
    names = [*(f"{name}{side}" for side in _SIDES for name in fields), *more]
    schema = pa.schema([PAIR_SCHEMA.field(name) for name in names])
    for file in files:
        yield from read_tables(file, schema)


def _locations(table: pa.Table, side: str, corpora: dict[str, int]) -> Array:
    """Return the locations of the documents of one side; `corpora` numbers the corpus names as they appear."""
    locations = np.empty(len(table), _LOCATION)
    for name in table[f"corpus{side}"].unique().to_pylist():
        rows = to_numpy(compare("equal", table[f"corpus{side}"], name))
        locations["corpus"][rows] = corpora.setdefault(name, len(corpora))
    locations["shard"], locations["row"] = to_numpy(table[f"shard{side}"]), to_numpy(table[f"row{side}"])
    return locations


def _number(locations: Array, corpora: dict[str, int]) -> tuple[Array, Array]:
    """Return the number of the document at each location, and where each document comes first."""
    new_last = sorted(corpora, key=lambda name: (name == "", name))  # new documents after all old ones
    rank = np.argsort([corpora[name] for name in new_last])
    locations["corpus"] = rank[locations["corpus"]] if len(rank) else 0
    order = np.lexsort((locations["row"], locations["shard"], locations["corpus"]))
    ordered = locations[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(order)]
    numbers = np.empty(len(order), dtype=np.int64)
    numbers[order] = np.cumsum(first) - 1
    return numbers, order[first]


def read_documents(files: Sequence[Path], num_pairs: int, mentions: Array) -> pa.Table:
    """Read DOCUMENT_FIELDS of the documents in the order of `mentions`, which says where they are named."""
    names = [field.name for field in DOCUMENT_FIELDS]
    order = np.argsort(mentions)
    wanted = mentions[order]
    by_side: dict[str, list[pa.Table]] = {side: [] for side in _SIDES}
    start = 0
    for table in _read(files, names):
        for side, first in zip(_SIDES, (start, num_pairs + start), strict=True):
            low, high = np.searchsorted(wanted, (first, first + len(table)))
            documents = table.select([f"{name}{side}" for name in names]).rename_columns(names)
            by_side[side].append(documents.take(from_numpy(wanted[low:high] - first)))
        start += len(table)
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    schema = pa.schema(DOCUMENT_FIELDS)
    columns = pa.concat_tables([empty_table(schema), *by_side["_a"], *by_side["_b"]]).columns
    by_side.clear()
    for _ in names:  # one by one, so that there is never a second copy of all of them
        values = columns.pop(0)
        values = values.combine_chunks() if len(values) else column([], values.type)  # empty ones would import pandas
        pa.default_memory_pool().release_unused()  # else the process keeps the chunks, a third of the peak
        columns.append(values.take(from_numpy(position)))
    return pa.Table.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class Graph:
    """Each document's survivor (a number) and similarity with it; the numbers of clusters and regrouped texts."""

    survivor: Array
    jaccard: Array
    is_copy: Array
    num_clusters: int
    num_regrouped: int

    @classmethod
    def build(cls, ranks: Array, pairs: Pairs) -> "Graph":
        """Assign a survivor to each document.

        Exact copies act as one document with the rank of the best of them; twins do too, but all survive if it does.
        """
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
        document_survivor = best_document[survivor[text]]
        twins = np.unique(np.concatenate((pairs.a[pairs.twin], pairs.b[pairs.twin])))
        kept = twins[survivor[text[twins]] == text[twins]]
        document_survivor[kept] = kept
        return cls(
            document_survivor,
            value[text],
            survivor[text] == text,
            num_clusters,
            num_survivors - num_clusters,
        )


def count_documents(pairs: Source) -> int | None:
    """Return how many documents the pairs were found among; None if no manifest says."""
    manifest = pairs.manifest
    if manifest is None and is_jsonl(pairs.path) and manifest_path(pairs.path).exists():
        manifest = Manifest.load(manifest_path(pairs.path))
    return manifest.counts.rows_in - sum(manifest.counts.rejected.values()) if manifest else None


def describe_groups(
    files: Sequence[Path], num_documents: int | None, alarm_share: float, alarm_least: int
) -> dict[str, Any]:
    """Describe the groups: how many there are of each size (2, 3-4, 5-8, ...), the largest and the alarming ones.

    Sizes include documents of old crawls; shares count only new ones.
    """
    table = read_table(files, pa.schema([GROUP_SCHEMA.field(name) for name in ("group", "corpus", "is_survivor")]))
    groups = to_numpy(table["group"])
    sizes = np.bincount(groups)
    new = np.bincount(groups[to_numpy(compare("equal", table["corpus"], ""))], minlength=len(sizes))
    survivors_first = np.lexsort((~to_numpy(table["is_survivor"]), groups))
    del table
    starts = np.cumsum(sizes) - sizes
    shown: dict[int, float] = {}
    for number, group in enumerate(np.argsort(-new, kind="stable").tolist()):
        share = float(new[group]) / num_documents if num_documents else 0.0
        alarming = share > alarm_share and new[group] >= alarm_least
        if number >= LARGEST and not alarming:
            break
        shown[group] = share if alarming else 0.0
    samples = {group: survivors_first[starts[group] : starts[group] + min(SAMPLES, sizes[group])] for group in shown}
    rows = _read_rows(files, np.concatenate([np.empty(0, np.int64), *samples.values()]))
    described: list[dict[str, Any]] = []
    alarms: list[dict[str, Any]] = []
    for group, share in shown.items():
        sample = [rows[number] for number in samples[group].tolist()]
        survivor = {"corpus": sample[0]["corpus"], "url": sample[0]["url"], "doc_id": sample[0]["doc_id"].hex()}
        texts = [" ".join(row["start"].split()) for row in sample]
        described.append({"size": int(sizes[group]), **survivor, "starts": texts})
        if share:
            alarms.append({**described[-1], "documents": int(new[group]), "share": round(share, 6)})
    return {"group_sizes": size_bins(sizes), "largest_groups": described[:LARGEST], "alarms": alarms}


def _read_rows(files: Sequence[Path], numbers: Array) -> dict[int, dict[str, Any]]:
    """Read the fields to show of the rows with these numbers, counted over all files."""
    schema = pa.schema([GROUP_SCHEMA.field(name) for name in ("corpus", "url", "doc_id", "start")])
    wanted = np.sort(numbers)
    rows: list[dict[str, Any]] = []
    first = 0
    for table in (table for file in files for table in read_tables(file, schema)):
        low, high = np.searchsorted(wanted, (first, first + len(table)))
        rows += table.take(from_numpy(wanted[low:high] - first)).to_pylist()
        first += len(table)
    return dict(zip(wanted.tolist(), rows, strict=True))


def size_bins(sizes: Array) -> dict[str, int]:
    """Count the sizes that are 2, 3-4, 5-8, ..., up to the largest."""
    bins: dict[str, int] = {}
    for exponent in range(1, int(sizes.max(initial=1) - 1).bit_length() + 1):
        low, high = 2 ** (exponent - 1) + 1, 2**exponent
        bins[f"{low}-{high}" if low < high else str(high)] = int(((sizes >= low) & (sizes <= high)).sum())
    return bins


def alarm_warning(alarm: dict[str, Any], alarm_share: float) -> str:
    """Return the warning for an alarming group, in one line."""
    return (
        f"one group has {alarm['documents']:,} documents, {alarm['share']:.1%} of all and more than alarm_share "
        f"({alarm_share:.1%}); check whether they are one text: {alarm['starts'][0]!r} ({alarm['url']})"
    )


def memory_warning(needed: int, budget: int) -> str:
    """Return the warning for a grouping that may exceed the memory budget, in one line."""
    return (
        f"takes up to {needed / 1e9:.1f} GB, which is above the memory budget of {budget / 1e9:.1f} GB; "
        "if there is less memory, find fewer pairs: run find_duplicates with a higher --threshold"
    )


def incomplete_warning(clusters: int, pairs: Path, threshold: float) -> str:
    """Return the warning for pairs that may be missing, in one line."""
    return (
        f"{pairs}: {clusters:,} clusters of more than {SMALL_CLUSTER} documents have pairs below {threshold}, and "
        "the file does not say that it has all pairs above; if it does not, duplicates remain: find the pairs with "
        f"find_duplicates --threshold {threshold}"
    )
