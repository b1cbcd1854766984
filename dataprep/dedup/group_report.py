"""What the groups of duplicates look like: sizes, the largest with the start of their texts, and an alarm.

One group with a large share of all documents is seldom one text: it is a notice of cookies, an error page or
a log-in form that extraction left of many pages, or shingles that do not tell documents apart.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dataprep.dedup.arrays import from_numpy, to_numpy
from dataprep.dedup.pairs import GROUP_SCHEMA, compare, read_table
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
    table = read_table(files, GROUP_SCHEMA).select(["group", "corpus", "url", "doc_id", "start", "is_survivor"])
    groups = to_numpy(table["group"])
    sizes = np.bincount(groups)
    new = np.bincount(groups[to_numpy(compare("equal", table["corpus"], ""))], minlength=len(sizes))
    survivors_first = np.lexsort((~to_numpy(table["is_survivor"]), groups))
    starts = np.cumsum(sizes) - sizes
    described: list[dict[str, Any]] = []
    alarms: list[dict[str, Any]] = []
    for number, group in enumerate(np.argsort(-new, kind="stable").tolist()):
        share = float(new[group]) / num_documents if num_documents else 0.0
        alarming = share > alarm_share and new[group] >= alarm_least
        if number >= LARGEST and not alarming:
            break
        rows = survivors_first[starts[group] : starts[group] + min(SAMPLES, sizes[group])]
        samples = table.take(from_numpy(rows)).to_pylist()
        survivor = {"corpus": samples[0]["corpus"], "url": samples[0]["url"], "doc_id": samples[0]["doc_id"].hex()}
        texts = [" ".join(sample["start"].split()) for sample in samples]
        described.append({"size": int(sizes[group]), **survivor, "starts": texts})
        if alarming:
            alarms.append({**described[-1], "documents": int(new[group]), "share": round(share, 6)})
    return {"group_sizes": size_bins(sizes), "largest_groups": described[:LARGEST], "alarms": alarms}


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
