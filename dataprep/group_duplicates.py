"""Stage `group_duplicates`: which document of each group of duplicates survives.

Pairs (the output of find_duplicates, or its JSONL) -> one row per document of a group: shard, row,
doc_id, url, its survivor, its Jaccard similarity with that survivor, and why. Every document that goes
has a verified pair with its survivor: in a chain A-B-C where C is unlike the survivor A, C is not
removed for being like B, but grouped anew with what is left.

Memory: about 300 bytes per document that has a pair, and 100 per pair.

Run: python -m dataprep.group_duplicates pairs.jsonl groups.jsonl --survivor earliest_url
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.dedup.clusters import SurvivorRule, UnionFind, assign_survivors, survivor_ranks
from dataprep.dedup.pairs import (
    DOCUMENT_FIELDS,
    GROUP_SCHEMA,
    PAIR_SCHEMA,
    pair_threshold,
    read_table,
    source_files,
    write_table,
)
from pipelines.command import Part, Source, Table
from pipelines.config import Share
from pipelines.documents import part_files
from pipelines.errors import ConfigError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("numpy", "pyarrow")

Array = np.ndarray[Any, Any]

ROWS_PER_PART = 500_000
_LARGEST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDuplicatesConfig:
    """What counts as a duplicate, and which of them stays."""

    threshold: Share = 0.7
    """Lowest similarity of a pair that counts, 0 to 1; at least find_duplicates.threshold."""
    survivor: SurvivorRule = "longest"
    """Which document of a group stays: most characters, first in the input, or lowest URL; ties by doc_id."""


def group_duplicates(config: GroupDuplicatesConfig, run: StageRun, pairs: Source, output: Table) -> dict[str, Any]:
    """Group all pairs in one step, and describe the groups."""
    files = source_files(pairs, "find_duplicates")
    for file in files:
        check_threshold(config.threshold, file)
    run.step(group_pairs, "groups", files, config, into=output)
    return describe_groups(part_files(output.folder))


def check_threshold(threshold: float, file: Path) -> None:
    """Refuse a threshold below that of the pairs: those in between were never recorded."""
    recorded = pair_threshold(file)
    if recorded is not None and threshold < recorded:
        raise ConfigError(
            f"group_duplicates.threshold: {threshold} is below the {recorded} at which {file.parent} was made; "
            "raise it, or run find_duplicates with a lower threshold"
        )


def group_pairs(part: Part, folder: Path, config: GroupDuplicatesConfig) -> Counts:
    """The groups of all pairs in `part.files`, sorted by (shard, row)."""
    pairs = read_table(part.files, PAIR_SCHEMA)
    counted = pairs.filter((pc.field("kind") == "exact") | (pc.field("jaccard") >= config.threshold))
    documents, a, b = index_documents(counted)
    graph = Graph.build(documents, a, b, counted, config.survivor)
    table = group_table(documents, graph, config)
    for number in range(max(1, -(-len(table) // ROWS_PER_PART))):
        write_table(folder / f"part-{number:05d}.parquet", table.slice(number * ROWS_PER_PART, ROWS_PER_PART))
    kinds = {kind: len(table.filter(pc.field("kind") == kind)) for kind in ("survivor", "exact", "near")}
    totals = {
        "groups": kinds["survivor"],
        "duplicates_exact": kinds["exact"],
        "duplicates_near": kinds["near"],
        "clusters": graph.num_clusters,
        "kept_unlike_survivor": graph.num_regrouped,
    }
    return Counts(rows_in=len(pairs), rows_out=len(table), totals=totals)


def index_documents(pairs: pa.Table) -> tuple[pa.Table, Array, Array]:
    """All documents in the pairs in input order, and the two sides of each pair as positions therein."""
    names = [field.name for field in DOCUMENT_FIELDS]
    both = pa.concat_tables(
        [pairs.select([f"{name}{side}" for name in names]).rename_columns(names) for side in ("_a", "_b")]
    )
    places = (both["shard"].to_numpy().astype(np.uint64) << np.uint64(40)) | both["row"].to_numpy().astype(np.uint64)
    _, first, inverse = np.unique(places, return_index=True, return_inverse=True)
    return both.take(pa.array(first)), inverse[: len(pairs)], inverse[len(pairs) :]


@dataclass(frozen=True, slots=True)
class Graph:
    """Each document's survivor (a position) and similarity with it; how many were clustered and regrouped."""

    survivor: Array
    jaccard: Array
    is_copy: Array
    num_clusters: int
    num_regrouped: int

    @classmethod
    def build(cls, documents: pa.Table, a: Array, b: Array, pairs: pa.Table, rule: SurvivorRule) -> "Graph":
        """Exact copies act as one document, which stands where the best of them stands."""
        ranks = survivor_ranks(documents, rule)
        exact = np.asarray(pc.call_function("equal", [pairs["kind"], pa.scalar("exact")]), dtype=bool)
        copies = UnionFind(len(ranks))
        copies.union(a[exact], b[exact])
        roots, text = np.unique(copies.parent, return_inverse=True)
        best = np.full(len(roots), len(ranks))
        np.minimum.at(best, text, ranks)
        best_document = np.argsort(ranks)[best]
        near_a, near_b, jaccard = text[a[~exact]], text[b[~exact]], pairs["jaccard"].to_numpy()[~exact]
        survivor, value = assign_survivors(best, near_a, near_b, jaccard)
        clusters = UnionFind(len(roots))
        clusters.union(near_a, near_b)
        num_clusters = len(np.unique(clusters.parent))
        num_survivors = int(np.count_nonzero(survivor == np.arange(len(roots))))
        return cls(
            best_document[survivor[text]],
            value[text],
            survivor[text] == text,
            num_clusters,
            num_survivors - num_clusters,
        )


def group_table(documents: pa.Table, graph: Graph, config: GroupDuplicatesConfig) -> pa.Table:
    """One row for each document of a group of two and more, in input order."""
    sizes = np.bincount(graph.survivor, minlength=len(documents))
    rows = np.flatnonzero(sizes[graph.survivor] > 1)
    survivor = graph.survivor[rows]
    is_survivor = survivor == rows
    kind = np.where(is_survivor, "survivor", np.where(graph.is_copy[rows], "exact", "near"))
    jaccard = graph.jaccard[rows]
    _, group = np.unique(survivor, return_inverse=True)
    own, other = documents.take(pa.array(rows)), documents.take(pa.array(survivor))
    columns = {
        "group": group,
        **{field.name: own[field.name] for field in DOCUMENT_FIELDS},
        **{f"survivor_{name}": other[name] for name in ("shard", "row", "doc_id", "url")},
        "jaccard": jaccard,
        "is_survivor": is_survivor,
        "kind": kind.tolist(),
        "reason": [_reason(*row, config) for row in zip(kind, jaccard, sizes[survivor], strict=True)],
    }
    return pa.table(columns, schema=GROUP_SCHEMA)


def _reason(kind: str, jaccard: float, size: int, config: GroupDuplicatesConfig) -> str:
    if kind == "survivor":
        return f"{config.survivor} of {size}"
    return "same text" if kind == "exact" else f"jaccard {jaccard:.4f} >= {config.threshold}"


def describe_groups(files: Sequence[Path]) -> dict[str, Any]:
    """How many groups there are of each size (2, 3-4, 5-8, ...), and the largest ones."""
    table = read_table(files, GROUP_SCHEMA)
    sizes = np.bincount(table["group"].to_numpy()) if len(table) else np.empty(0, np.int64)
    bins: dict[str, int] = {}
    for exponent in range(1, int(sizes.max(initial=1) - 1).bit_length() + 1):
        low, high = 2 ** (exponent - 1) + 1, 2**exponent
        bins[f"{low}-{high}" if low < high else str(high)] = int(((sizes >= low) & (sizes <= high)).sum())
    largest = np.argsort(-sizes, kind="stable")[:_LARGEST]
    survivors = table.filter(table["is_survivor"]).sort_by("group")
    return {
        "group_sizes": bins,
        "largest_groups": [
            {"size": int(sizes[group]), "url": row["url"], "doc_id": row["doc_id"].hex()}
            for group, row in zip(largest, survivors.take(pa.array(largest)).to_pylist(), strict=True)
        ],
    }


if __name__ == "__main__":
    stage_main("dataprep.group_duplicates")
