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

from dataprep.dedup.arrays import from_numpy, to_numpy
from dataprep.dedup.clusters import SMALL_CLUSTER, SurvivorRule, survivor_ranks
from dataprep.dedup.group_report import (
    count_documents,
    describe_groups,
    warn_of,
    warn_of_incomplete,
    warn_of_memory,
)
from dataprep.dedup.pair_graph import Graph, Pairs, memory_needed, read_documents
from dataprep.dedup.pairs import GROUP_SCHEMA, ROW_GROUP, RowGroups, compare, pair_metadata, source_files
from dataprep.dedup.seed_commands import seed_main
from pipelines.columns import column
from pipelines.command import Part, Source, Table
from pipelines.config import Count, Share
from pipelines.documents import count_rows, part_files
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
    """Lowest similarity of a pair that counts, 0 to 1; at least find_duplicates.threshold, and no more than
    that where there are large clusters."""
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
    needed = memory_needed(sum(count_rows(file) or 0 for file in files))
    if needed > run.memory_budget:
        logger.warning("group_duplicates: %s", warn_of_memory(needed, run.memory_budget))
    counts = run.step(group_pairs, "groups", files, config, into=output)
    if incomplete := counts.totals.get("clusters_incomplete"):
        logger.warning("group_duplicates: %s", warn_of_incomplete(incomplete, pairs.path, config.threshold))
    described = describe_groups(
        part_files(output.folder), count_documents(pairs), config.alarm_share, config.alarm_least
    )
    for alarm in described["alarms"]:
        logger.warning("group_duplicates: %s", warn_of(alarm, config.alarm_share))
    return described


def check_pairs(config: GroupDuplicatesConfig, file: Path) -> None:
    """Refuse a threshold or sources that the pairs were not made for: some pairs would be missing."""
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
    if config.threshold > made["threshold"] and (large := made.get("large_clusters", "unknown")):
        raise ConfigError(
            f"group_duplicates.threshold: {config.threshold} is above the {made['threshold']} at which {file.parent} "
            f"was made, which of large clusters (more than {SMALL_CLUSTER} documents; here: {large}) holds only the "
            f"pairs needed at {made['threshold']}; run find_duplicates with --threshold {config.threshold}"
        )
    if config.survivor == "best_source" and list(config.sources) != made["sources"]:
        raise ConfigError(
            f"group_duplicates.sources: {', '.join(config.sources)}, but {file.parent} was made for "
            f"{', '.join(made['sources']) or 'none'}; run find_duplicates with --sources {' '.join(config.sources)}"
        )


def group_pairs(part: Part, folder: Path, config: GroupDuplicatesConfig) -> Counts:
    """The groups of all pairs in `part.files`."""
    every = Pairs.read(part.files)
    incomplete = every.incomplete(config.threshold) if any(pair_metadata(file) is None for file in part.files) else 0
    pairs, num_pairs = every.counted(config.threshold), len(every.a)
    del every
    documents = read_documents(part.files, num_pairs, pairs.mentions)
    graph = Graph.build(survivor_ranks(documents, config.survivor, config.sources), pairs)
    sizes = np.bincount(graph.survivor, minlength=len(documents))
    rows = np.flatnonzero(sizes[graph.survivor] > 1)
    groups = np.cumsum(sizes > 1) - 1
    for number in range(max(1, -(-len(rows) // ROWS_PER_PART))):
        some = rows[number * ROWS_PER_PART : (number + 1) * ROWS_PER_PART]
        with RowGroups(folder / f"part-{number:05d}.parquet", GROUP_SCHEMA) as file:
            for start in range(0, len(some), ROW_GROUP):
                file.write(group_table(documents, graph, some[start : start + ROW_GROUP], sizes, groups, config))
    gone = rows[(graph.survivor[rows] != rows) & to_numpy(compare("equal", documents["corpus"], ""))[rows]]
    num_copies = int(np.count_nonzero(graph.is_copy[gone]))
    totals = {
        "groups": int(np.count_nonzero(sizes > 1)),
        "duplicates_exact": num_copies,
        "duplicates_near": len(gone) - num_copies,
        "clusters": graph.num_clusters,
        "kept_unlike_survivor": graph.num_regrouped,
    }
    return Counts(
        rows_in=num_pairs,
        rows_out=len(rows),
        totals=totals | ({"clusters_incomplete": incomplete} if incomplete else {}),
    )


def group_table(
    documents: pa.Table, graph: Graph, rows: Array, sizes: Array, groups: Array, config: GroupDuplicatesConfig
) -> pa.Table:
    """GROUP_SCHEMA of these documents, by the sizes and the numbers of their survivors' groups."""
    survivor = graph.survivor[rows]
    is_survivor = survivor == rows
    kind = np.where(is_survivor, "survivor", np.where(graph.is_copy[rows], "exact", "near"))
    jaccard = graph.jaccard[rows]
    own, other = documents.take(from_numpy(rows)), documents.take(from_numpy(survivor))
    columns: list[pa.Array | pa.ChunkedArray] = [
        from_numpy(groups[survivor]),
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
