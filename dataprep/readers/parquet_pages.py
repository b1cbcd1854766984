"""How long the values of a Parquet column are at most: what its metadata does not say, and pyarrow does not tell.

A value of a dictionary costs its length once, and a few bits in each row that has it: a file of 500 bytes may have a
million rows of a megabyte. So the headers of the pages are read, and the dictionaries, of which there is one in each
row group. A header is a Thrift struct in the compact protocol (parquet-format, `PageHeader`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from pipelines.compression import is_bomb

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_HEADER_BYTES = 1 << 14
_LONGEST_HEADER = 1 << 24
"""A header may hold the smallest and the largest value; pyarrow reads headers of up to 16 MiB too."""
_MOST_VALUES = 50_000
"""Values of a dictionary that are looked at; the usual one of 1 MiB has 10 to 50,000."""
_EMPTY_PAGES = 100
"""Pages of a chunk that may have no value: a dictionary, and a few of hasty writers."""
_PLAIN_SIZE, _PACKED_SIZE, _DICTIONARY, _VALUES = 2, 3, 7, 1
"""Fields of a header, and one of the struct that only the header of a dictionary has."""
_INTS, _BINARY, _STRUCT = (4, 5, 6), 8, 12
_SIZES = {1: 0, 2: 0, 3: 1, 7: 8}
"""Bytes of the other types: true, false, byte, double."""
_DEEPEST = 8

Fields = dict[int, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a column."""

    values: int
    """Of a dictionary; 0 for a page of another type."""
    offset: int
    """Where its bytes begin, after the header."""
    plain_bytes: int
    packed_bytes: int


def longest_value(file: BinaryIO, chunk: "pq.ColumnChunkMetaData") -> int:
    """Return a bound on the mean length of the values in any run of a chunk's rows.

    It is the mean of all of them, or the longest of the dictionary. Raises ValueError for a page that expands further
    than honest ones do.
    """
    longest = chunk.total_uncompressed_size // max(chunk.num_values, 1)
    try:
        for number, page in enumerate(pages(file, *_extent(chunk))):
            if number > chunk.num_values + _EMPTY_PAGES:
                raise ValueError(f"more than {number} pages for {chunk.num_values} values")
            if is_bomb(page.plain_bytes, page.packed_bytes):
                raise ValueError(f"a page of {page.packed_bytes} bytes becomes {page.plain_bytes}")
            if page.values:
                longest = max(longest, _longest_entry(file, page, chunk.compression))
    except _HeaderError:  # pyarrow says what is wrong with it
        longest = max(longest, chunk.total_uncompressed_size)
    return longest


def _longest_entry(file: BinaryIO, page: Page, compression: str) -> int:
    """Return the length of a dictionary's longest value, or that of the whole if it is too large to look through."""
    if page.values > _MOST_VALUES:
        return page.plain_bytes
    file.seek(page.offset)
    data = file.read(page.packed_bytes)
    if compression != "UNCOMPRESSED":
        codec = "lz4_raw" if compression == "LZ4" else compression.lower()
        try:
            data = pa.decompress(data, page.plain_bytes, codec, asbytes=True)
        except (pa.ArrowException, OSError, ValueError):
            return page.plain_bytes
    longest = position = 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "little")
        longest = max(longest, length)
        position += 4 + length
    return min(longest, page.plain_bytes)


def _extent(chunk: "pq.ColumnChunkMetaData") -> tuple[int, int]:
    """Return where a chunk begins and ends in its file."""
    first = chunk.data_page_offset
    start = min(first, chunk.dictionary_page_offset or first)
    return start, start + chunk.total_compressed_size


class _HeaderError(Exception):
    """Bytes that are no header of a page."""


def pages(file: BinaryIO, start: int, stop: int) -> Iterator[Page]:
    """Yield the pages between two offsets of a file."""
    while start < stop:
        page = _read_header(file, start)
        if page.plain_bytes < 0 or page.packed_bytes < 0:
            raise _HeaderError
        yield page
        start = page.offset + page.packed_bytes


def _read_header(file: BinaryIO, offset: int) -> Page:
    size = _HEADER_BYTES
    while True:
        file.seek(offset)
        data = file.read(size)
        try:
            header = _Compact(data)
            fields = header.struct()
            dictionary: Any = fields.get(_DICTIONARY, {})
            return Page(dictionary.get(_VALUES, 0), offset + header.end, fields[_PLAIN_SIZE], fields[_PACKED_SIZE])
        except (IndexError, KeyError):
            if len(data) < size or size >= _LONGEST_HEADER:
                raise _HeaderError from None
            size *= 8


class _Compact:
    """Reads a struct in Thrift's compact protocol; IndexError if it goes on after the end of the data."""

    def __init__(self, data: bytes) -> None:
        self.end = 0
        """The offset after what was read."""
        self._data = data

    def struct(self, depth: int = 0) -> Fields:
        """Return the integers and the structs of a struct by the numbers of their fields."""
        fields: Fields = {}
        number = 0
        while (head := self._byte()) != 0:
            number = number + (head >> 4) if head >> 4 else self._integer()
            kind = head & 15
            if kind in _INTS:
                fields[number] = self._integer()
            elif kind == _STRUCT and depth < _DEEPEST:
                fields[number] = self.struct(depth + 1)
            elif kind == _BINARY:
                length = self._varint()
                self.end += length
            elif kind in _SIZES:
                self.end += _SIZES[kind]
            else:
                raise _HeaderError  # headers of pages have no lists and maps
        return fields

    def _byte(self) -> int:
        byte = self._data[self.end]
        self.end += 1
        return byte

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise _HeaderError

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
