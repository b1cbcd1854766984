"""What becomes of the documents that hold items: a plan for each, and the rows that come of it.

A document is dropped by a rule, or kept in pieces: one row each with the document's `doc_id` and `url`, so that every
stage after this one, and whoever asks for the document by its URL, finds all its pieces under its own name.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.decontamination.cutting import CutRules, Span
from pipelines.command import Part
from pipelines.documents import Row, ShardWriter, extra_fields, read_rows
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

PIECE_FIELDS = [pa.field("piece_start", pa.int64()), pa.field("piece_end", pa.int64())]
PLAN_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("rule", pa.string()),
        pa.field("value", pa.string()),
        pa.field("starts", pa.list_(pa.int64())),
        pa.field("ends", pa.list_(pa.int64())),
    ]
)
"""What becomes of a document that holds an item: dropped by a rule, or (no rule) kept in these pieces."""


def cut_plan(text: str, hits: list[Span], item: str, rules: CutRules) -> dict[str, Any]:
    """The pieces of one document; `item` is the first that it holds."""
    pieces = rules.pieces(text, hits)
    rule = rules.problem(pieces)
    value = f"{len(pieces)} pieces without {item}" if pieces else item
    starts, ends = zip(*pieces, strict=True) if pieces and not rule else ((), ())
    return {"rule": rule, "value": value, "starts": starts, "ends": ends}


def kept_hits(hits: Array, plans: Iterable[Row]) -> Array:
    """The hits in what comes out: none of a dropped document, and of one that is cut those within a piece."""
    rows, keep = hits["row"].copy(), np.ones(len(hits), dtype=bool)
    for plan in plans:
        first, stop = np.searchsorted(rows, np.array([plan["row"], plan["row"] + 1], rows.dtype)).tolist()
        own = hits[first:stop]
        piece = np.searchsorted(np.array(plan["starts"], np.uint64), own["start"], side="right") - 1
        # Before the first piece, -1: no hit ends by 0.
        keep[first:stop] = own["end"] <= np.array([*plan["ends"], 0], np.uint64)[piece]
    return hits[keep]


def keep_part(part: Part, folder: Path, cut: bool) -> Counts:
    """One shard as its documents are planned to come out. `part.files`: documents, plan."""
    documents, plan_file = part.files
    plans = {plan["row"]: plan for plan in read_rows(plan_file)}
    names = {field.name for field in PIECE_FIELDS} if cut else set[str]()
    fields = [field for field in extra_fields(documents) if field.name not in names]
    with ShardWriter(folder, part.name, [*fields, *(PIECE_FIELDS if cut else [])]) as shard:
        for number, row in enumerate(read_rows(documents)):
            plan = plans.get(number)
            if plan and plan["rule"]:
                shard.reject(row, plan["rule"], plan["value"])
            elif cut:
                keep_pieces(shard, row, plan)
            else:
                shard.keep(row)
    return shard.counts


def keep_pieces(shard: ShardWriter, row: Row, plan: Row | None) -> None:
    """One document as a row for each of its pieces, or whole; spans stay those of the first text that was cut."""
    text, first = row["text"], row.get("piece_start", 0)
    spans = zip(plan["starts"], plan["ends"], strict=True) if plan else [(0, len(text))]
    for number, (start, end) in enumerate(spans):
        shard.keep({**row, "text": text[start:end], "piece_start": first + start, "piece_end": first + end})
        shard.counts.rows_in -= number > 0  # several rows come out of one that went in
    if plan:
        shard.counts.total("cut_documents", 1)
        shard.counts.total("pieces", len(plan["starts"]))
