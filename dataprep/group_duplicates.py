"""Stage `group_duplicates`: which document of each group of duplicates survives.

Pairs (the output of find_duplicates, or its JSONL) -> one row per document of a group: corpus, shard, row,
doc_id, url, its survivor, its Jaccard similarity with that survivor, and why. Every document that goes
has a verified pair with its survivor: in a chain A-B-C where C is unlike the survivor A, C is not
removed for being like B, but grouped anew with what is left. Documents of old crawls (`corpus` names their
fingerprint folder) survive before all new ones; their own rows are for information.

Memory: about 500 bytes per document that has a pair, and 200 per pair.

The command line of Megatron's group_duplicate_url.py (IN OUT [THRESHOLD], on its files) works here too.

Run: python -m dataprep.group_duplicates pairs.jsonl groups.jsonl --survivor earliest_url
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.dedup.arrays import from_numpy, to_numpy
from dataprep.dedup.clusters import SurvivorRule, UnionFind, assign_survivors, survivor_ranks
from dataprep.dedup.group_report import count_documents, describe_groups, warn_of
from dataprep.dedup.pairs import (
    DOCUMENT_FIELDS,
    GROUP_SCHEMA,
    PAIR_SCHEMA,
    compare,
    pair_metadata,
    read_table,
    source_files,
    take_rows,
    write_table,
)
from dataprep.dedup.seed_commands import seed_main
from pipelines.columns import column
from pipelines.command import Part, Source, Table
from pipelines.config import Count, Share
from pipelines.documents import part_files
from pipelines.errors import ConfigError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 2
SHAPED_BY = ("numpy", "pyarrow")

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]

ROWS_PER_PART = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDuplicatesConfig:
    """What counts as a duplicate, and which of them stays."""

    threshold: Share = 0.7
    """Lowest similarity of a pair that counts, 0 to 1; at least find_duplicates.threshold."""
    survivor: SurvivorRule = "longest"
    """Which document of a group stays: most characters, first in the input, lowest URL, or of the best source; ties by
    doc_id. One of an old crawl comes before all."""
    sources: tuple[str, ...] = ()
    """For best_source: sources in order of preference, the same as find_duplicates.sources; others come last."""
    alarm_share: Share = 0.01
    """Warn of a group that holds more than this share of the documents."""
    alarm_least: Count = 100
    """Never warn of a group with fewer documents than this."""


def group_duplicates(config: GroupDuplicatesConfig, run: StageRun, pairs: Source, output: Table) -> dict[str, Any]:
    """Group all pairs in one step, and describe the groups."""
    files = source_files(pairs, "find_duplicates")
    for file in files:
        check_pairs(config, file)
    run.step(group_pairs, "groups", files, config, into=output)
    described = describe_groups(
        part_files(output.folder), count_documents(pairs), config.alarm_share, config.alarm_least
    )
    for alarm in described["alarms"]:
        logger.warning("group_duplicates: %s", warn_of(alarm, config.alarm_share))
    return described


def check_pairs(config: GroupDuplicatesConfig, file: Path) -> None:
    """Refuse a threshold below that of the pairs, and sources that they were not made for: some would be missing."""
    if config.survivor == "best_source" and not config.sources:
        raise ConfigError("group_duplicates.sources: best_source needs the sources, the best first: --sources a b")
    made = pair_metadata(file)
    if made is None:
        return
    if config.threshold < made["threshold"]:
        raise ConfigError(
            f"group_duplicates.threshold: {config.threshold} is below the {made['threshold']} at which {file.parent} "
            "was made; raise it, or run find_duplicates with a lower threshold"
        )
    if config.survivor == "best_source" and list(config.sources) != made["sources"]:
        raise ConfigError(
            f"group_duplicates.sources: {', '.join(config.sources)}, but {file.parent} was made for "
            f"{', '.join(made['sources']) or 'none'}; run find_duplicates with --sources {' '.join(config.sources)}"
        )


def group_pairs(part: Part, folder: Path, config: GroupDuplicatesConfig) -> Counts:
    """The groups of all pairs in `part.files`."""
    pairs = read_table(part.files, PAIR_SCHEMA)
    alike = compare("greater_equal", pairs["jaccard"], config.threshold)
    counted = pairs.filter(pc.call_function("or_kleene", [compare("not_equal", pairs["kind"], "near"), alike]))
    documents, a, b = index_documents(counted)
    ranks = survivor_ranks(documents, config.survivor, config.sources)
    graph = Graph.build(ranks, a, b, counted)
    table = group_table(documents, graph, config)
    for number in range(max(1, -(-len(table) // ROWS_PER_PART))):
        write_table(folder / f"part-{number:05d}.parquet", table.slice(number * ROWS_PER_PART, ROWS_PER_PART))
    new = table.filter(compare("equal", table["corpus"], ""))
    kinds = {kind: len(new.filter(compare("equal", new["kind"], kind))) for kind in ("exact", "near")}
    totals = {
        "groups": len(table.filter(table["is_survivor"])),
        "duplicates_exact": kinds["exact"],
        "duplicates_near": kinds["near"],
        "clusters": graph.num_clusters,
        "kept_unlike_survivor": graph.num_regrouped,
    }
    return Counts(rows_in=len(pairs), rows_out=len(table), totals=totals)


def index_documents(pairs: pa.Table) -> tuple[pa.Table, Array, Array]:
    """All documents in the pairs, the old ones first, and the two sides of each pair as positions therein."""
    names = [field.name for field in DOCUMENT_FIELDS]
    both = pa.concat_tables(
        [pairs.select([f"{name}{side}" for name in names]).rename_columns(names) for side in ("_a", "_b")]
    )
    corpora = sorted(set(both["corpus"].unique().to_pylist()), key=lambda name: (name == "", name))
    keys = [
        to_numpy(pc.call_function("index_in", [both["corpus"]], pc.SetLookupOptions(column(corpora, pa.string())))),
        to_numpy(both["shard"]),
        to_numpy(both["row"]),
    ]
    order = np.lexsort(keys[::-1])
    first = np.concatenate(([True], np.any([np.diff(key[order]) != 0 for key in keys], axis=0)))[: len(order)]
    positions = np.empty(len(order), dtype=np.int64)
    positions[order] = np.cumsum(first) - 1
    return take_rows(both, order[first]), positions[: len(pairs)], positions[len(pairs) :]


@dataclass(frozen=True, slots=True)
class Graph:
    """Each document's survivor (a position) and similarity with it; how many were clustered and regrouped."""

    survivor: Array
    jaccard: Array
    is_copy: Array
    num_clusters: int
    num_regrouped: int

    @classmethod
    def build(cls, ranks: Array, a: Array, b: Array, pairs: pa.Table) -> "Graph":
        """Exact copies act as one document, which stands where the best of them stands; twins do until it survives."""
        kinds = np.array(pairs["kind"].to_pylist(), dtype=object)
        exact, twin = kinds != "near", kinds == "twin"
        copies = UnionFind(len(ranks))
        copies.union(a[exact], b[exact])
        roots, text = np.unique(copies.parent, return_inverse=True)
        best = np.full(len(roots), len(ranks))
        np.minimum.at(best, text, ranks)
        best_document = np.argsort(ranks)[best]
        near_a, near_b, jaccard = text[a[~exact]], text[b[~exact]], to_numpy(pairs["jaccard"])[~exact]
        survivor, value = assign_survivors(best, near_a, near_b, jaccard)
        clusters = UnionFind(len(roots))
        clusters.union(near_a, near_b)
        num_clusters = len(np.unique(clusters.parent))
        num_survivors = int(np.count_nonzero(survivor == np.arange(len(roots))))
        own = best_document[survivor[text]]
        twins = np.unique(np.concatenate((a[twin], b[twin])))
        kept = twins[survivor[text[twins]] == text[twins]]
        own[kept] = kept
        return cls(
            own,
            value[text],
            survivor[text] == text,
            num_clusters,
            num_survivors - num_clusters,
        )


def group_table(documents: pa.Table, graph: Graph, config: GroupDuplicatesConfig) -> pa.Table:
    """One row for each document of a group of two and more, in the order of `documents`."""
    sizes = np.bincount(graph.survivor, minlength=len(documents))
    rows = np.flatnonzero(sizes[graph.survivor] > 1)
    survivor = graph.survivor[rows]
    is_survivor = survivor == rows
    kind = np.where(is_survivor, "survivor", np.where(graph.is_copy[rows], "exact", "near"))
    jaccard = graph.jaccard[rows]
    _, group = np.unique(survivor, return_inverse=True)
    own, other = take_rows(documents, rows), take_rows(documents, survivor)
    columns: list[pa.Array | pa.ChunkedArray] = [
        from_numpy(group),
        *own.columns,
        *(other[name] for name in ("corpus", "shard", "row", "doc_id", "url")),
        from_numpy(jaccard),
        from_numpy(is_survivor),
        column(kind.tolist(), pa.string()),
        column([_reason(*row, config) for row in zip(kind, jaccard, sizes[survivor], strict=True)], pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=GROUP_SCHEMA)


def _reason(kind: str, jaccard: float, size: int, config: GroupDuplicatesConfig) -> str:
    if kind == "survivor":
        return f"{config.survivor} of {size}"
    return "same text" if kind == "exact" else f"jaccard {jaccard:.4f} >= {config.threshold}"


if __name__ == "__main__":
    seed_main("group_duplicates")
    stage_main("dataprep.group_duplicates")
