"""The decompressed bytes of a file of gzip members or zstd frames; damage ends a member, not the file.

Archives are compressed record by record, so the next member after a damaged one can be found: by its magic number
and by its content. A file that is not compressed is one long member. `read_chunks` yields the bytes in order;
`ByteWindow` slides over them and knows the position of each.
"""

import os
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

from pipelines.compression import CUT_OFF, GZIP, ZSTD, Inflater, ZstdInflater, gzip_inflater, is_bomb

# The dictionary of a .warc.zst (IIPC, "WARC Zstandard", section 3) and other skippable frames (RFC 8878, 3.1.2).
_ZSTD_DICTIONARY = b"\x5d\x2a\x4d\x18"
_SKIPPABLE = b"\x2a\x4d\x18"
_DICTIONARY_BYTES = 1 << 24
CHUNK_BYTES = 1 << 16
_PEEK_BYTES = 4096
START_BYTES = 1 << 14
"""So many bytes are enough to see whether a record begins there."""

StartsRecord = Callable[[bytes], bool]
"""Whether decompressed bytes begin with the head of a record."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some bytes of a member, and the damage that follows them."""

    data: bytes
    offset: int
    """Where the member begins in the file; in an uncompressed file, where the bytes begin."""
    opens: bool = False
    """Whether these are a member's first bytes."""
    damage: str = ""


class _Source:
    """A file read forwards, into which bytes can be put back."""

    def __init__(self, file: BinaryIO, offset: int) -> None:
        self._file = file
        self.seek(offset)

    def seek(self, offset: int) -> None:
        self.offset = offset
        self._back = b""
        self._file.seek(offset)

    def read(self) -> bytes:
        data = self._back or self._file.read(CHUNK_BYTES)
        self._back = b""
        self.offset += len(data)
        return data

    def give_back(self, data: bytes) -> None:
        self._back = data + self._back
        self.offset -= len(data)


@dataclass(frozen=True, slots=True)
class Codec:
    """How the members of a file are compressed: their magic number, and their decompressor."""

    magic: bytes
    new: Callable[[], Inflater]
    copy: Callable[[Inflater], Inflater] | None = None
    """Copies an inflater with its state; None if that is not possible."""


def codec_of(file: BinaryIO, starts_record: StartsRecord) -> Codec | None:
    """Return the compression of a file, by its first bytes or, if they are damaged, its name; None for a plain file."""
    file.seek(0)
    start = file.read(_PEEK_BYTES)
    name = str(file.name)
    plain = starts_record(start) or not name.endswith((".gz", ".zst"))
    if start.startswith(GZIP[:2]) or (not plain and name.endswith(".gz")):
        return Codec(GZIP, gzip_inflater, _copy)
    if start.startswith(ZSTD) or start[1:4] == _SKIPPABLE or not plain:
        dictionary = _read_dictionary(file) if start.startswith(_ZSTD_DICTIONARY) else b""
        return Codec(ZSTD, lambda: ZstdInflater(dictionary))
    return None


def read_chunks(file: BinaryIO, codec: Codec | None, offset: int, starts_record: StartsRecord) -> Iterator[Chunk]:
    """Yield all bytes from `offset` on, where a member must begin (in a plain file, any offset will do).

    After damage, go on with the next member that begins with a record.
    """
    source = _Source(file, offset)
    if codec is None:
        while data := source.read():
            yield Chunk(data, source.offset - len(data), opens=source.offset == len(data))
        return
    while data := source.read():
        if not (first := data.lstrip(b"\0")):  # some writers fill up the last block of a file
            continue
        source.give_back(first)
        start, damage = source.offset, ""
        for chunk in _member(source, codec):
            damage = chunk.damage
            yield chunk
        if damage:
            source.seek(_next_member(file, start + 1, codec, starts_record))


def _copy(inflater: Any) -> Inflater:
    return inflater.copy()


def _member(source: _Source, codec: Codec) -> Iterator[Chunk]:
    start, opens, inflater = source.offset, True, codec.new()
    plain = 0
    while not inflater.eof:
        if not (data := inflater.unconsumed_tail or source.read()):
            yield Chunk(b"", start, damage=CUT_OFF)
            return
        before = codec.new() if opens else codec.copy(inflater) if codec.copy else None
        try:
            out = inflater.decompress(data, CHUNK_BYTES)
        except zlib.error as error:
            yield Chunk(_before_damage(before, data) if before else b"", start, opens, str(error))
            return
        if out:
            yield Chunk(out, start, opens)
            opens = False
        plain += len(out)
        if is_bomb(plain, packed := source.offset - start - len(inflater.unconsumed_tail)):
            damage = f"expands further than honest text does: {packed} bytes became {plain} and more"
            yield Chunk(b"", start, damage=damage)
            return
    source.give_back(inflater.unused_data)


def _before_damage(inflater: Inflater, data: bytes) -> bytes:
    """Decompress damaged data as far as possible, byte by byte, since a call that raises returns nothing."""
    out = bytearray()
    try:
        for i in range(len(data)):
            out += inflater.decompress(data[i : i + 1], CHUNK_BYTES)
    except zlib.error:
        pass
    return bytes(out)


def _next_member(file: BinaryIO, offset: int, codec: Codec, starts_record: StartsRecord) -> int:
    """Return where the next member that begins with a record is; the end of the file if there is none."""
    file.seek(offset)
    window = b""
    while data := file.read(CHUNK_BYTES):
        window += data
        at = window.find(codec.magic)
        while at >= 0:
            if starts_record(_peek(file, offset + at, codec.new())):
                return offset + at
            at = window.find(codec.magic, at + 1)
        kept = min(len(window), len(codec.magic) - 1)
        offset += len(window) - kept
        window = window[len(window) - kept :]
        file.seek(offset + kept)
    return offset + len(window)


def _peek(file: BinaryIO, offset: int, inflater: Inflater) -> bytes:
    """Return the first decompressed bytes of a possible member."""
    file.seek(offset)
    out = b""
    try:
        while len(out) < _PEEK_BYTES and not inflater.eof:
            if not (data := inflater.unconsumed_tail or file.read(_PEEK_BYTES)):
                break
            out += inflater.decompress(data, _PEEK_BYTES)
    except zlib.error:
        pass
    return out


def _read_dictionary(file: BinaryIO) -> bytes:
    """Return the dictionary at the start of a .warc.zst, which may itself be compressed."""
    file.seek(4)
    size = int.from_bytes(file.read(4), "little")
    data = file.read(min(size, _DICTIONARY_BYTES))
    if not data.startswith(ZSTD):
        return data
    inflater, out = ZstdInflater(b""), b""
    try:
        while not inflater.eof and data and len(out) < _DICTIONARY_BYTES:
            out += inflater.decompress(data, CHUNK_BYTES)
            data = inflater.unconsumed_tail
    except zlib.error:
        return b""
    return out


@dataclass(frozen=True, slots=True)
class Offset:
    """The position of a byte in the file."""

    member: int
    """Where its gzip member or zstd frame begins; in a plain file, where the byte is."""
    inside: int = 0
    """Decompressed bytes before it in its member."""

    def __str__(self) -> str:
        return f"byte {self.member}" + (f" ({self.inside} bytes into what is compressed there)" if self.inside else "")


class ByteWindow:
    """A window in `data` that slides over the decompressed bytes of a file.

    It never spans damage: it ends before it until `mend` is called.
    """

    def __init__(self, file: BinaryIO, starts_record: StartsRecord, offset: int) -> None:
        self.data = bytearray()
        self.damage = ""
        """What is wrong with the bytes after the window."""
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
        """Return whether going back or skipping means decompressing again."""
        return self._codec is not None

    def _start(self, offset: int) -> None:
        self.data.clear()
        self.damage, self.ended = "", False
        self._chunks = read_chunks(self._file, self._codec, offset, self._starts_record)
        self._dropped = 0
        # Where members begin, as (bytes since the start, offset in the file); the first is the one the window is in.
        self._opens: deque[tuple[int, int]] = deque([(0, offset)])

    def fill(self, size: int) -> bool:
        """Read until the window has `size` bytes; return False if damage or the end of the file comes first."""
        while len(self.data) < size and not self.damage and not self.ended:
            chunk = next(self._chunks, None)
            if chunk is None:
                self.ended = True
                break
            if chunk.opens and self.compressed:
                self._opens.append((self._dropped + len(self.data), chunk.offset))
            self.data += chunk.data
            self.damage, self.damage_offset = chunk.damage, chunk.offset
        return len(self.data) >= size

    def drop(self, size: int) -> None:
        """Go forward by `size` bytes of the window."""
        del self.data[:size]
        self._dropped += size
        while len(self._opens) > 1 and self._opens[1][0] <= self._dropped:
            self._opens.popleft()

    def mend(self) -> None:
        """Empty the window and go on after the damage, with the next member that begins with a record."""
        self.drop(len(self.data))
        self.damage = ""

    def offset_of(self, index: int) -> Offset:
        """Return the offset of byte `index` of the window."""
        begin, offset = self._opens[0]
        for position, opened in self._opens:
            if position > self._dropped + index:
                break
            begin, offset = position, opened
        inside = self._dropped + index - begin
        return Offset(offset, inside) if self.compressed else Offset(offset + inside)

    def starts_record(self, index: int) -> bool:
        """Return whether a record seems to begin at `index` of the window."""
        return self._starts_record(bytes(self.data[index : index + START_BYTES]))

    def next_record(self, start: int, end: int) -> int | None:
        """Return the index of the first member from `start` to `end` (exclusive) that begins with a record."""
        for position, _ in self._opens:
            index = position - self._dropped
            if index >= end:
                break
            if index >= start and self.starts_record(index):
                return index
        return None

    def opens_within(self, start: int, end: int) -> bool:
        """Return whether a member begins at an index from `start` to `end` (inclusive)."""
        return any(start <= position - self._dropped <= end for position, _ in self._opens)

    def skip(self, size: int) -> Literal["done", "end", "record"]:
        """Go forward by any number of bytes; stop early at the end of the bytes, or at a member with a record.

        Returns "done", or what it stopped at: "end" or "record".
        """
        if not self.compressed:
            target = self.offset_of(0).member + size
            if target > os.fstat(self._file.fileno()).st_size:
                return "end"
            self._start(target)
            return "done"
        after = 1  # the skipped record may itself begin a member
        while size:
            self.fill(min(size, CHUNK_BYTES))
            step = min(size, len(self.data))
            if (record := self.next_record(after, step)) is not None:
                self.drop(record)
                return "record"
            if not step:
                return "end"
            self.drop(step)
            size -= step
            after = 0
        return "done"

    def go_to(self, offset: Offset) -> None:
        """Go back (or forward) to an offset."""
        self._start(offset.member)
        remaining = offset.inside
        while remaining and (self.fill(1) or self.data):
            step = min(remaining, len(self.data))
            self.drop(step)
            remaining -= step
