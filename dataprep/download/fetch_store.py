"""The fetch store: every outcome the crawler ever had, in append-only logs beside the outputs.

It is a folder of `fetch-00000.log`, ... (see `record_log`); each run that fetches anything starts a new log and never
writes to another, so nothing can be truncated. From the logs alone, each run builds a table on disk that says which
record counts for which URL.
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

from dataprep.download.key_table import KeyTable, Rows, key_of, keys_of
from dataprep.download.outcomes import Packed
from dataprep.download.record_log import (
    ENTRY,
    NO_PAGE,
    TRANSIENT,
    LogWriter,
    RecordRef,
    is_of_older_version,
    log_name,
    read_log,
)
from pipelines import store

logger = logging.getLogger(__name__)

LOG_BYTES = 1 << 30
LOG_ROWS = 1 << 18
"""Limits of one log; its index is held in memory while the log is written."""
SYNC_SECONDS = 5.0
"""A crash of the machine (not of the process) loses at most this much work."""

Refetch = Literal["", "failed", "all"]


class FetchStore:
    """The store in one folder, for one set of request parameters and one session of work.

    Outcomes of earlier sessions count, except transient failures. With `refetch`, all failures of earlier sessions
    ("failed"), or all their outcomes ("all"), are left out too, so that these URLs are fetched again.
    """

    def __init__(self, folder: Path, request: str, session: str, refetch: Refetch = "") -> None:
        self.folder = folder
        self._request = request
        self._session = xxhash.xxh3_64_digest(session.encode())
        self._refetch = refetch
        self._writer: LogWriter | None = None
        self._synced = time.monotonic()
        self._unread: set[Path] = set()

    def index(self, scratch: Path) -> "RecordIndex":
        """Build a table, in `scratch`, of the outcomes that count among those appended before this call."""
        self.close()
        logs = [log for log in sorted(self.folder.glob("fetch-*.log")) if self._is_readable(log)]
        batches = (self._counting(read_log(log)) for log in logs)
        return RecordIndex(KeyTable.build(scratch, ENTRY, batches), self._request)

    def append(self, packed: Packed) -> RecordRef:
        """Keep one outcome; it survives a kill of this process as soon as this returns."""
        writer = self._open_writer()
        ref = writer.append(packed, key_of(_name(packed.outcome.url, self._request)), self._session)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            writer.sync()
            self._synced = time.monotonic()
        return ref

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

    def _is_readable(self, log: Path) -> bool:
        """Return False, and warn once, for a log of an older version."""
        if not is_of_older_version(log):
            return True
        if log not in self._unread:
            logger.warning("%s: in the format of an older version; it is not read, and may be deleted", log)
        self._unread.add(log)
        return False

    def _open_writer(self) -> LogWriter:
        if self._writer is not None and (self._writer.bytes >= LOG_BYTES or self._writer.rows >= LOG_ROWS):
            self.close()
        if self._writer is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            # After the last one, even if logs before it were moved away: of equal keys the later log counts.
            numbers = (int(log.stem.rpartition("-")[2]) for log in self.folder.glob("fetch-*.log"))
            for number in count(max(numbers, default=-1) + 1):
                # "x" fails if another process has just made this log; unbuffered: a kill loses no record.
                with contextlib.suppress(FileExistsError):
                    self._writer = LogWriter((self.folder / log_name(number)).open("xb", buffering=0), number)
                    break
            store.sync_folder(self.folder)
        assert self._writer is not None
        return self._writer


class RecordIndex:
    """Finds the record of each URL's outcome."""

    def __init__(self, table: KeyTable, request: str) -> None:
        self._table = table
        self._request = request

    def find(self, urls: Sequence[str]) -> list[RecordRef | None]:
        """Return the ref of each URL's outcome, or None if it is still to be fetched; meant for thousands at a time."""
        rows, present = self._table.find(keys_of(_name(url, self._request) for url in urls))
        return [
            RecordRef(log_name(log), offset, checksum.hex()) if is_present else None
            for is_present, log, offset, checksum in zip(
                present.tolist(), rows["log"].tolist(), rows["offset"].tolist(), rows["checksum"].tolist(), strict=True
            )
        ]


def _name(url: str, request: str) -> str:
    return f"{url}\0{request}"
