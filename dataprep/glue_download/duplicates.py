"""Rows of a task that are equal or nearly equal, within its splits and across them.

The search is that of `find_duplicates`: a row becomes a document of its texts, one per line, so a pair with its texts
swapped is a near duplicate. Nothing is dropped: the pairs are listed in duplicates/TASK.parquet (of rows with equal
texts, the first one in all splits represents the others), and counted by the splits they connect.
"""

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.dedup.pairs import PAIR_SCHEMA, compare, read_table
from dataprep.find_duplicates import FindDuplicatesConfig, find_duplicates
from dataprep.glue.tables import DUPLICATES, read_meta
from dataprep.glue.tasks import HIDDEN_LABEL
from pipelines.command import Documents, Output, Part, Table
from pipelines.config import Fraction
from pipelines.documents import DOCUMENT_SCHEMA, TableWriter, open_parquet, part_files, read_rows
from pipelines.identity import document_id
from pipelines.manifest import Counts
from pipelines.run import StageRun

Array = np.ndarray[Any, Any]

MIN_RECALL = 0.999
"""Lowest expected fraction of the pairs at the threshold that are found: sentences are cheap to compare."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicatesConfig:
    """How to search for duplicate rows."""

    find: bool = True
    """Search for duplicates."""
    shingle: str = "word:3"
    """Shingles by which rows are compared, as in find_duplicates; sentences need shorter ones than documents."""
    threshold: Fraction = 0.7
    """Lowest Jaccard similarity of a recorded pair."""


def pair_schema(label: pa.DataType) -> pa.Schema:
    """Return the columns of a pair of rows.

    Both rows have split, `index`, label and text; `kind` is exact (equal after normalization) or near.
    """
    kinds = {"split": pa.string(), "index": pa.int64(), "label": label, "text": pa.string()}
    sides = [pa.field(f"{name}_{side}", kind) for side in ("a", "b") for name, kind in kinds.items()]
    return pa.schema([*sides, pa.field("jaccard", pa.float64()), pa.field("kind", pa.string())])


def find_in_task(
    run: StageRun, name: str, borrowed: Sequence[Path], own: Sequence[Path], config: DuplicatesConfig, output: Output
) -> dict[str, Any]:
    """Publish the pairs of one task, and count its rows that have a duplicate.

    `own` are its tables; `borrowed` is the train split of another task, if the task's model is trained on that.
    """
    tables = [*borrowed, *own]
    within = copy.copy(run)  # each search has its own files and receipts
    within.scratch = run.scratch / "searches" / name
    shards = [Part(f"part-{number:05d}", (table,)) for number, table in enumerate(tables)]
    within.map(write_documents, shards, into="documents")
    documents = [Part(shard.name, (within.scratch / "documents" / f"{shard.name}.parquet",)) for shard in shards]
    pairs = Table(within.scratch / "pairs", within.scratch / "pairs")
    pairs.folder.mkdir(exist_ok=True)
    search = FindDuplicatesConfig(shingle=config.shingle, threshold=config.threshold, min_recall=MIN_RECALL)
    find_duplicates(search, within, Documents(tuple(documents)), pairs, None)
    files = part_files(pairs.folder)
    counts = run.step(write_pairs, name, [*files, *tables], len(files), len(borrowed), into=output)
    return {**counts.totals, **count_rows_with_duplicates(files, tables, len(borrowed))}


def write_documents(part: Part, folder: Path) -> Counts:
    """Write one split as documents: the texts of a row, one per line."""
    texts = read_meta(part.file).texts
    with TableWriter(folder / f"{part.name}.parquet", DOCUMENT_SCHEMA) as table:
        for row in read_rows(part.file, [*texts, "index"]):
            url, text = f"{part.file.stem}:{row['index']}", row_text(row, texts)
            table.write({"doc_id": document_id(url, text), "url": url, "text": text, "source": part.file.stem})
    return Counts()


def row_text(row: dict[str, Any], texts: Sequence[str]) -> str:
    """Return the text by which a row is compared."""
    return "\n".join(row[name] for name in texts)


def write_pairs(part: Part, folder: Path, num_pair_files: int, num_borrowed: int) -> Counts:
    """Write the pairs of one task with the names of their rows; count them, and those whose labels differ."""
    pairs = read_table(part.files[:num_pair_files], PAIR_SCHEMA)
    pairs = pairs.filter(compare("greater_equal", pairs["shard_b"], num_borrowed))  # b comes after a
    tables = part.files[num_pair_files:]
    counts = Counts(totals={"exact_pairs": 0, "near_pairs": 0, "pairs_with_other_labels": 0})
    sides = [
        _named_rows(tables, pairs[f"shard_{side}"].to_numpy(), pairs[f"row_{side}"].to_numpy()) for side in ("a", "b")
    ]
    with open_parquet(tables[0]) as opened:
        schema = pair_schema(opened.schema_arrow.field("label").type)
    with TableWriter(folder / DUPLICATES / f"{part.name}.parquet", schema) as table:
        for a, b, jaccard, kind in zip(*sides, pairs["jaccard"].to_pylist(), pairs["kind"].to_pylist(), strict=True):
            named = {f"{name}_{side}": value for side, row in (("a", a), ("b", b)) for name, value in row.items()}
            table.write({**named, "jaccard": jaccard, "kind": kind})
            counts.totals[f"{kind}_pairs"] += 1
            known = HIDDEN_LABEL not in (a["label"], b["label"])
            counts.totals["pairs_with_other_labels"] += known and a["label"] != b["label"]
    return counts


def _named_rows(tables: Sequence[Path], shards: Array, rows: Array) -> list[dict[str, Any]]:
    """Return row `rows[i]` of table `shards[i]`, for each i."""
    named: dict[tuple[int, int], dict[str, Any]] = {}
    for shard, table in enumerate(tables):
        texts = read_meta(table).texts
        wanted = set(rows[shards == shard].tolist())
        for number, row in enumerate(read_rows(table)) if wanted else ():
            if number in wanted:
                split = {"split": table.stem, "index": row["index"], "label": row["label"]}
                named[shard, number] = {**split, "text": row_text(row, texts)}
    return [named[key] for key in zip(shards.tolist(), rows.tolist(), strict=True)]


def count_rows_with_duplicates(
    pair_files: Sequence[Path], tables: Sequence[Path], num_borrowed: int
) -> dict[str, dict[str, int]]:
    """Count the rows of each split with a duplicate in each split: `{"validation in train": {"exact": 3, "near": 5}}`.

    A row that has an exact duplicate there is not counted as near.
    """
    pairs = read_table(pair_files, PAIR_SCHEMA)
    sizes = [_num_rows(table) for table in tables]
    first = np.cumsum([0, *sizes])
    a, b = (first[pairs[f"shard_{s}"].to_numpy()] + pairs[f"row_{s}"].to_numpy() for s in ("a", "b"))
    exact = pairs["kind"].to_numpy() == "exact"
    representative = np.arange(first[-1])  # of each row, the first one with its text
    representative[b[exact]] = a[exact]
    split = np.repeat(np.arange(len(tables)), sizes)
    equal = np.zeros((first[-1], len(tables)), dtype=np.int64)  # by representative: equal rows in each split
    np.add.at(equal, (representative, split), 1)
    near = np.zeros_like(equal)
    for one, other in ((a, b), (b, a)):  # near pairs only connect representatives
        np.add.at(near, one[~exact], equal[other[~exact]])
    return {
        f"{tables[s].stem} in {tables[t].stem}": _kinds(
            equal[representative[split == s], t] - (s == t), near[representative[split == s], t]
        )
        for s in range(num_borrowed, len(tables))
        for t in range(len(tables))
    }


def _kinds(equal: Array, near: Array) -> dict[str, int]:
    return {"exact": int(np.count_nonzero(equal > 0)), "near": int(np.count_nonzero((equal == 0) & (near > 0)))}


def _num_rows(table: Path) -> int:
    with open_parquet(table) as opened:
        return opened.metadata.num_rows


def log_leaks(name: str, duplicates: dict[str, Any], rows: dict[str, int]) -> None:
    """Log each split with rows that are also in the train split."""
    for split, number in rows.items():
        leaked = duplicates.get(f"{split} in train", {"exact": 0, "near": 0})
        if split != "train" and any(leaked.values()):
            logger.info(
                "glue_download: %s: of %s rows of %s, %s are in train too and %s nearly so (duplicates/%s.parquet)",
                name,
                f"{number:,}",
                split,
                f"{leaked['exact']:,}",
                f"{leaked['near']:,}",
                name,
            )
