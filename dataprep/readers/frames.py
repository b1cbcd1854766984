"""The raw records of an archive, one after the other, whatever lies between them.

An archive is read by the lengths that its records declare. Where a length does not fit (a truncated file, a damaged
member, a wrong length, foreign bytes), the current record is given up and its position reported, and reading goes on
at the next head of a record. So damage costs only the records it hits.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dataprep.readers.members import START_BYTES, ByteWindow, Offset
from pipelines.compression import CUT_OFF
from pipelines.errors import UserError

HEAD_BYTES = 1 << 18
"""Longest head of a record; real ones have less than 10 kB."""
_TAIL = 64
_REWINDS = 16
"""How often a compressed file is decompressed again to find the records that a wrong length hides."""
_NEWLINES = re.compile(rb"[\r\n]{0,32}")


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a record, before its content."""

    size: int
    """Bytes of the head itself."""
    length: int | None
    """Bytes of the content, as the head declares; None if it does not."""
    fields: dict[str, str]
    """Names in lower case."""


@dataclass(frozen=True, slots=True)
class ArchiveFormat:
    """A format of archives: how a record begins, and what follows its content."""

    name: str
    start: re.Pattern[bytes]
    end: re.Pattern[bytes]
    """The end of a head."""
    parse: Callable[[bytes], Head | None]
    """Returns the head at the start of some bytes; None while it is incomplete."""
    terminator: bytes

    def starts(self, data: bytes) -> bool:
        """Return whether the bytes begin like a record."""
        return self.start.match(data) is not None


@dataclass(frozen=True, slots=True)
class RawRecord:
    """A record's bytes as they are in the file, or the reason why there are none."""

    location: str
    offset: int | None
    """The offset at which reading could begin with this record; None inside a compressed member."""
    head: Head | None
    content: bytes = b""
    rule: str = ""
    """Why there is no content: too_large, truncated_record (the file ends), damaged_record."""
    value: str = ""


def read_raw_records(
    path: Path, archive_format: ArchiveFormat, limit: int, start: int = 0, end: int | None = None
) -> Iterator[RawRecord]:
    """Yield the records that begin from offset `start` to `end`; contents have at most `limit` bytes.

    Raises UserError if there are bytes but nothing like a record.
    """
    with path.open("rb") as file:
        reader = _RecordReader(path.name, ByteWindow(file, archive_format.starts, start), archive_format, limit)
        problem = ""
        while (record := reader.next(end)) is not None:
            problem = problem or record.value
            yield record
    if problem and not reader.any_record and not start:
        raise UserError(
            f"{path}: not a readable {archive_format.name} file ({problem}); is it whole, and of that kind?"
        )


class _RecordReader:
    def __init__(self, name: str, window: ByteWindow, archive_format: ArchiveFormat, limit: int) -> None:
        self.any_record = False
        """Whether anything looked like a record."""
        self._name = name
        self._window = window
        self._format = archive_format
        self._limit = limit
        self._rewinds = _REWINDS
        self._end: Offset | None = None

    def next(self, end: int | None) -> RawRecord | None:
        """Return the next record; None at the end of the file or of the range."""
        window = self._window
        while window.fill(1) and window.data[0] in b"\r\n":
            window.drop(self._newlines(0))
        self._position = window.offset_of(0)
        if not window.data:
            return self._damaged_member() if window.damage else None
        self._offset = None if self._position.inside else self._position.member
        if end is not None and self._offset is not None and self._offset >= end:
            return None
        head = self._read_head(0)
        if head is None:
            return self._without_head()
        self.any_record = True
        if head.length is None:
            return self._lose(head, head.size, "the head has no Content-Length")
        if head.length > self._limit:
            return self._skip_content(head, head.length)
        return self._read_content(head, head.length)

    def _damaged_member(self) -> RawRecord:
        """Give up a damaged member without bytes, or without bytes after its records."""
        window = self._window
        self._position, self._offset = Offset(window.damage_offset), None
        return self._lose(None, 0, window.damage)

    def _without_head(self) -> RawRecord:
        """Give up bytes that are not a record, or only the beginning of one."""
        begun = self._window.starts_record(0)
        self.any_record = self.any_record or begun
        return self._lose(None, 1, "the head of a record has no end" if begun else "bytes that are no record")

    def _read_head(self, index: int) -> Head | None:
        """Return the head of the record at `index` of the window, if there is one."""
        window, size = self._window, START_BYTES
        while True:
            whole = window.fill(index + size)
            if not window.starts_record(index):
                return None
            head = self._format.parse(bytes(window.data[index : index + size]))
            if head is not None or not whole or size >= HEAD_BYTES:
                return head
            size *= 4

    def _read_content(self, head: Head, length: int) -> RawRecord:
        window, end = self._window, head.size + length
        window.fill(end + _TAIL)
        if cut := window.next_record(head.size, end):
            return self._lose(head, cut, f"{cut - head.size} of {length} bytes")
        got = len(window.data) - head.size
        if got < length:
            return self._lose(head, head.size, f"{got} of {length} bytes")
        after = self._after(end)
        if after is None:
            return self._lose(head, head.size, f"no record ends after {length} bytes")
        if self._is_damaged(after):
            return self._lose(head, after, f"{length} bytes")
        content = bytes(window.data[head.size : end])
        window.drop(after)
        return RawRecord(self._where(), self._offset, head, content)

    def _skip_content(self, head: Head, length: int) -> RawRecord:
        """Skip a record that is too large, if its length is plausible."""
        window, content = self._window, self._window.offset_of(head.size)
        if self._end and self._end.member == content.member and self._end.inside < content.inside + length:
            return self._lose(head, head.size, f"no record ends after {length} bytes")
        stopped = window.skip(head.size + length)
        if stopped == "end" and window.ended:
            self._end = window.offset_of(0)
        if stopped == "done" and (after := self._after(0)) is not None and not self._is_damaged(after):
            window.drop(after)
            return RawRecord(self._where(), self._offset, head, b"", "too_large", f"{length} bytes")
        if stopped != "record":
            self._go_back(content)
        return self._lose(head, 0, f"no record ends after {length} bytes")

    def _go_back(self, offset: Offset) -> None:
        if self._window.compressed:
            self._rewinds -= 1
        if self._rewinds >= 0:
            self._window.go_to(offset)

    def _after(self, end: int) -> int | None:
        """Return the index after the record and its newlines, if the record really ends at `end`."""
        window = self._window
        window.fill(end + _TAIL)
        after = self._newlines(end)
        if window.data.startswith(self._format.terminator, end) or window.opens_within(end, after):
            return after
        window.fill(after + START_BYTES)
        return after if after == len(window.data) or window.starts_record(after) else None

    def _newlines(self, index: int) -> int:
        """Return the index of the first byte from `index` on that is not a line end."""
        match = _NEWLINES.match(self._window.data, index)
        assert match
        return match.end()

    def _is_damaged(self, after: int) -> bool:
        """Return whether the member in which the record ends has a wrong or missing checksum."""
        window = self._window
        ended_in = window.offset_of(max(after - 1, 0)).member
        return bool(window.damage) and after == len(window.data) and window.damage_offset == ended_in

    def _where(self) -> str:
        return f"{self._name} at {self._position}"

    def _lose(self, head: Head | None, index: int, value: str) -> RawRecord:
        """Give up the current record and go to the next one at `index` of the window or later."""
        window = self._window
        damage = self._resynchronise(index)
        follows = window.fill(1) or bool(window.damage)
        cut = not follows and damage in ("", CUT_OFF)
        rule = "truncated_record" if cut and value != "bytes that are no record" else "damaged_record"
        value = value if not damage or damage == value else f"{value}: {damage}"
        return RawRecord(self._where(), self._offset, head, b"", rule, value)

    def _resynchronise(self, index: int) -> str:
        """Go to the next head of a record; return the damage if the search ends there."""
        window = self._window
        while True:
            opening = self._format.start.search(window.data, index)
            following = opening and self._format.start.search(window.data, opening.end())
            if opening and following and not self._format.end.search(window.data, opening.start(), following.start()):
                index = following.start()  # a head has an end before another one begins
            elif opening:
                head = self._read_head(opening.start())
                if head is not None and head.length is not None:
                    window.drop(opening.start())
                    return ""
                index = opening.start() + 1
            elif window.damage or window.ended:
                window.drop(len(window.data))
                damage = window.damage
                if damage:
                    window.mend()
                return damage
            else:
                # Keep what may be the beginning of a head.
                window.drop(max(index, len(window.data) - START_BYTES))
                index = 0
                window.fill(len(window.data) + HEAD_BYTES)
