"""What the groups of duplicates look like: sizes, the largest with the start of their texts, and an alarm.

One group with a large share of all documents is seldom one text: it is a notice of cookies, an error page or
a log-in form that extraction left of many pages, or shingles that do not tell documents apart.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.dedup.arrays import from_numpy, to_numpy
from dataprep.dedup.clusters import SMALL_CLUSTER
from dataprep.dedup.pairs import GROUP_SCHEMA, compare, read_table, read_tables
from pipelines.command import Source
from pipelines.documents import is_jsonl
from pipelines.manifest import Manifest, manifest_path

Array = np.ndarray[Any, Any]

LARGEST = 10
SAMPLES = 3
"""Documents of a large group whose texts are shown: the survivor and the first of the others."""


def count_documents(pairs: Source) -> int | None:
    """How many documents the pairs were found among; None where no manifest says."""
    manifest = pairs.manifest
    if manifest is None and is_jsonl(pairs.path) and manifest_path(pairs.path).exists():
        manifest = Manifest.load(manifest_path(pairs.path))
    return manifest.counts.rows_in - sum(manifest.counts.rejected.values()) if manifest else None


def describe_groups(
    files: Sequence[Path], num_documents: int | None, alarm_share: float, alarm_least: int
) -> dict[str, Any]:
    """How many groups there are of each size (2, 3-4, 5-8, ...), the largest ones, and the alarming ones.

    Sizes count documents of old crawls too, shares only new ones.
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
        sample = [rows[place] for place in samples[group].tolist()]
        survivor = {"corpus": sample[0]["corpus"], "url": sample[0]["url"], "doc_id": sample[0]["doc_id"].hex()}
        texts = [" ".join(row["start"].split()) for row in sample]
        described.append({"size": int(sizes[group]), **survivor, "starts": texts})
        if share:
            alarms.append({**described[-1], "documents": int(new[group]), "share": round(share, 6)})
    return {"group_sizes": size_bins(sizes), "largest_groups": described[:LARGEST], "alarms": alarms}


def _read_rows(files: Sequence[Path], places: Array) -> dict[int, dict[str, Any]]:
    """What is shown of the documents at these places, counted over all files."""
    schema = pa.schema([GROUP_SCHEMA.field(name) for name in ("corpus", "url", "doc_id", "start")])
    wanted = np.sort(places)
    found: list[dict[str, Any]] = []
    first = 0
    for table in (table for file in files for table in read_tables(file, schema)):
        low, high = np.searchsorted(wanted, (first, first + len(table)))
        found += table.take(from_numpy(wanted[low:high] - first)).to_pylist()
        first += len(table)
    return dict(zip(wanted.tolist(), found, strict=True))


def size_bins(sizes: Array) -> dict[str, int]:
    """How many sizes are 2, 3-4, 5-8, ..., up to the largest."""
    bins: dict[str, int] = {}
    for exponent in range(1, int(sizes.max(initial=1) - 1).bit_length() + 1):
        low, high = 2 ** (exponent - 1) + 1, 2**exponent
        bins[f"{low}-{high}" if low < high else str(high)] = int(((sizes >= low) & (sizes <= high)).sum())
    return bins


def warn_of(alarm: dict[str, Any], alarm_share: float) -> str:
    """An alarming group in one line."""
    return (
        f"one group has {alarm['documents']:,} documents, {alarm['share']:.1%} of all and more than alarm_share "
        f"({alarm_share:.1%}); look whether they are one text: {alarm['starts'][0]!r} ({alarm['url']})"
    )


def warn_of_memory(needed: int, budget: int) -> str:
    """A grouping beyond the memory budget in one line."""
    return (
        f"takes up to {needed / 1e9:.1f} GB, which is above the memory budget of {budget / 1e9:.1f} GB; "
        "if there is less memory, find fewer pairs: run find_duplicates with a higher --threshold"
    )


def warn_of_incomplete(clusters: int, pairs: Path, threshold: float) -> str:
    """Pairs that may be missing in one line."""
    return (
        f"{pairs}: {clusters:,} clusters of more than {SMALL_CLUSTER} documents have pairs below {threshold}, and "
        "the file does not say that it holds all above; if not, duplicates stay: find the pairs with find_duplicates "
        f"--threshold {threshold}"
    )
