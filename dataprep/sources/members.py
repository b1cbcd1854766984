"""The decompressed bytes of a file of gzip members or zstd frames; damage ends a member, not the file.

Archives are compressed record by record, so that the next member after a damaged one can be found
again: by its magic number, and by what it holds. A file that is not compressed is one long member.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

GZIP = b"\x1f\x8b\x08"
ZSTD = b"\x28\xb5\x2f\xfd"
# The dictionary of a .warc.zst (IIPC, "WARC Zstandard", section 3) and other skippable frames (RFC 8878, 3.1.2).
_ZSTD_DICTIONARY = b"\x5d\x2a\x4d\x18"
_SKIPPABLE = b"\x2a\x4d\x18"
_WINDOW_BYTES = 1 << 27
"""Largest window of a zstd frame that `zstd` itself accepts unasked; a frame may claim one of 2 GB."""
_DICTIONARY_BYTES = 1 << 24
CHUNK = 1 << 16
_PEEK_BYTES = 4096
CUT_OFF = "the compressed data are cut off"

StartsRecord = Callable[[bytes], bool]
"""Whether decompressed bytes begin with the head of a record."""


class Inflater(Protocol):
    """What zlib's decompression objects offer."""

    unconsumed_tail: bytes
    unused_data: bytes
    eof: bool

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """The next decompressed bytes, about `max_length` at most; raises zlib.error."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a member, and what is wrong with those that follow."""

    data: bytes
    offset: int
    """Where the member begins in the file; in a file that is not compressed, where the bytes do."""
    opens: bool = False
    """Whether these are a member's first bytes."""
    damage: str = ""


class _Source:
    """A file read forwards, with what was read too much given back."""

    def __init__(self, file: BinaryIO, offset: int) -> None:
        self._file = file
        self.seek(offset)

    def seek(self, offset: int) -> None:
        self.offset = offset
        self._back = b""
        self._file.seek(offset)

    def read(self) -> bytes:
        data = self._back or self._file.read(CHUNK)
        self._back = b""
        self.offset += len(data)
        return data

    def give_back(self, data: bytes) -> None:
        self._back = data + self._back
        self.offset -= len(data)


class ZstdInflater:
    """A zstd frame with zlib's interface."""

    # A block of four bytes may stand for 128 kB, and there is no limit to what one call gives back.
    _FEED = 1024

    def __init__(self, dictionary: bytes = b"", window: int = _WINDOW_BYTES) -> None:
        import zstandard

        given = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._object = zstandard.ZstdDecompressor(given, max_window_size=window).decompressobj()
        self._error = zstandard.ZstdError
        self.unconsumed_tail = self.unused_data = b""
        self.eof = False

    def decompress(self, data: bytes, _max_length: int, /) -> bytes:
        """What the first of `data` give; raises zlib.error."""
        feed, self.unconsumed_tail = data[: self._FEED], data[self._FEED :]
        try:
            out = self._object.decompress(feed)
        except self._error as error:
            raise zlib.error(str(error)) from None
        if self._object.eof:
            self.eof = True
            self.unused_data = self._object.unused_data + self.unconsumed_tail
            self.unconsumed_tail = b""
        return out


@dataclass(frozen=True, slots=True)
class Codec:
    """How the members of a file are compressed: what each begins with, and what undoes it."""

    magic: bytes
    new: Callable[[], Inflater]
    copy: Callable[[Inflater], Inflater] | None = None
    """Another inflater in the same state; None where there is no such thing."""


def codec_of(file: BinaryIO, starts_record: StartsRecord) -> Codec | None:
    """The compression of a file, by its first bytes, or by its name if those are damaged; None for a plain one."""
    file.seek(0)
    start = file.read(_PEEK_BYTES)
    name = str(file.name)
    plain = starts_record(start) or not name.endswith((".gz", ".zst"))
    if start.startswith(GZIP[:2]) or (not plain and name.endswith(".gz")):
        return Codec(GZIP, _gzip_inflater, _copy)
    if start.startswith(ZSTD) or start[1:4] == _SKIPPABLE or not plain:
        dictionary = _read_dictionary(file) if start.startswith(_ZSTD_DICTIONARY) else b""
        return Codec(ZSTD, lambda: ZstdInflater(dictionary))
    return None


def read_pieces(file: BinaryIO, codec: Codec | None, offset: int, starts_record: StartsRecord) -> Iterator[Piece]:
    """All bytes from `offset` on, where a member (or, in a plain file, anything) begins.

    After damage the next member is the next one that holds a record.
    """
    source = _Source(file, offset)
    if codec is None:
        while data := source.read():
            yield Piece(data, source.offset - len(data), opens=source.offset == len(data))
        return
    while data := source.read():
        if not (first := data.lstrip(b"\0")):  # some writers fill up the last block of a file
            continue
        source.give_back(first)
        start, damage = source.offset, ""
        for piece in _member(source, codec):
            damage = piece.damage
            yield piece
        if damage:
            source.seek(_next_member(file, start + 1, codec, starts_record))


def _copy(inflater: Any) -> Inflater:
    return inflater.copy()


def _gzip_inflater() -> Inflater:
    inflater: Any = zlib.decompressobj(zlib.MAX_WBITS | 16)
    return inflater


def _member(source: _Source, codec: Codec) -> Iterator[Piece]:
    start, opens, inflater = source.offset, True, codec.new()
    while not inflater.eof:
        if not (data := inflater.unconsumed_tail or source.read()):
            yield Piece(b"", start, damage=CUT_OFF)
            return
        before = codec.new() if opens else codec.copy(inflater) if codec.copy else None
        try:
            out = inflater.decompress(data, CHUNK)
        except zlib.error as error:
            yield Piece(_before_damage(before, data) if before else b"", start, opens, str(error))
            return
        if out:
            yield Piece(out, start, opens)
            opens = False
    source.give_back(inflater.unused_data)


def _before_damage(inflater: Inflater, data: bytes) -> bytes:
    """What can be had of damaged data; a call that raises gives nothing back."""
    out = bytearray()
    try:
        for i in range(len(data)):
            out += inflater.decompress(data[i : i + 1], CHUNK)
    except zlib.error:
        pass
    return bytes(out)


def _next_member(file: BinaryIO, offset: int, codec: Codec, starts_record: StartsRecord) -> int:
    """Where the next member begins that holds a record; the end of the file when there is none."""
    file.seek(offset)
    window = b""
    while data := file.read(CHUNK):
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
    """The first decompressed bytes of what may be a member."""
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
    """The dictionary at the start of a .warc.zst, which may be compressed itself."""
    file.seek(4)
    size = int.from_bytes(file.read(4), "little")
    data = file.read(min(size, _DICTIONARY_BYTES))
    if not data.startswith(ZSTD):
        return data
    inflater, out = ZstdInflater(b""), b""
    try:
        while not inflater.eof and data and len(out) < _DICTIONARY_BYTES:
            out += inflater.decompress(data, CHUNK)
            data = inflater.unconsumed_tail
    except zlib.error:
        return b""
    return out
