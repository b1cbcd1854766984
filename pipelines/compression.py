"""Decompression: members and frames chunk by chunk, bodies up to a limit, and whole files as streams.

An `Inflater` undoes one gzip member, zlib or deflate stream, zstd frame or brotli stream. It has the
interface of zlib's own objects, so that gzip costs no layer of Python. Damaged data raise zlib.error;
truncated data end before the inflater's `eof`. `Decoder` decompresses a whole body up to a limit; `open_plain` and
`open_bounded` open files as uncompressed streams.
"""

import bz2
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, cast

GZIP = b"\x1f\x8b\x08"
ZSTD = b"\x28\xb5\x2f\xfd"
FRAME_WINDOW = 1 << 27
"""Bytes; the largest window of a zstd frame that `zstd` itself accepts by default. A frame may claim 2 GiB."""
FILE_WINDOW = 1 << 31
"""Bytes; the window of `zstd --long=31`, the format's usual maximum. Reading such a file takes as much memory."""
HTTP_WINDOW = 1 << 23
"""Bytes; the largest window of a zstd body (RFC 9659)."""
CUT_OFF = "the compressed data are cut off"
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, OSError)
"""Errors that truncated or damaged compressed data raise, in any format; see `raise_unless_damage`."""
MAX_GROWTH = 1000
"""Most bytes that a compressed byte may become: text grows 3 to 10 times, logs 100 times, zeros 1000 times and more."""
GROWTH_FREE_BYTES = 64 << 20
"""Decompressed bytes before the growth is checked."""
_FRAME_FEED = 1024
"""Bytes of a zstd frame per call: four may expand to 128 kB, and the output of a call has no limit."""
_FILE_FEED = 8192
"""Bytes of a zstd file per call: even a run of zeros (32,768 to 1) stays below 256 MiB."""
_BUFFER = 1 << 20


class CodingError(ValueError):
    """Data that cannot be decompressed; its text says why."""


class CutOffError(CodingError):
    """Compressed data that end too early."""


class OutputLimitError(ValueError):
    """Data that decompress to more than the limit."""


class DecompressionBombError(Exception):
    """Compressed data that expand further than any honest data would."""


def is_bomb(plain: int, packed: int) -> bool:
    """Return whether so many bytes are more than `packed` compressed ones honestly become."""
    return plain > max(GROWTH_FREE_BYTES, MAX_GROWTH * packed)


class Inflater(Protocol):
    """The interface of zlib's decompression objects."""

    unconsumed_tail: bytes
    unused_data: bytes
    eof: bool

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return the next decompressed bytes, about `max_length` at most; raises zlib.error."""
        ...


def gzip_inflater() -> Inflater:
    """Return an inflater for one gzip member."""
    return cast(Inflater, zlib.decompressobj(zlib.MAX_WBITS | 16))


def deflate_inflater(start: bytes) -> Inflater:
    """Return an inflater for HTTP's `deflate`; `start` is at least the first two bytes of the data.

    They should be in zlib's format (RFC 9110 section 8.4.1.2), but some servers send bare deflate streams.
    """
    is_zlib = start[:1] and start[0] & 0x0F == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    return cast(Inflater, zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS))


class ZstdInflater:
    """Decompresses one zstd frame, which may need a dictionary; refuses a frame with a window above `window`."""

    def __init__(self, dictionary: bytes = b"", window: int = FRAME_WINDOW, feed: int = _FRAME_FEED) -> None:
        import zstandard

        trained = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._decompressor = zstandard.ZstdDecompressor(trained, max_window_size=window)
        self._error = zstandard.ZstdError
        self._feed = feed
        self.restart()

    def restart(self) -> None:
        """Begin another frame, in a fifth of the time that a new inflater takes."""
        self._object = self._decompressor.decompressobj()
        self.unconsumed_tail = self.unused_data = b""
        self.eof = False

    def decompress(self, data: bytes, _max_length: int, /) -> bytes:
        """Return the contents of the first `feed` bytes of `data`, however long; raises zlib.error."""
        feed, self.unconsumed_tail = data[: self._feed], data[self._feed :]
        try:
            out = self._object.decompress(feed)
        except self._error as error:
            raise zlib.error(str(error)) from None
        if self._object.eof:
            self.eof = True
            self.unused_data = self._object.unused_data + self.unconsumed_tail
            self.unconsumed_tail = b""
        return out


class BrotliInflater:
    """Decompresses one brotli stream."""

    def __init__(self) -> None:
        import brotli

        self._object = brotli.Decompressor()
        self._error = brotli.error
        self.unconsumed_tail = self.unused_data = b""
        self.eof = False

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        """Return about `max_length` bytes at most; the rest comes with the next call."""
        try:
            out = self._object.process(data, output_buffer_limit=max_length)
        except self._error as error:
            raise zlib.error(str(error)) from None
        self.eof = self._object.is_finished()
        return out


CODINGS = ("gzip", "x-gzip", "deflate", "br", "zstd")
"""HTTP's names of compressions (RFC 9110 section 8.4.1, RFC 7932, RFC 9659)."""


class Decoder:
    """Decompresses one of CODINGS chunk by chunk; `data` is the result so far, never much more than `limit` bytes.

    Consecutive gzip members are one body; anything else after the compressed data is ignored.
    """

    def __init__(self, coding: str, limit: int) -> None:
        self.data = bytearray()
        self._coding = coding
        self._limit = limit
        # None: between two members of a gzip file, or before the first two bytes say what follows.
        self._inflater = _new_inflater(coding)
        self._start = b""
        self._ended = False

    def feed(self, chunk: bytes) -> None:
        """Decompress a chunk; raise OutputLimitError as soon as there is too much, and CodingError for damage."""
        try:
            self._inflate(chunk)
        except zlib.error as error:
            raise CodingError(str(error)) from None

    def finish(self) -> bytes:
        """Return the whole body; raise CutOffError if it is incomplete."""
        if self._inflater is not None:
            raise CutOffError(CUT_OFF)
        return bytes(self.data)

    def _inflate(self, chunk: bytes) -> None:
        while chunk and not self._ended:
            if self._inflater is None:
                chunk = self._open_member(chunk)
                continue
            self.data += self._inflater.decompress(chunk, self._limit + 1 - len(self.data))
            if len(self.data) > self._limit:
                raise OutputLimitError(f"more than {self._limit} bytes")
            chunk = self._inflater.unconsumed_tail
            if self._inflater.eof:
                chunk = self._inflater.unused_data
                self._inflater = None
                self._ended = self._coding in ("br", "zstd")

    def _open_member(self, chunk: bytes) -> bytes:
        """Begin to decompress once there are two bytes; after a member, only another gzip member continues the body."""
        self._start += chunk
        if len(self._start) < 2:
            return b""
        start, self._start = self._start, b""
        if self.data and not start.startswith(GZIP[:2]):
            self._ended = True
            return b""
        self._inflater = deflate_inflater(start) if self._coding == "deflate" else gzip_inflater()
        return start


def _new_inflater(coding: str) -> Inflater | None:
    """Return the inflater of a coding, or None if the first bytes decide on it."""
    if coding == "br":
        return BrotliInflater()
    return ZstdInflater(window=HTTP_WINDOW) if coding == "zstd" else None


def open_plain(source: Path | IO[bytes], suffix: str) -> BinaryIO:
    """Return the uncompressed bytes of a file by its suffix (.gz, .xz, .bz2, .zst; any other: as they are), buffered.

    Consecutive members, frames and streams are one file. Reading raises one of DAMAGE. A file object passed in
    stays open when the stream is closed.
    """
    match suffix:
        case ".gz":
            return cast(BinaryIO, gzip.open(source, "rb"))
        case ".xz":
            return cast(BinaryIO, lzma.open(source, "rb"))
        case ".bz2":
            return cast(BinaryIO, bz2.open(source, "rb"))
        case ".zst":
            return cast(BinaryIO, io.BufferedReader(ZstdFile(source), _BUFFER))
        case _:
            return cast(BinaryIO, source.open("rb") if isinstance(source, Path) else source)


def open_bounded(
    file: IO[bytes], suffix: str, max_growth: int, free_bytes: int, line_bytes: int = 0
) -> io.BufferedReader:
    """Return `open_plain` of an open file that raises DecompressionBombError if it expands too far.

    That is more than `max_growth` times the bytes read from `file`, once it is more than `free_bytes`. Each line counts
    for `line_bytes` more.
    """
    packed: Any = _CountedFile(file)
    plain = open_plain(packed, suffix)
    bounded = packed if plain is packed else _BoundedFile(plain, packed, max_growth, free_bytes, line_bytes)
    return io.BufferedReader(bounded, 1 << 18)


def raise_unless_damage(error: Exception) -> None:
    """Raise an error of the system again (a full disk, a failed read): it has a number, damage has none."""
    if isinstance(error, OSError) and error.errno:
        raise error


class _RawFile(io.RawIOBase):
    """A stream that is only read forwards."""

    def readable(self) -> bool:
        """Return True."""
        return True


class ZstdFile(_RawFile):
    """The uncompressed bytes of a zstd file of one or more frames, also with long windows; OSError if it is damaged.

    Arrow's stream refuses windows above 128 MiB, and python-zstandard's takes a truncated frame for the end.
    """

    def __init__(self, source: Path | IO[bytes]) -> None:
        self._owned = isinstance(source, Path)
        self._file = source.open("rb") if isinstance(source, Path) else source
        self._inflater = ZstdInflater(window=FILE_WINDOW, feed=_FILE_FEED)
        self._begun = False
        self._plain = memoryview(b"")

    def readinto(self, buffer: Any, /) -> int:
        """Fill `buffer` with the next bytes and return their number; 0 at the end of the last frame."""
        inflater = self._inflater
        while not self._plain:
            packed = inflater.unused_data or self._file.read(_FILE_FEED)
            if not packed:
                if self._begun and not inflater.eof:
                    raise OSError("the last frame ends early")
                return 0
            self._begun = True
            if inflater.eof:
                inflater.restart()
            try:
                self._plain = memoryview(inflater.decompress(packed, len(buffer)))
            except zlib.error as error:
                raise OSError(str(error)) from None
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def close(self) -> None:
        """Close the file if this object opened it."""
        if self._owned:
            self._file.close()
        super().close()


class _CountedFile(_RawFile):
    """A file that counts the bytes read from it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.bytes = 0
        self._file = file

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes."""
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.bytes += len(data)
        return len(data)


class _BoundedFile(_RawFile):
    """The contents of a counted file, as long as they stay within the bound."""

    def __init__(self, plain: Any, packed: _CountedFile, max_growth: int, free_bytes: int, line_bytes: int) -> None:
        self._plain = plain
        self._packed = packed
        self._max_growth = max_growth
        self._free_bytes = free_bytes
        self._line_bytes = line_bytes
        self._bytes = self._lines = 0

    def readinto(self, buffer: Any, /) -> int:
        """Read the next bytes; raise DecompressionBombError if those before were too many."""
        size = self._bytes + self._lines * self._line_bytes
        if size > max(self._free_bytes, self._max_growth * self._packed.bytes):
            lines = f" in {self._lines} lines" if self._lines else ""
            raise DecompressionBombError(f"{self._packed.bytes} bytes became {self._bytes}{lines} and more")
        data = self._plain.read1(len(buffer))
        buffer[: len(data)] = data
        self._bytes += len(data)
        self._lines += data.count(b"\n") if self._line_bytes else 0
        return len(data)
