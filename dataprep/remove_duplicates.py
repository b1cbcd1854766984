"""Stage `remove_duplicates`: keep one document of every group.

Documents and the groups that group_duplicates made of them -> the documents that are in no group or
survive theirs; the others in rejected/, by rule exact_duplicate or near_duplicate, with the survivor and
the similarity. The documents must be those that find_duplicates read: every removed one is checked, and
that its survivor is there and stays. A survivor may be of an old crawl; then its fingerprint folder is
named, and it is in no input.

The command line of Megatron's remove_group_duplicates.py (GROUPS DATA OUT, on its files) works here too.

Run: python -m dataprep.remove_duplicates raw.jsonl groups.jsonl unique.jsonl
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataprep.dedup.arrays import from_numpy, to_numpy
from dataprep.dedup.kept_rows import KeptRows
from dataprep.dedup.pairs import GROUP_SCHEMA, compare, read_table, read_tables, source_files, write_table
from dataprep.dedup.seed_commands import seed_main
from pipelines.columns import column
from pipelines.command import Documents, Part, Source, Table
from pipelines.documents import (
    DOCUMENT_FIELDS,
    REJECTED,
    REJECTED_SCHEMA,
    TableWriter,
    count_rows,
    extra_fields,
    part_files,
    read_batches,
)
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("pyarrow",)

Array = np.ndarray[Any, Any]
Row = dict[str, Any]

_DECISION = pa.schema(
    [
        GROUP_SCHEMA.field(name)
        for name in (
            "shard",
            "row",
            "doc_id",
            "kind",
            "jaccard",
            "survivor_corpus",
            "survivor_doc_id",
            "survivor_url",
        )
    ]
)
_NEEDED = ("group", "corpus", "is_survivor", "survivor_shard", "survivor_row")
"""What else is read of groups: where a survivor stands, and what tells them from other tables."""
_SURVIVOR = "survivor"


def remove_duplicates(run: StageRun, documents: Documents, groups: Source, output: Table) -> None:
    """Deal the groups' rows out to the shards, then copy every shard without its duplicates."""
    files = source_files(groups, "group_duplicates")
    run.step(deal_out, "decisions", files, len(documents.parts), str(groups.path), into="decisions")
    decisions = run.scratch / "decisions"
    parts = [Part(part.name, (part.file, *part_files(decisions / part.name))) for part in documents.parts]
    run.map(remove_part, parts, str(groups.path), into=output)


def deal_out(part: Part, folder: Path, num_shards: int, groups: str) -> Counts:
    """What is decided on each shard, in a folder of its own: the documents that go, and those that must stay for them.

    A file for every piece of `part.files` that has something on the shard, so that memory holds one piece.
    """
    schema = pa.schema([GROUP_SCHEMA.field(name) for name in (*_NEEDED, *_DECISION.names)])
    pieces = (rows for file in part.files for rows in read_tables(file, schema))
    for number, rows in enumerate(pieces):
        new = rows.filter(compare("equal", rows["corpus"], ""))  # the others lie in no input
        gone = new.filter(pc.call_function("invert", [new["is_survivor"]]))
        decisions = pa.concat_tables([gone.select(_DECISION.names), _survivors(gone)])
        shards = to_numpy(decisions["shard"])
        if len(shards) and shards.max() >= num_shards:
            raise other_documents(groups, f"they name shard {shards.max()}, the documents have {num_shards}")
        for shard in np.unique(shards).tolist():
            some = decisions.filter(from_numpy(shards == shard))
            write_table(folder / f"part-{shard:05d}" / f"part-{number:05d}.parquet", some)
    return Counts()


def _survivors(gone: pa.Table) -> pa.Table:
    """The new documents that these are duplicates of, each once, as decisions of the kind survivor."""
    gone = gone.filter(compare("equal", gone["survivor_corpus"], ""))
    places = np.stack([to_numpy(gone[f"survivor_{name}"]) for name in ("shard", "row")])
    gone = gone.take(from_numpy(np.unique(places, axis=1, return_index=True)[1]))
    own = {name: gone[f"survivor_{name}"] for name in ("shard", "row", "doc_id")}
    own |= {"kind": column([_SURVIVOR] * len(gone), pa.string())}
    return pa.table([own.get(name, gone[name]) for name in _DECISION.names], schema=_DECISION)


def remove_part(part: Part, folder: Path, groups: str) -> Counts:
    """One shard without its duplicates. `part.files`: documents, decisions."""
    documents, *files = part.files
    decisions = Decisions.read(files, groups, part.name)
    if len(decisions.rows) and decisions.rows[-1] >= (count_rows(documents) or 0):
        raise other_documents(groups, f"they name row {decisions.rows[-1]} of {part.name}")
    counts = Counts()
    with (
        KeptRows(folder / f"{part.name}.parquet", pa.schema([*DOCUMENT_FIELDS, *extra_fields(documents)])) as kept,
        TableWriter(folder / REJECTED / f"{part.name}.parquet", REJECTED_SCHEMA, optional=True) as rejected,
    ):
        for batch in read_batches(documents):
            places, decided = decisions.on(range(counts.rows_in, counts.rows_in + batch.num_rows))
            named = batch.select(["doc_id", "url"]).take(from_numpy(places)).to_pylist()
            stays = np.ones(batch.num_rows, dtype=bool)
            for place, row, decision in zip(places.tolist(), named, decided, strict=True):
                if decision["doc_id"] != row["doc_id"]:
                    raise other_documents(
                        groups, f"row {counts.rows_in + place} of {part.name} is {row['doc_id'].hex()}"
                    )
                if decision["kind"] == _SURVIVOR:
                    continue
                stays[place] = False
                rule = f"{decision['kind']}_duplicate"
                rejected.write({**row, "rule": rule, "value": evidence(decision)})
                counts.reject(rule)
            kept.write(batch if stays.all() else batch.filter(from_numpy(stays)))
            counts.rows_in += batch.num_rows
    counts.rows_out = kept.rows
    if kept.rows:
        counts.total("text_bytes", kept.text_bytes)
    return counts


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is decided on one shard: a row for each document that goes or must stay, in order of row."""

    table: pa.Table
    rows: Array

    @classmethod
    def read(cls, files: Sequence[Path], groups: str, name: str) -> "Decisions":
        """The decisions in these files; UserError where a document that must stay is to go."""
        table = read_table(files, _DECISION).sort_by("row")
        rows, first, number = np.unique(to_numpy(table["row"]), return_index=True, return_inverse=True)
        stays = to_numpy(compare("equal", table["kind"], _SURVIVOR))
        both = rows[(np.bincount(number, stays) > 0) & (np.bincount(number, ~stays) > 0)]
        if len(both):
            raise UserError(
                f"{groups}: row {both[0]} of {name} is a duplicate and the survivor of others, which would lose their "
                "text; run group_duplicates again, and put together no groups of several runs"
            )
        return cls(table.take(from_numpy(first)), rows)

    def on(self, numbers: range) -> tuple[Array, list[Row]]:
        """Which of these rows something is decided on, counted from the first of them, and what."""
        low, high = np.searchsorted(self.rows, (numbers.start, numbers.stop))
        return self.rows[low:high] - numbers.start, self.table.slice(low, high - low).to_pylist()


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
