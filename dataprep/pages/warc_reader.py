"""Page records of WARC files, ours and foreign ones: what has a body, or why a record has none.

Damage costs the record it hits, not the file: what is whole before a cut is read, and the cut itself
is a counted reason.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType  # pyright: ignore[reportMissingModuleSource]

from pipelines.errors import UserError

PAGE_STATUSES = (200, 203)
_TYPES = WarcRecordType.response | WarcRecordType.resource | WarcRecordType.revisit | WarcRecordType.conversion
_HEAD_BYTES = 1 << 20
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class PageRecord:
    """One record: where it comes from and its body, or the rule that it breaks and the value seen."""

    url: str
    content_type: str | None = None
    charset: str | None = None
    body: bytes = b""
    rule: str = ""
    value: str = ""


class GzipStream:
    """Decompresses a file of gzip members; a cut or damaged one ends the data and sets `damage`."""

    def __init__(self, file: BinaryIO) -> None:
        self.damage = ""
        self._file = file
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._pending = b""
        self._inside = False
        self._position = 0

    def tell(self) -> int:
        """Decompressed bytes read so far."""
        return self._position

    def read(self, size: int = _CHUNK) -> bytes:
        """Up to `size` bytes, at least one before the end."""
        while not self.damage:
            data = self._pending or self._file.read(_CHUNK)
            if not data:
                self.damage = "the last gzip member is cut off" if self._inside else ""
                return b""
            if out := self._inflate(data, size):
                self._position += len(out)
                return out
        return b""

    def _inflate(self, data: bytes, size: int) -> bytes:
        try:
            out = self._inflater.decompress(data, size)
        except zlib.error as error:
            self.damage = str(error)
            return b""
        self._inside, self._pending = True, self._inflater.unconsumed_tail
        if self._inflater.eof:
            self._pending = self._inflater.unused_data
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
            self._inside = False
        return out


def read_pages(path: Path, max_bytes: int) -> Iterator[PageRecord]:
    """The response, resource, revisit and conversion records of a WARC file, in order.

    Raises UserError when the file is no WARC at all.
    """
    with path.open("rb") as file:
        stream = GzipStream(file) if file.read(2) == b"\x1f\x8b" else None
        file.seek(0)
        records, page, damage = 0, PageRecord(""), ""
        source: Any = stream or file
        archive = ArchiveIterator(source, record_types=_TYPES, parse_http=False, stream_detect=False)
        try:
            for record in archive:
                records += 1
                page = read_page(record, max_bytes)
                yield page
        except OSError as error:
            damage = str(error)
        damage = damage or (stream.damage if stream else "")
    if damage and not records:
        raise UserError(f"{path}: not a readable WARC file ({damage}); give .warc or .warc.gz files")
    if damage and page.rule != "truncated_record":
        yield PageRecord(f"{path.name} after record {records}", rule="truncated_record", value=damage)


def read_page(record: WarcRecord, max_bytes: int) -> PageRecord:
    """One record with its body, decoded from its HTTP encodings."""
    url = (record.headers.get("WARC-Target-URI") or "").strip("<> ")
    if record.headers.get("Content-Length") is None:
        return PageRecord(url, rule="truncated_record", value="the header ends without a Content-Length")
    if record.record_type == WarcRecordType.revisit:
        return PageRecord(url, rule="revisit", value=record.headers.get("WARC-Refers-To-Date") or "")
    if record.content_length > max_bytes + _HEAD_BYTES:
        return PageRecord(url, rule="too_large", value=f"{record.content_length} bytes")
    block = record.reader.read(record.content_length)
    if len(block) < record.content_length:
        return PageRecord(url, rule="truncated_record", value=f"{len(block)} of {record.content_length} bytes")
    if reason := record.headers.get("WARC-Truncated"):
        return PageRecord(url, rule="truncated_record", value=reason)
    if not record.is_http:
        return _checked(url, record.headers.get("Content-Type"), None, block, max_bytes)
    return _read_http(url, block, max_bytes)


def _read_http(url: str, block: bytes, max_bytes: int) -> PageRecord:
    # In a record of its own: an error while decoding would end the iteration over the file's.
    message = WarcRecord()
    message.is_http = True
    message.set_bytes_content(block)
    try:
        message.parse_http(auto_decode="all", quirks_mode=True)
        status = message.http_headers.status_code
        if status is None:
            return PageRecord(url, rule="invalid_http", value="no status line")
        if status not in PAGE_STATUSES:
            return PageRecord(url, rule="http_status", value=str(status))
        body = message.reader.read(max_bytes + 1)
    except OSError as error:
        return PageRecord(url, rule="invalid_http", value=str(error))
    return _checked(url, message.http_headers.get("Content-Type"), message.http_charset, body, max_bytes)


def _checked(url: str, content_type: str | None, charset: str | None, body: bytes, max_bytes: int) -> PageRecord:
    if len(body) > max_bytes:
        return PageRecord(url, rule="too_large", value=f"more than {max_bytes} bytes")
    return PageRecord(url, content_type, charset, body)
