"""Cutting items out of a document, by the rules of Megatron-LM's tools/openwebtext/filter_ngrams.py.

A cut removes each hit with `margin` characters on either side, and extends to the end of a sentence
(`dataprep.decontaminate.ngrams`), so that the rest begins and ends with complete sentences. Pieces longer than
`min_chars` are kept; a document that would have more than `max_pieces` pieces, or none, is dropped.

A document is dropped by a rule, or kept in pieces: one row each with the document's `doc_id` and `url`, so that later
stages, and a search by URL, find all its pieces under its name.

Where the original differs, it lost text: it saw sentence ends inside numbers and addresses, took offsets from the
lower-cased text, and if no sentence ended before a hit, or after it, it dropped everything on that side. Here such a
cut ends at the margin, at the edge of a word.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.decontaminate.ngrams import sentence_ends
from dataprep.decontaminate.offsets import word_spans
from pipelines.command import Part
from pipelines.documents import Row, ShardWriter, read_rows
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]
Span = tuple[int, int]
"""First character, and the one after the last."""

TOO_MANY_PIECES = "too_many_pieces"
NOTHING_LEFT = "nothing_left"


@dataclass(frozen=True, slots=True)
class CutRules:
    """How much is removed around a hit, and which pieces of a document are kept; lengths in characters."""

    margin: int
    min_chars: int
    max_pieces: int

    def pieces(self, text: str, hits: Sequence[Span]) -> list[Span]:
        """Return the spans of `text` to keep, in order."""
        cuts = merge(cut_spans(text, hits, self.margin))
        return [(start, end) for start, end in between(text, cuts) if end - start > self.min_chars]

    def problem(self, pieces: Sequence[Span]) -> str:
        """Return the rule that drops a document with these pieces; empty if none does."""
        return NOTHING_LEFT if not pieces else TOO_MANY_PIECES if len(pieces) > self.max_pieces else ""


def cut_spans(text: str, hits: Sequence[Span], margin: int) -> Iterator[Span]:
    """Yield the span to remove for each hit; spans may overlap.

    It starts at the last end of a sentence before the margin, or, without one, at the start of the word in which the
    margin falls. It ends at the first end of a sentence from the margin on, or at the end of that word.
    """
    ends = sentence_ends(text)
    first, last = (ends[0], ends[-1]) if ends else (len(text) + 1, -1)
    lefts = [max(0, start - margin) for start, _ in hits]
    rights = [min(len(text), end + margin) for _, end in hits]
    words = words_around(text, {at for at in lefts if at < first} | {at for at in rights if at > last})
    for left, right in zip(lefts, rights, strict=True):
        yield (
            words[left][0] if left < first else ends[bisect_right(ends, left) - 1],
            words[right][1] if right > last else ends[bisect_left(ends, right)],
        )


def words_around(text: str, offsets: set[int]) -> dict[int, Span]:
    """Return, for each offset, the word with characters on both sides of it; an empty span if there is none."""
    around = {at: (at, at) for at in offsets}
    if around.keys() <= {0, len(text)}:
        return around
    starts, ends = word_spans(text)
    for at, word in zip(around, np.searchsorted(ends, list(around), side="right").tolist(), strict=True):
        if word < len(starts) and starts[word] < at:
            around[at] = int(starts[word]), int(ends[word])
    return around


def merge(spans: Iterator[Span]) -> list[Span]:
    """Merge spans into ascending ones that neither overlap nor touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def between(text: str, cuts: Sequence[Span]) -> Iterator[Span]:
    """Yield the spans of a text between the cuts, without the white space after each cut."""
    at = 0
    for start, end in [*cuts, (len(text), len(text))]:
        if start > at:
            yield at, start
        at = _skip_spaces(text, end)


def _skip_spaces(text: str, at: int) -> int:
    """Return the offset of the next character that is not white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


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
"""The plan for a document with an item: dropped by a rule, or (no rule) kept in these pieces."""


def cut_plan(text: str, hits: list[Span], item: str, rules: CutRules) -> dict[str, Any]:
    """Plan the pieces of one document; `item` is the first item in it."""
    pieces = rules.pieces(text, hits)
    rule = rules.problem(pieces)
    value = f"{len(pieces)} pieces without {item}" if pieces else item
    starts, ends = zip(*pieces, strict=True) if pieces and not rule else ((), ())
    return {"rule": rule, "value": value, "starts": starts, "ends": ends}


def kept_hits(hits: Array, plans: Iterable[Row]) -> Array:
    """Return the hits that remain in the output: none of a dropped document, only those within a piece of a cut one."""
    rows, keep = hits["row"].copy(), np.ones(len(hits), dtype=bool)
    for plan in plans:
        first, stop = np.searchsorted(rows, np.array([plan["row"], plan["row"] + 1], rows.dtype)).tolist()
        of_row = hits[first:stop]
        piece = np.searchsorted(np.array(plan["starts"], np.uint64), of_row["start"], side="right") - 1
        # A hit before the first piece gets -1, the appended 0, which no hit's end is below.
        keep[first:stop] = of_row["end"] <= np.array([*plan["ends"], 0], np.uint64)[piece]
    return hits[keep]


def keep_part(part: Part, folder: Path, cut: bool, extra: Sequence[pa.Field]) -> Counts:
    """Write one shard as planned, with the columns `extra` of the input. `part.files`: documents, plan."""
    documents, plan_file = part.files
    plans = {plan["row"]: plan for plan in read_rows(plan_file)}
    names = {field.name for field in PIECE_FIELDS} if cut else set[str]()
    fields = [field for field in extra if field.name not in names]
    absent = dict.fromkeys(field.name for field in fields)
    with ShardWriter(folder, part.name, [*fields, *(PIECE_FIELDS if cut else [])]) as shard:
        for number, document in enumerate(read_rows(documents)):
            row, plan = {**absent, **document}, plans.get(number)
            if plan and plan["rule"]:
                shard.reject(row, plan["rule"], plan["value"])
            elif cut:
                keep_pieces(shard, row, plan)
            else:
                shard.keep(row)
    return shard.counts


def keep_pieces(shard: ShardWriter, row: Row, plan: Row | None) -> None:
    """Write one document as a row for each piece, or unchanged; spans refer to the text before its first cut."""
    text, first = row["text"], row.get("piece_start") or 0
    spans = zip(plan["starts"], plan["ends"], strict=True) if plan else [(0, len(text))]
    for number, (start, end) in enumerate(spans):
        shard.keep({**row, "text": text[start:end], "piece_start": first + start, "piece_end": first + end})
        shard.counts.rows_in -= number > 0  # several rows come out of one that went in
    if plan:
        shard.counts.total("cut_documents", 1)
        shard.counts.total("pieces", len(plan["starts"]))
