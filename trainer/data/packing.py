"""The index of packed samples: the pieces of documents in each row, computed before training.

A document longer than a row becomes several pieces, each of which begins with the last token of the one before, so
that every token but a document's first is predicted once. `document`: each piece is a row. `bestfit`: pieces share
rows, packed in windows of 2^21 pieces, so memory is bounded whatever the size of the corpus.

    index/  starts.i64 (index in the token stream), lengths.i32: the pieces, in order of the rows
            rows.i64: index of each row's first piece, one more at the end (bestfit only)
            index.json: the inputs it was built from

The files are memory-mapped, so the index of a trillion tokens needs no memory.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import store
from pipelines.errors import UserError
from trainer.data.order import Array, ragged
from trainer.data.stream import TokenStream

VERSION = 1
WINDOW = 2**21
"""Pieces packed together: about 200 MB of memory."""
_DOCUMENTS = 2**18
Pieces = tuple[Array, Array]
"""Starts (P,) int64 and lengths (P,) int32."""


@dataclass(frozen=True, slots=True)
class PieceIndex:
    """Pieces of documents in rows."""

    starts: Array
    """(P,) index of each piece in the token stream."""
    lengths: Array
    """(P,) tokens of each piece."""
    rows: Array | None
    """(R + 1,) index of each row's first piece; None: each piece is a row."""

    def __len__(self) -> int:
        return len(self.starts) if self.rows is None else len(self.rows) - 1


def open_index(
    root: Path, stream: TokenStream, data: str, sequence_length: int, *, bestfit: bool, drop_tail: bool
) -> PieceIndex:
    """Open the index in `root` of the token folder with digest `data`, after building it if it is missing."""
    key = {
        "version": VERSION,
        "data": data,
        "sequence_length": sequence_length,
        "packing": "bestfit" if bestfit else "document",
        "drop_tail": drop_tail,
    }
    folder = root / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    if not folder.exists():
        pieces = document_pieces(stream, sequence_length + 1, drop_tail=drop_tail)
        partial = folder.with_name(f"{folder.name}.tmp")
        store.remove(partial)
        partial.mkdir(parents=True)
        _write(partial, pack(pieces, sequence_length + 1) if bestfit else ((*each, None) for each in pieces))
        store.write_json(partial / "index.json", key)
        store.rename(partial, folder)
    if not (folder / "lengths.i32").stat().st_size:
        raise UserError(f"{stream.folder}: no document has two tokens, so there is nothing to predict; use another")
    rows = np.memmap(folder / "rows.i64", "<i8", "r") if bestfit else None
    return PieceIndex(np.memmap(folder / "starts.i64", "<i8", "r"), np.memmap(folder / "lengths.i32", "<i4", "r"), rows)


def document_pieces(stream: TokenStream, capacity: int, *, drop_tail: bool) -> Iterator[Pieces]:
    """Yield pieces of at most `capacity` tokens of all documents, in order; with `drop_tail` only the first of each."""
    for shard, begin in zip(stream.shards, stream.begins.tolist(), strict=True):
        for first in range(0, len(shard), _DOCUMENTS):
            offsets = shard.offsets[first : first + _DOCUMENTS + 1].astype(np.int64)
            lengths = np.diff(offsets)
            counts = np.where(lengths < 2, 0, np.maximum(1, -(-(lengths - 1) // (capacity - 1))))
            if drop_tail:
                counts = np.minimum(counts, 1)
            inside = ragged(np.zeros_like(counts), counts) * (capacity - 1)
            starts = begin + np.repeat(offsets[:-1], counts) + inside
            yield starts, np.minimum(np.repeat(lengths, counts) - inside, capacity).astype(np.int32)


def pack(pieces: Iterable[Pieces], capacity: int) -> Iterator[tuple[Array, Array, Array]]:
    """Yield each window's pieces in order of their rows, and the index of each row's first piece in the window."""
    for starts, lengths in _windows(pieces):
        order, rows = best_fit_decreasing(lengths, capacity)
        by_row = np.argsort(rows, kind="stable")
        order = order[by_row]
        yield starts[order], lengths[order], np.searchsorted(rows[by_row], np.arange(int(rows.max()) + 1))


def _windows(pieces: Iterable[Pieces]) -> Iterator[Pieces]:
    waiting: list[Pieces] = []
    size = 0
    for each in pieces:
        waiting.append(each)
        size += len(each[0])
        while size >= WINDOW:
            starts, lengths = (np.concatenate(part) for part in zip(*waiting, strict=True))
            yield starts[:WINDOW], lengths[:WINDOW]
            waiting, size = [(starts[WINDOW:], lengths[WINDOW:])], size - WINDOW
    if size:
        starts, lengths = (np.concatenate(part) for part in zip(*waiting, strict=True))
        yield starts, lengths


def _write(folder: Path, parts: Iterable[tuple[Array, Array, Any]]) -> None:
    """Append pieces, and rows if there are any, to the files of the index."""
    number = 0
    names = ("starts.i64", "lengths.i32", "rows.i64")
    with (folder / names[0]).open("wb") as a, (folder / names[1]).open("wb") as b, (folder / names[2]).open("wb") as c:
        for starts, lengths, rows in parts:
            a.write(starts.astype("<i8").data)
            b.write(lengths.astype("<i4").data)
            if rows is not None:
                c.write((rows + number).astype("<i8").data)
            number += len(starts)
        c.write(np.array([number], "<i8").data)


def best_fit_decreasing(lengths: Array, capacity: int) -> tuple[Array, Array]:
    """Pack pieces into rows; return all pieces' indices in the order of packing, and the row of each.

    Pieces go from the longest to the shortest, each into the fullest row that has room for it (Johnson, "Near-optimal
    bin packing algorithms", 1973; for language models: Ding et al., "Fewer Truncations Improve Language Modeling",
    2024). Pieces of one length are interchangeable, so they are packed together, all rows with equal room at once: the
    result is that of the piece-by-piece algorithm, at millions of pieces a second.

    `lengths`: (P,), each in 1..capacity. Rows are numbered from 0 in the order in which they are opened.
    """
    pieces = np.argsort(-lengths.astype(np.int64), kind="stable")
    counts = np.bincount(lengths, minlength=capacity + 1).tolist()
    room: list[list[Array]] = [[] for _ in range(capacity + 1)]
    placed = [np.empty(0, np.int64)]
    opened = 0
    for length in range(capacity, 0, -1):
        left = counts[length]
        for free in range(length, capacity + 1):
            if left and room[free]:
                left -= _place(length, free, left, room, placed)
        if left:
            new = -(-left // (capacity // length))
            room[capacity].append(np.arange(opened, opened + new))
            opened += new
            _place(length, capacity, left, room, placed)
    return pieces, np.concatenate(placed)


def _place(length: int, free: int, left: int, room: list[list[Array]], placed: list[Array]) -> int:
    """Put up to `left` pieces into the rows with `free` tokens of room; return how many were placed."""
    each = free // length  # the row that just took a piece is the best fit for the next one, while it has room
    rows = np.concatenate(room[free])
    used = min(len(rows), -(-left // each))
    number = min(left, used * each)
    placed.append(np.repeat(rows[:used], each)[:number])
    room[free] = [rows[used:]] if used < len(rows) else []
    last = number - (used - 1) * each
    full = used if last == each else used - 1
    if full:
        room[free - each * length].append(rows[:full])
    if full < used:
        room[free - last * length].append(rows[full:used])
    return number
