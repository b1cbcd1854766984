"""Stage `remove_duplicates`: keep one document of every group.

Documents and the groups that group_duplicates made of them -> the documents that are in no group or
survive theirs; the others in rejected/, by rule exact_duplicate or near_duplicate, with the survivor and
the similarity. The documents must be those that find_duplicates read: every removed one is checked. A
survivor may be of an old crawl; then its fingerprint folder is named, and it is in no input.

The command line of Megatron's remove_group_duplicates.py (GROUPS DATA OUT, on its files) works here too.

Run: python -m dataprep.remove_duplicates raw.jsonl groups.jsonl unique.jsonl
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.dedup.arrays import empty_table, from_numpy, to_numpy
from dataprep.dedup.kept_rows import KeptRows
from dataprep.dedup.pairs import GROUP_SCHEMA, compare, read_tables, source_files, write_table
from dataprep.dedup.seed_commands import seed_main
from pipelines.command import Documents, Part, Source, Table
from pipelines.documents import (
    DOCUMENT_FIELDS,
    REJECTED,
    REJECTED_SCHEMA,
    TableWriter,
    count_rows,
    extra_fields,
    read_batches,
)
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
        for rows in read_tables(file, GROUP_SCHEMA):
            table = rows.filter(compare("equal", rows["corpus"], ""))  # the others lie in no input
            removed = table.filter(pc.call_function("invert", [table["is_survivor"]]))
            shards = to_numpy(table["shard"])
            if len(shards) and shards.max() >= num_shards:
                raise other_documents(groups, f"they name shard {shards.max()}, the documents have {num_shards}")
            for shard in np.unique(to_numpy(removed["shard"])).tolist():
                found[shard].append(removed.filter(compare("equal", removed["shard"], shard)))
    for shard, tables in found.items():
        rows = pa.concat_tables([empty_table(GROUP_SCHEMA), *tables]).sort_by("row")
        write_table(folder / f"part-{shard:05d}.parquet", rows)
    return Counts()


def remove_part(part: Part, folder: Path, groups: str) -> Counts:
    """One shard without its duplicates. `part.files`: documents, decisions."""
    documents, decisions = part.files
    removed = {row["row"]: row for table in read_tables(decisions, GROUP_SCHEMA) for row in table.to_pylist()}
    if removed and max(removed) >= (count_rows(documents) or 0):
        raise other_documents(groups, f"they name row {max(removed)} of {part.name}")
    counts = Counts()
    with (
        KeptRows(folder / f"{part.name}.parquet", pa.schema([*DOCUMENT_FIELDS, *extra_fields(documents)])) as kept,
        TableWriter(folder / REJECTED / f"{part.name}.parquet", REJECTED_SCHEMA, optional=True) as rejected,
    ):
        for batch in read_batches(documents):
            numbers = range(counts.rows_in, counts.rows_in + batch.num_rows)
            goes = np.array([number in removed for number in numbers], dtype=bool)
            kept.write(batch.filter(from_numpy(~goes)) if goes.any() else batch)
            for place in np.flatnonzero(goes).tolist():
                row, decision = batch.slice(place, 1).select(["doc_id", "url"]).to_pylist()[0], removed[numbers[place]]
                if decision["doc_id"] != row["doc_id"]:
                    raise other_documents(groups, f"row {numbers[place]} of {part.name} is {row['doc_id'].hex()}")
                rule = f"{decision['kind']}_duplicate"
                rejected.write({**row, "rule": rule, "value": evidence(decision)})
                counts.reject(rule)
            counts.rows_in += batch.num_rows
    counts.rows_out = kept.rows
    if kept.rows:
        counts.total("text_bytes", kept.text_bytes)
    return counts


def evidence(decision: Row) -> str:
    """Whose duplicate a document is, and how near."""
    survivor = decision["survivor_url"] or decision["survivor_doc_id"].hex()
    corpus = f" in {decision['survivor_corpus']}" if decision["survivor_corpus"] else ""
    return f"survivor={survivor}{corpus} jaccard={decision['jaccard']:.4g}"


def other_documents(groups: str, detail: str) -> UserError:
    """The error for groups that do not belong to the documents."""
    return UserError(
        f"{groups}: the groups were made from other documents ({detail}); give the documents that find_duplicates read"
    )


if __name__ == "__main__":
    seed_main("remove_duplicates")
    stage_main("dataprep.remove_duplicates")
