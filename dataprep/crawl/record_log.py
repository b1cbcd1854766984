"""One log of the fetch store: records in the order they were made, then their index.

A record is one write of header, outcome (JSON) and the finished WARC members of the page. A log that
was closed in order ends with an index of its records and END. Any other was cut off by a crash: each
of its records is verified, and what follows the last whole one is dropped.
"""

import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from dataprep.crawl.fetched import PAGE, Outcome, Packed
from dataprep.crawl.key_table import KEY, Rows
from pipelines.errors import UserError

logger = logging.getLogger(__name__)

END = b"millrace-log-end"
TRANSIENT, NO_PAGE = 1, 2
"""Flags of an entry."""
ENTRY = np.dtype(
    [*KEY, ("session", "<u8"), ("checksum", "V16"), ("offset", "<u8"), ("log", "<u4"), ("flags", "<u4")],
)
"""A row of the index: which URL, whose outcome, and where."""
_ENTRY = struct.Struct("<16s8s16sQII")
_MAGIC, _OLD_MAGIC, _INDEX_MAGIC = b"MRF2", b"MRF1", b"MRFI"
_HEADER = struct.Struct("<4sIIQ16s8s16s")  # magic, flags, outcome bytes, members bytes, key, session, members' digest
_CHECKSUM = 16  # of header and outcome; it follows the header
_INDEX = struct.Struct("<4sI16s")  # magic, rows, checksum
_START = 4096


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies; the checksum says which one it is, should the store be made anew."""

    log: str
    offset: int
    checksum: str


class LogWriter:
    """Writes one new log; a record survives a kill of this process as soon as `append` returns."""

    def __init__(self, file: BinaryIO, number: int) -> None:
        self.bytes = 0
        self.rows = 0
        self._file = file
        self._number = number
        self._index = bytearray()

    def append(self, packed: Packed, key: bytes, session: bytes) -> Place:
        """Write one record; all of it or, when the disk is full, nothing."""
        outcome = packed.outcome.to_json().encode()
        flags = TRANSIENT * packed.outcome.transient | NO_PAGE * (packed.outcome.rule != PAGE)
        digest = xxhash.xxh3_128_digest(packed.members)
        header = _HEADER.pack(_MAGIC, flags, len(outcome), len(packed.members), key, session, digest)
        checksum = xxhash.xxh3_128_digest(header + outcome)
        self._write(b"".join((header, checksum, outcome, packed.members)))
        offset = self.bytes
        self._index += _ENTRY.pack(key, session, checksum, offset, self._number, flags)
        self.bytes = self._file.tell()
        self.rows += 1
        return Place(log_name(self._number), offset, checksum.hex())

    def sync(self) -> None:
        """Bring what was written to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Add the index, mark the log as complete and bring it to disk."""
        footer = _INDEX.pack(_INDEX_MAGIC, self.rows, xxhash.xxh3_128_digest(self._index))
        with self._file:
            try:
                self._write(bytes(self._index) + footer)
            except OSError as problem:  # without an index the log only takes longer to open
                logger.warning("%s: has no index (%s)", log_name(self._number), problem)
            self._write(END)
            self.sync()

    def _write(self, data: bytes) -> None:
        """Write all of `data` or nothing: what follows must not follow half a record."""
        start, rest = self._file.tell(), memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            self._file.seek(start)
            self._file.truncate()
            raise


def log_name(number: int) -> str:
    """`fetch-00012.log`."""
    return f"fetch-{number:05d}.log"


def is_of_older_version(log: Path) -> bool:
    """Whether a log is in a format that is not read any more."""
    with log.open("rb") as file:
        return file.read(len(_OLD_MAGIC)) == _OLD_MAGIC


def read_log(log: Path) -> Rows:
    """An ENTRY for every whole record of a log, in order."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        closed = _read_at(file, max(size - len(END), 0), len(END)) == END
        index = _read_index(file, size) if closed else None
        return _scan(log, file, size, closed=closed) if index is None else index


def _read_index(file: BinaryIO, size: int) -> Rows | None:
    """The index of a closed log; None where it could not be written, or is damaged."""
    end = size - len(END) - _INDEX.size
    if end < 0:
        return None
    magic, rows, checksum = _INDEX.unpack(_read_at(file, end, _INDEX.size))
    start = end - rows * ENTRY.itemsize
    if magic != _INDEX_MAGIC or start < 0:
        return None
    index = _read_at(file, start, end - start)
    return np.frombuffer(index, ENTRY) if xxhash.xxh3_128_digest(index) == checksum else None


def _scan(log: Path, file: BinaryIO, size: int, *, closed: bool) -> Rows:
    """The entries of a log by its records alone."""
    number, offset, index = int(log.stem.rpartition("-")[2]), 0, bytearray()
    while (record := _read_start(file, offset)) and record.end <= size:
        if not closed and xxhash.xxh3_128_digest(_read_at(file, record.members, record.end - record.members)) != (
            record.digest
        ):
            break
        index += _ENTRY.pack(record.key, record.session, record.checksum, offset, number, record.flags)
        offset = record.end
    return np.frombuffer(bytes(index), ENTRY)


@dataclass(frozen=True, slots=True)
class _Start:
    """Header and outcome of a record, verified; `members` and `end` are offsets in the log."""

    flags: int
    key: bytes
    session: bytes
    digest: bytes
    checksum: bytes
    outcome: bytes
    members: int
    end: int


def _read_start(file: BinaryIO, offset: int) -> _Start | None:
    data = _read_at(file, offset, _START)
    if len(data) < _HEADER.size + _CHECKSUM or not data.startswith(_MAGIC):
        return None
    _, flags, outcome_bytes, members_bytes, key, session, digest = _HEADER.unpack_from(data)
    begin = _HEADER.size + _CHECKSUM
    if len(data) < begin + outcome_bytes:
        data = _read_at(file, offset, begin + outcome_bytes)
    outcome = data[begin : begin + outcome_bytes]
    checksum = data[_HEADER.size : begin]
    if xxhash.xxh3_128_digest(data[: _HEADER.size] + outcome) != checksum:
        return None
    members = offset + begin + outcome_bytes
    return _Start(flags, key, session, digest, checksum, outcome, members, members + members_bytes)


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    return os.pread(file.fileno(), size, offset)


def read_outcome(file: BinaryIO, place: Place) -> Outcome:
    """The outcome at `place` of an open log; UserError when it is damaged or another one."""
    return Outcome.from_json(_start_at(file, place).outcome.decode())


def read_packed(file: BinaryIO, place: Place) -> Packed:
    """The whole record at `place` of an open log; UserError when it is damaged or another one."""
    record = _start_at(file, place)
    members = _read_at(file, record.members, record.end - record.members)
    if xxhash.xxh3_128_digest(members) != record.digest:
        raise _damaged(file, place)
    return Packed(Outcome.from_json(record.outcome.decode()), members)


def _start_at(file: BinaryIO, place: Place) -> _Start:
    record = _read_start(file, place.offset)
    if record is None or record.checksum.hex() != place.checksum:
        raise _damaged(file, place)
    return record


def _damaged(file: BinaryIO, place: Place) -> UserError:
    return UserError(
        f"{file.name}: the record at byte {place.offset} is damaged; move the log away and run the "
        "same command again, which fetches its URLs anew"
    )
