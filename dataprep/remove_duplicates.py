"""Stage `remove_duplicates`: keep one document of every group.

Documents and the groups that group_duplicates made of them -> the documents that are in no group or
survive theirs; the others in rejected/, by rule exact_duplicate or near_duplicate, with the survivor and
the similarity. The documents must be those that find_duplicates read: every removed one is checked.

Run: python -m dataprep.remove_duplicates raw.jsonl groups.jsonl unique.jsonl
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.dedup.pairs import GROUP_SCHEMA, read_tables, source_files, write_table
from pipelines.command import Documents, Part, Source, Table
from pipelines.documents import ShardWriter, count_rows, extra_fields, read_rows
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("pyarrow",)

Row = dict[str, Any]


def remove_duplicates(run: StageRun, documents: Documents, groups: Source, output: Table) -> None:
    """Deal the groups' rows out to the shards, then copy every shard without its duplicates."""
    files = source_files(groups, "group_duplicates")
    run.step(deal_out, "decisions", files, len(documents.parts), str(groups.path), into="decisions")
    decisions = run.scratch / "decisions"
    parts = [Part(part.name, (part.file, decisions / f"{part.name}.parquet")) for part in documents.parts]
    run.map(remove_part, parts, str(groups.path), into=output)


def deal_out(part: Part, folder: Path, num_shards: int, groups: str) -> Counts:
    """The rows about each shard, in a table of its own, in order of row."""
    found: dict[int, list[pa.Table]] = {shard: [] for shard in range(num_shards)}
    for file in part.files:
        for table in read_tables(file, GROUP_SCHEMA):
            removed = table.filter(~pc.field("is_survivor"))
            shards = table["shard"].to_numpy()
            if len(shards) and shards.max() >= num_shards:
                raise other_documents(groups, f"they name shard {shards.max()}, the documents have {num_shards}")
            for shard in np.unique(removed["shard"].to_numpy()).tolist():
                found[shard].append(removed.filter(pc.field("shard") == shard))
    for shard, tables in found.items():
        rows = pa.concat_tables([GROUP_SCHEMA.empty_table(), *tables]).sort_by("row")
        write_table(folder / f"part-{shard:05d}.parquet", rows)
    return Counts()


def remove_part(part: Part, folder: Path, groups: str) -> Counts:
    """One shard without its duplicates. `part.files`: documents, decisions."""
    documents, decisions = part.files
    removed = {row["row"]: row for table in read_tables(decisions, GROUP_SCHEMA) for row in table.to_pylist()}
    if removed and max(removed) >= (count_rows(documents) or 0):
        raise other_documents(groups, f"they name row {max(removed)} of {part.name}")
    with ShardWriter(folder, part.name, extra_fields(documents)) as shard:
        for number, row in enumerate(read_rows(documents)):
            decision = removed.get(number)
            if decision is None:
                shard.keep(row)
                continue
            if decision["doc_id"] != row["doc_id"]:
                raise other_documents(groups, f"row {number} of {part.name} is {row['doc_id'].hex()}")
            shard.reject(row, f"{decision['kind']}_duplicate", evidence(decision))
    return shard.counts


def evidence(decision: Row) -> str:
    """Whose duplicate a document is, and how near."""
    survivor = decision["survivor_url"] or decision["survivor_doc_id"].hex()
    return f"survivor={survivor} jaccard={decision['jaccard']:.4g}"


def other_documents(groups: str, detail: str) -> UserError:
    """The error for groups that do not belong to the documents."""
    return UserError(
        f"{groups}: the groups were made from other documents ({detail}); give the documents that find_duplicates read"
    )


if __name__ == "__main__":
    stage_main("dataprep.remove_duplicates")
