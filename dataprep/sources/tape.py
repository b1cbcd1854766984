"""A window that slides over the decompressed bytes of an archive and knows where each of them stands.

Nothing is read across damage: the window ends before it until `mend` is called.
"""

import os
from collections import deque
from dataclasses import dataclass
from typing import BinaryIO, Literal

from dataprep.sources.members import CHUNK, StartsRecord, codec_of, read_pieces

START_BYTES = 1 << 14
"""As many bytes show whether a record begins there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a byte stands in the file."""

    offset: int
    """Where its gzip member or zstd frame begins; in a plain file, where the byte is."""
    inside: int = 0
    """Decompressed bytes before it in its member."""

    def __str__(self) -> str:
        return f"byte {self.offset}" + (f" ({self.inside} bytes into what is compressed there)" if self.inside else "")


class Tape:
    """The bytes of a file from a place on, as `window`."""

    def __init__(self, file: BinaryIO, starts_record: StartsRecord, offset: int) -> None:
        self.window = bytearray()
        self.damage = ""
        """What is wrong with the bytes that follow the window."""
        self.damage_offset = 0
        """Where the damaged member begins."""
        self.ended = False
        """Whether the file ends with the window."""
        self._file = file
        self._codec = codec_of(file, starts_record)
        self._starts_record = starts_record
        self._start(offset)

    @property
    def compressed(self) -> bool:
        """Whether going back and skipping mean decompressing again."""
        return self._codec is not None

    def _start(self, offset: int) -> None:
        self.window.clear()
        self.damage, self.ended = "", False
        self._pieces = read_pieces(self._file, self._codec, offset, self._starts_record)
        self._dropped = 0
        # Where members begin, as (bytes since the start, offset in the file); the first is the window's own.
        self._opens: deque[tuple[int, int]] = deque([(0, offset)])

    def fill(self, size: int) -> bool:
        """Read until the window has `size` bytes; False when it ends before, by damage or with the file."""
        while len(self.window) < size and not self.damage and not self.ended:
            piece = next(self._pieces, None)
            if piece is None:
                self.ended = True
                break
            if piece.opens and self.compressed:
                self._opens.append((self._dropped + len(self.window), piece.offset))
            self.window += piece.data
            self.damage, self.damage_offset = piece.damage, piece.offset
        return len(self.window) >= size

    def drop(self, size: int) -> None:
        """Go forward by `size` bytes of the window."""
        del self.window[:size]
        self._dropped += size
        while len(self._opens) > 1 and self._opens[1][0] <= self._dropped:
            self._opens.popleft()

    def mend(self) -> None:
        """Go on after the damage: the window is empty, what comes next is the next member that holds a record."""
        self.drop(len(self.window))
        self.damage = ""

    def place(self, index: int) -> Place:
        """Where byte `index` of the window stands."""
        begin, offset = self._opens[0]
        for position, opened in self._opens:
            if position > self._dropped + index:
                break
            begin, offset = position, opened
        inside = self._dropped + index - begin
        return Place(offset, inside) if self.compressed else Place(offset + inside)

    def starts_record(self, index: int) -> bool:
        """Whether a record begins at `index` of the window, as far as that can be seen from what is there."""
        return self._starts_record(bytes(self.window[index : index + START_BYTES]))

    def next_record(self, start: int, end: int) -> int | None:
        """The index, `start` to `end` (exclusive), of the first member in the window that begins with a record."""
        for position, _ in self._opens:
            index = position - self._dropped
            if index >= end:
                break
            if index >= start and self.starts_record(index):
                return index
        return None

    def opens_within(self, start: int, end: int) -> bool:
        """Whether a member begins at an index from `start` to `end` (inclusive)."""
        return any(start <= position - self._dropped <= end for position, _ in self._opens)

    def skip(self, size: int) -> Literal["done", "end", "record"]:
        """Go forward by `size` bytes, however many; "end" when there are fewer, "record" when a member holds one."""
        if not self.compressed:
            target = self.place(0).offset + size
            if target > os.fstat(self._file.fileno()).st_size:
                return "end"
            self._start(target)
            return "done"
        after = 1  # the record to be skipped may begin a member itself
        while size:
            self.fill(min(size, CHUNK))
            step = min(size, len(self.window))
            if (record := self.next_record(after, step)) is not None:
                self.drop(record)
                return "record"
            if not step:
                return "end"
            self.drop(step)
            size -= step
            after = 0
        return "done"

    def go_to(self, place: Place) -> None:
        """Go back (or forward) to a place."""
        self._start(place.offset)
        remaining = place.inside
        while remaining and (self.fill(1) or self.window):
            step = min(remaining, len(self.window))
            self.drop(step)
            remaining -= step
