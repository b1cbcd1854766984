"""The fetch store: every outcome the crawler ever had, in append-only logs beside the outputs.

A folder of `fetch-00000.log`, ... (see `record_log`); each run that fetches anything starts a log of its
own and never touches another, so nothing can be truncated. Which record counts for which URL is found
out anew by each run, from the logs alone, in a table on disk.
"""

import contextlib
import logging
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import xxhash

from dataprep.crawl.fetched import Packed
from dataprep.crawl.key_table import KeyTable, Rows, key_of, keys_of
from dataprep.crawl.record_log import (
    ENTRY,
    NO_PAGE,
    TRANSIENT,
    LogWriter,
    Place,
    is_of_older_version,
    log_name,
    read_log,
)
from pipelines import store

logger = logging.getLogger(__name__)

LOG_BYTES = 1 << 30
LOG_ROWS = 1 << 18
"""Limits of one log; its index is held in memory while it is written."""
SYNC_SECONDS = 5.0
"""A crash of the machine (not of the process) loses at most so much."""

Refetch = Literal["", "failed", "all"]


class FetchStore:
    """The store of one folder, for one set of request parameters and one session of work.

    Outcomes of earlier sessions count, except transient failures; `refetch` leaves out all of them
    or all failures, so that these URLs are fetched again.
    """

    def __init__(self, folder: Path, request: str, session: str, refetch: Refetch = "") -> None:
        self.folder = folder
        self._request = request
        self._session = xxhash.xxh3_64_digest(session.encode())
        self._refetch = refetch
        self._writer: LogWriter | None = None
        self._synced = time.monotonic()
        self._unread: set[Path] = set()

    def places(self, scratch: Path) -> "Places":
        """A table of the outcomes that count, of all that was appended before this call; made in `scratch`."""
        self.close()
        logs = [log for log in sorted(self.folder.glob("fetch-*.log")) if self._is_read(log)]
        batches = (self._counting(read_log(log)) for log in logs)
        return Places(KeyTable.build(scratch, ENTRY, batches), self._request)

    def append(self, packed: Packed) -> Place:
        """Keep one outcome; it survives a kill of this process as soon as this returns."""
        writer = self._open_writer()
        place = writer.append(packed, key_of(_name(packed.outcome.url, self._request)), self._session)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            writer.sync()
            self._synced = time.monotonic()
        return place

    def close(self) -> None:
        """Mark the log as complete and bring it to disk."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def __enter__(self) -> "FetchStore":
        return self

    def __exit__(self, *trace: object) -> None:
        self.close()

    def _counting(self, entries: Rows) -> Rows:
        mine = entries["session"] == np.frombuffer(self._session, "<u8")[0]
        if self._refetch == "all":
            return entries[mine]
        return entries[mine | (entries["flags"] & np.uint32(NO_PAGE if self._refetch else TRANSIENT) == 0)]

    def _is_read(self, log: Path) -> bool:
        """False, and one warning, for a log of an older version."""
        if not is_of_older_version(log):
            return True
        if log not in self._unread:
            logger.warning("%s: is in the format of an older version; it is not read, and may be deleted", log)
        self._unread.add(log)
        return False

    def _open_writer(self) -> LogWriter:
        if self._writer is not None and (self._writer.bytes >= LOG_BYTES or self._writer.rows >= LOG_ROWS):
            self.close()
        if self._writer is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            # After the last one, also when somebody has moved others away: of equal keys the later log counts.
            numbers = (int(log.stem.rpartition("-")[2]) for log in self.folder.glob("fetch-*.log"))
            for number in count(max(numbers, default=-1) + 1):
                # "x" fails where another process has just made this log; unbuffered: a kill loses no record.
                with contextlib.suppress(FileExistsError):
                    self._writer = LogWriter((self.folder / log_name(number)).open("xb", buffering=0), number)
                    break
            store.sync_folder(self.folder)
        assert self._writer is not None
        return self._writer


class Places:
    """Where the outcome of each URL lies."""

    def __init__(self, table: KeyTable, request: str) -> None:
        self._table = table
        self._request = request

    def find(self, urls: Sequence[str]) -> list[Place | None]:
        """For each URL its place, or None where it is still to be fetched; made for thousands at a time."""
        rows, found = self._table.find(keys_of(_name(url, self._request) for url in urls))
        return [
            Place(log_name(log), offset, checksum.hex()) if there else None
            for there, log, offset, checksum in zip(
                found.tolist(), rows["log"].tolist(), rows["offset"].tolist(), rows["checksum"].tolist(), strict=True
            )
        ]


def _name(url: str, request: str) -> str:
    return f"{url}\0{request}"
