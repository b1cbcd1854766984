"""One log of the fetch store: records in the order in which they were written, then their index.

A record is a single write of header, outcome (JSON) and the finished WARC members of the page. A log that was
closed properly ends with an index of its records and END. Any other log was cut off by a crash: each of its records
is verified, and everything after the last whole one is ignored.
"""

import logging
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash

from dataprep.download.key_table import KEY, Rows
from dataprep.download.outcomes import PAGE, Outcome, Packed
from pipelines.errors import UserError

logger = logging.getLogger(__name__)

END = b"millrace-log-end"
TRANSIENT, NO_PAGE = 1, 2
"""Flags of an entry."""
ENTRY = np.dtype(
    [*KEY, ("session", "<u8"), ("checksum", "V16"), ("offset", "<u8"), ("log", "<u4"), ("flags", "<u4")],
)
"""A row of the index: key of the URL, session, and position of the record."""
_ENTRY = struct.Struct("<16s8s16sQII")
_MAGIC, _OLD_MAGIC, _INDEX_MAGIC = b"MRF2", b"MRF1", b"MRFI"
_HEADER = struct.Struct("<4sIIQ16s8s16s")  # magic, flags, outcome bytes, members bytes, key, session, members' digest
_CHECKSUM = 16  # of header and outcome; it follows the header
_INDEX = struct.Struct("<4sI16s")  # magic, rows, checksum
_START = 4096


@dataclass(frozen=True, slots=True)
class RecordRef:
    """The position of a record; the checksum identifies the record, in case the store was made anew."""

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

    def append(self, packed: Packed, key: bytes, session: bytes) -> RecordRef:
        """Write one record: all of it or, if the disk is full, nothing."""
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
        return RecordRef(log_name(self._number), offset, checksum.hex())

    def sync(self) -> None:
        """Flush the written records to disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Add the index, mark the log as complete and flush it to disk."""
        footer = _INDEX.pack(_INDEX_MAGIC, self.rows, xxhash.xxh3_128_digest(self._index))
        with self._file:
            try:
                self._write(bytes(self._index) + footer)
            except OSError as problem:  # without an index the log only takes longer to open
                logger.warning("%s: has no index (%s)", log_name(self._number), problem)
            self._write(END)
            self.sync()

    def _write(self, data: bytes) -> None:
        """Write all of `data` or nothing, so that no record ever follows half of another."""
        start, rest = self._file.tell(), memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BaseException:
            self._file.seek(start)
            self._file.truncate()
            raise


def log_name(number: int) -> str:
    """Return the file name of a log, such as `fetch-00012.log`."""
    return f"fetch-{number:05d}.log"


def is_of_older_version(log: Path) -> bool:
    """Return whether a log is in a format that is no longer read."""
    with log.open("rb") as file:
        return file.read(len(_OLD_MAGIC)) == _OLD_MAGIC


def read_log(log: Path) -> Rows:
    """Return an ENTRY for every whole record of a log, in order."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        closed = _read_at(file, max(size - len(END), 0), len(END)) == END
        index = _read_index(file, size) if closed else None
        return _scan(log, file, size, closed=closed) if index is None else index


def _read_index(file: BinaryIO, size: int) -> Rows | None:
    """Read the index of a closed log; None if it is missing or damaged."""
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
    """Rebuild the entries of a log from its records."""
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
    """The verified header and outcome of a record; `members` and `end` are offsets in the log."""

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


def read_outcome(file: BinaryIO, ref: RecordRef) -> Outcome:
    """Read the outcome at `ref` of an open log; raises UserError if it is damaged, or that of another record."""
    return Outcome.from_json(_start_at(file, ref).outcome.decode())


def read_packed(file: BinaryIO, ref: RecordRef) -> Packed:
    """Read the whole record at `ref` of an open log; raises UserError if it is damaged, or another record."""
    record = _start_at(file, ref)
    members = _read_at(file, record.members, record.end - record.members)
    if xxhash.xxh3_128_digest(members) != record.digest:
        raise _damaged(file, ref)
    return Packed(Outcome.from_json(record.outcome.decode()), members)


def _start_at(file: BinaryIO, ref: RecordRef) -> _Start:
    record = _read_start(file, ref.offset)
    if record is None or record.checksum.hex() != ref.checksum:
        raise _damaged(file, ref)
    return record


def _damaged(file: BinaryIO, ref: RecordRef) -> UserError:
    return UserError(
        f"{file.name}: the record at byte {ref.offset} is damaged; move the log away and run the "
        "same command again, which fetches its URLs again"
    )
