"""The fetch store: every outcome the crawler ever had, in append-only logs beside the outputs.

A folder of `fetch-00000.log`, ...; each run that fetches anything starts a log of its own and never
touches another, so nothing can be truncated. A record is one write of header, metadata (JSON) and
page (zstd). A log that was closed in order ends with END; of any other log each record is verified,
and what follows the last whole one (a write that a crash cut off) is dropped.
"""

import contextlib
import dataclasses
import json
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import BinaryIO, Literal

import xxhash
import zstandard

from dataprep.crawl.fetched import PAGE, Fetched
from pipelines import store
from pipelines.errors import UserError

END = b"millrace-log-end"
LOG_BYTES = 1 << 30
SYNC_SECONDS = 5.0
"""A crash of the machine (not of the process) loses at most so much."""
_HEADER = struct.Struct("<4sBxxxIQ16s8s16s")  # magic, flags, metadata bytes, page bytes, key, session, checksum
_MAGIC = b"MRF1"
_TRANSIENT, _NO_PAGE = 1, 2

Refetch = Literal["", "failed", "all"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies; the checksum says which one it is, should the store be made anew."""

    log: str
    offset: int
    checksum: str


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
        self._places: dict[bytes, Place] = {}
        self._writer: BinaryIO | None = None
        self._log = ""
        self._synced = time.monotonic()
        for log in sorted(folder.glob("fetch-*.log")):
            self._scan(log)

    def find(self, url: str) -> Place | None:
        """Where the outcome of `url` lies, if there is one that counts."""
        return self._places.get(self._key(url))

    def append(self, fetched: Fetched) -> Place:
        """Keep one outcome; it survives a kill of this process as soon as this returns."""
        values = dataclasses.asdict(fetched)
        page = zstandard.compress(values.pop("body"), 3)
        metadata = json.dumps(values).encode()
        flags = _TRANSIENT * fetched.transient | _NO_PAGE * (fetched.rule != PAGE)
        checksum = xxhash.xxh3_128_digest(metadata + page)
        key = self._key(fetched.url)
        header = _HEADER.pack(_MAGIC, flags, len(metadata), len(page), key, self._session, checksum)
        writer = self._open_writer()
        place = Place(self._log, writer.tell(), checksum.hex())
        _write_whole(writer, header + metadata + page)
        self._places[key] = place
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync(writer)
        return place

    def close(self) -> None:
        """Mark the log as complete and bring it to disk."""
        if self._writer is not None:
            with self._writer as writer:
                self._writer = None
                _write_whole(writer, END)
                self._sync(writer)

    def __enter__(self) -> "FetchStore":
        return self

    def __exit__(self, *trace: object) -> None:
        self.close()

    def _key(self, url: str) -> bytes:
        return xxhash.xxh3_128_digest(f"{url}\0{self._request}".encode("utf-8", "surrogatepass"))

    def _scan(self, log: Path) -> None:
        for flags, key, session, place in read_log(log):
            mine = session == self._session
            if mine or (self._refetch != "all" and not flags & (_NO_PAGE if self._refetch else _TRANSIENT)):
                self._places[key] = place

    def _open_writer(self) -> BinaryIO:
        if self._writer is not None and self._writer.tell() >= LOG_BYTES:
            self.close()
        if self._writer is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            for number in count(len(list(self.folder.glob("fetch-*.log")))):
                self._log = f"fetch-{number:05d}.log"
                # "x" fails where another process has just made this log; unbuffered: a kill loses no record.
                with contextlib.suppress(FileExistsError):
                    self._writer = (self.folder / self._log).open("xb", buffering=0)
                    break
            store.sync_folder(self.folder)
        assert self._writer is not None
        return self._writer

    def _sync(self, writer: BinaryIO) -> None:
        os.fsync(writer.fileno())
        self._synced = time.monotonic()


def _write_whole(writer: BinaryIO, data: bytes) -> None:
    """Write all of `data`, or (when the disk is full, say) nothing: END must not follow half a record."""
    start, rest = writer.tell(), memoryview(data)
    try:
        while rest:
            rest = rest[writer.write(rest) :]
    except BaseException:
        writer.seek(start)
        writer.truncate()
        raise


def read_log(log: Path) -> Iterator[tuple[int, bytes, bytes, Place]]:
    """Flags, key, session and place of every whole record of a log, in order."""
    size = log.stat().st_size
    with log.open("rb") as file:
        file.seek(max(size - len(END), 0))
        closed = file.read() == END
        offset = file.seek(0)
        while header := _read_header(file):
            _, flags, metadata_bytes, page_bytes, key, session, checksum = header
            end = offset + _HEADER.size + metadata_bytes + page_bytes
            if end > size or (not closed and xxhash.xxh3_128_digest(file.read(end - file.tell())) != checksum):
                return
            yield flags, key, session, Place(log.name, offset, checksum.hex())
            offset = file.seek(end)


def _read_header(file: BinaryIO) -> tuple[bytes, int, int, int, bytes, bytes, bytes] | None:
    data = file.read(_HEADER.size)
    if len(data) < _HEADER.size or not data.startswith(_MAGIC):
        return None
    return _HEADER.unpack(data)


def read_record(folder: Path, place: Place) -> Fetched:
    """The record at `place`; UserError when it is damaged or another one."""
    with (folder / place.log).open("rb") as file:
        file.seek(place.offset)
        header = _read_header(file)
        if header is not None:
            metadata, page = file.read(header[2]), file.read(header[3])
            if xxhash.xxh3_128_hexdigest(metadata + page) == place.checksum:
                values = json.loads(metadata)
                values["redirects"] = tuple(values["redirects"])
                return Fetched(**values, body=zstandard.decompress(page))
    raise UserError(
        f"{folder / place.log}: the record at byte {place.offset} is damaged; move the log away and run the "
        "same command again, which fetches its URLs anew"
    )
