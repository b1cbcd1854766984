"""The records of an archive, one after the other, whatever lies between them.

An archive is read by what its records say of their lengths. Where that does not fit (a cut file, a
damaged member, a wrong length, bytes of something else) the record at hand is given up with its
place, and reading goes on at the next head of a record. So damage costs what it hits.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dataprep.sources.members import CUT_OFF
from dataprep.sources.tape import START_BYTES, Place, Tape
from pipelines.errors import UserError

HEAD_BYTES = 1 << 18
"""Longest head of a record; real ones have less than 10 kB."""
_TAIL = 64
_REWINDS = 16
"""How often a compressed file is decompressed again to find what a wrong length hides."""
_NEWLINES = re.compile(rb"[\r\n]{0,32}")


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the content of a record."""

    size: int
    """Bytes of the head itself."""
    length: int | None
    """Bytes of the content, as the head says; None when it does not."""
    fields: dict[str, str]
    """Names in lower case."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A kind of archive: how a record begins, and what stands after its content."""

    name: str
    start: re.Pattern[bytes]
    end: re.Pattern[bytes]
    """What a head ends with."""
    parse: Callable[[bytes], Head | None]
    """The head at the start of some bytes; None while it is not all there."""
    terminator: bytes

    def starts(self, data: bytes) -> bool:
        """Whether bytes begin like a record."""
        return self.start.match(data) is not None


@dataclass(frozen=True, slots=True)
class Frame:
    """A record as it stands in the file, or what is there instead."""

    place: str
    offset: int | None
    """Where reading could begin with this record; None inside a compressed member."""
    head: Head | None
    content: bytes = b""
    rule: str = ""
    """Why there is no content: too_large, truncated_record (the file ends), damaged_record."""
    value: str = ""


def read_frames(path: Path, dialect: Dialect, limit: int, start: int = 0, end: int | None = None) -> Iterator[Frame]:
    """The records that begin from offset `start` to `end`; contents have at most `limit` bytes.

    Raises UserError when there are bytes but nothing like a record.
    """
    with path.open("rb") as file:
        reader = _FrameReader(path.name, Tape(file, dialect.starts, start), dialect, limit)
        problem = ""
        while (frame := reader.next(end)) is not None:
            problem = problem or frame.value
            yield frame
    if problem and not reader.found and not start:
        raise UserError(f"{path}: not a readable {dialect.name} file ({problem}); is it whole, and of that kind?")


class _FrameReader:
    def __init__(self, name: str, tape: Tape, dialect: Dialect, limit: int) -> None:
        self.found = False
        """Whether there was anything like a record."""
        self._name = name
        self._tape = tape
        self._dialect = dialect
        self._limit = limit
        self._rewinds = _REWINDS
        self._end: Place | None = None

    def next(self, end: int | None) -> Frame | None:
        """The record at hand; None at the end of the file, or of the range."""
        tape = self._tape
        while tape.fill(1) and tape.window[0] in b"\r\n":
            tape.drop(self._newlines(0))
        self._place = tape.place(0)
        if not tape.window:
            return self._damaged_member() if tape.damage else None
        self._offset = None if self._place.inside else self._place.offset
        if end is not None and self._offset is not None and self._offset >= end:
            return None
        head = self._read_head(0)
        if head is None:
            return self._without_head()
        self.found = True
        if head.length is None:
            return self._lose(head, head.size, "the head has no Content-Length")
        if head.length > self._limit:
            return self._skip_content(head, head.length)
        return self._read_content(head, head.length)

    def _damaged_member(self) -> Frame:
        """A member that gives no byte, or none after the records in it."""
        tape = self._tape
        self._place, self._offset = Place(tape.damage_offset), None
        return self._lose(None, 0, tape.damage)

    def _without_head(self) -> Frame:
        """Bytes that are no record, or the beginning of one."""
        begun = self._tape.starts_record(0)
        self.found = self.found or begun
        return self._lose(None, 1, "the head of a record has no end" if begun else "bytes that are no record")

    def _read_head(self, index: int) -> Head | None:
        """The head of the record that begins at `index` of the window, if one does."""
        tape, size = self._tape, START_BYTES
        while True:
            whole = tape.fill(index + size)
            if not tape.starts_record(index):
                return None
            head = self._dialect.parse(bytes(tape.window[index : index + size]))
            if head is not None or not whole or size >= HEAD_BYTES:
                return head
            size *= 4

    def _read_content(self, head: Head, length: int) -> Frame:
        tape, end = self._tape, head.size + length
        tape.fill(end + _TAIL)
        if cut := tape.next_record(head.size, end):
            return self._lose(head, cut, f"{cut - head.size} of {length} bytes")
        got = len(tape.window) - head.size
        if got < length:
            return self._lose(head, head.size, f"{got} of {length} bytes")
        after = self._after(end)
        if after is None:
            return self._lose(head, head.size, f"no record ends after {length} bytes")
        if self._is_damaged(after):
            return self._lose(head, after, f"{length} bytes")
        content = bytes(tape.window[head.size : end])
        tape.drop(after)
        return Frame(self._where(), self._offset, head, content)

    def _skip_content(self, head: Head, length: int) -> Frame:
        """A record that is too large to be wanted, if its length is to be believed."""
        tape, content = self._tape, self._tape.place(head.size)
        if self._end and self._end.offset == content.offset and self._end.inside < content.inside + length:
            return self._lose(head, head.size, f"no record ends after {length} bytes")
        stopped = tape.skip(head.size + length)
        if stopped == "end" and tape.ended:
            self._end = tape.place(0)
        if stopped == "done" and (after := self._after(0)) is not None and not self._is_damaged(after):
            tape.drop(after)
            return Frame(self._where(), self._offset, head, b"", "too_large", f"{length} bytes")
        if stopped != "record":
            self._go_back(content)
        return self._lose(head, 0, f"no record ends after {length} bytes")

    def _go_back(self, place: Place) -> None:
        if self._tape.compressed:
            self._rewinds -= 1
        if self._rewinds >= 0:
            self._tape.go_to(place)

    def _after(self, end: int) -> int | None:
        """Where what follows the record begins, if the record really ends at `end`."""
        tape = self._tape
        tape.fill(end + _TAIL)
        after = self._newlines(end)
        if tape.window.startswith(self._dialect.terminator, end) or tape.opens_within(end, after):
            return after
        tape.fill(after + START_BYTES)
        return after if after == len(tape.window) or tape.starts_record(after) else None

    def _newlines(self, index: int) -> int:
        """The index of the first byte from `index` on that ends no line."""
        found = _NEWLINES.match(self._tape.window, index)
        assert found
        return found.end()

    def _is_damaged(self, after: int) -> bool:
        """Whether the member in which the record ends has a wrong checksum, or none."""
        tape = self._tape
        ended_in = tape.place(max(after - 1, 0)).offset
        return bool(tape.damage) and after == len(tape.window) and tape.damage_offset == ended_in

    def _where(self) -> str:
        return f"{self._name} at {self._place}"

    def _lose(self, head: Head | None, index: int, value: str) -> Frame:
        """Give up the record at hand and go to the next one at `index` of the window or later."""
        tape = self._tape
        damage = self._resynchronise(index)
        follows = tape.fill(1) or bool(tape.damage)
        cut = not follows and damage in ("", CUT_OFF)
        rule = "truncated_record" if cut and value != "bytes that are no record" else "damaged_record"
        value = value if not damage or damage == value else f"{value}: {damage}"
        return Frame(self._where(), self._offset, head, b"", rule, value)

    def _resynchronise(self, index: int) -> str:
        """Go to the next head of a record; the damage of the file, if that ends the search."""
        tape = self._tape
        while True:
            found = self._dialect.start.search(tape.window, index)
            following = found and self._dialect.start.search(tape.window, found.end())
            if found and following and not self._dialect.end.search(tape.window, found.start(), following.start()):
                index = following.start()  # a head has an end before another one begins
            elif found:
                head = self._read_head(found.start())
                if head is not None and head.length is not None:
                    tape.drop(found.start())
                    return ""
                index = found.start() + 1
            elif tape.damage or tape.ended:
                tape.drop(len(tape.window))
                damage = tape.damage
                if damage:
                    tape.mend()
                return damage
            else:
                # What may be the beginning of a head stays.
                tape.drop(max(index, len(tape.window) - START_BYTES))
                index = 0
                tape.fill(len(tape.window) + HEAD_BYTES)
