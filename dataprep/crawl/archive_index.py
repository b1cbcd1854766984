"""Which capture of an archive answers for which URL: a table on disk, for more captures than memory holds.

A page that our crawler fetched for a URL of a list answers for that URL first. Beside that, a capture
answers for the canonical form of its own URL; of several a page goes before a redirect, that before
any other response, and what cannot be read comes last. Among equals the last in the archive counts.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from dataprep.crawl.captures import Capture, message_of, read_captures
from dataprep.crawl.key_table import KEY, KeyTable, Rows, key_of
from dataprep.sources.http_message import HttpError
from dataprep.sources.warc_reader import PAGE_STATUSES
from pipelines.command import Part
from pipelines.identity import canonical_url
from pipelines.manifest import Counts

UNREADABLE, OTHER, REDIRECT, PAGE, LISTED = range(5)
"""Ranks, the higher the better."""
CAPTURE = np.dtype(
    [*KEY, ("target", "S16"), ("offset", "<u8"), ("file", "<u4"), ("rank", "<u2"), ("own_row", "<u2")],
)
"""A row: which URL, where a redirect leads, where the capture is; `own_row` is 1 in one row of each capture."""
_NO_KEY = bytes(16)
_BATCH = 1 << 16
_Row = tuple[bytes, bytes, int, int, int, int]


def index_archive(part: Part, folder: Path, max_bytes: int) -> Counts:
    """The rows of one archive, in its order; the number of the archive is the end of the part's name."""
    number, counts = int(part.name.rpartition("-")[2]), Counts()
    # One capture at a time: each holds its page.
    rows = (row for capture in read_captures(part.file, max_bytes) for row in _rows(capture, number))
    with (folder / f"{part.name}.rows").open("wb") as file:
        while chunk := list(islice(rows, _BATCH)):
            batch = np.array(chunk, CAPTURE)
            batch.tofile(file)
            counts.rows_out += int(batch["own_row"].sum())
    return counts


def _rows(capture: Capture, number: int) -> Iterator[_Row]:
    rank, target = _rank(capture)
    own_row = 1
    if rank == PAGE and capture.list_url:
        yield key_of(normal(capture.list_url)), _NO_KEY, capture.offset, number, LISTED, own_row
        own_row = 0
    yield key_of(normal(capture.url)), target, capture.offset, number, rank, own_row


def _rank(capture: Capture) -> tuple[int, bytes]:
    """How well a capture answers for its URL, and the key of where it redirects to."""
    if capture.fault[0]:
        return UNREADABLE, _NO_KEY
    try:
        message = message_of(capture)
    except HttpError:
        return UNREADABLE, _NO_KEY
    if message.redirect:
        return REDIRECT, key_of(normal(message.redirect))
    return (PAGE if message.response.status in PAGE_STATUSES else OTHER), _NO_KEY


def normal(url: str) -> str:
    """How URLs are compared: in canonical form, where they have one."""
    return canonical_url(url) or url


def capture_table(folder: Path, files: Sequence[Path]) -> KeyTable:
    """The table of all row files: for each URL the capture that answers."""

    def batches() -> Iterator[Rows]:
        for rank in (UNREADABLE, OTHER, REDIRECT, PAGE, LISTED):
            for rows in read_rows(files):
                yield rows[rows["rank"] == rank]

    return KeyTable.build(folder, CAPTURE, batches())


def read_rows(files: Iterable[Path]) -> Iterator[Rows]:
    """All rows of the row files, in order, some at a time."""
    for path in files:
        with path.open("rb") as file:
            while len(rows := np.fromfile(file, CAPTURE, _BATCH)):
                yield rows


def follow(table: KeyTable, rows: Rows, found: Sequence[bool], most: int) -> list[list[tuple[int, int]]]:
    """For each row that was found the captures (file, offset) it leads over, at most `most` redirects far."""
    chains: list[list[tuple[int, int]]] = [[] for _ in found]
    pending = [index for index, there in enumerate(found) if there]
    rows = rows[pending]
    for _ in range(most + 1):
        for index, file, offset in zip(pending, rows["file"].tolist(), rows["offset"].tolist(), strict=True):
            chains[index].append((file, offset))
        leads_on = rows["rank"] == REDIRECT
        pending = [index for index, on in zip(pending, leads_on.tolist(), strict=True) if on]
        if not pending:
            break
        rows, there = table.find(rows["target"][leads_on])
        pending = [index for index, on in zip(pending, there.tolist(), strict=True) if on]
        rows = rows[there]
    return chains
