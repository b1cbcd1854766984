"""Records of WARC, WET and ARC files, ours and foreign ones.

WARC (ISO 28500; WARC/0.17 to 1.1): responses and resources are pages, conversions to plain text (WET) are documents;
records that never hold a document (requests, metadata, the file's description) are counted as skipped. ARC (versions
1 and 2), the format of the Internet Archive and Common Crawl before WARC: a record is one line (`URL IP-address date
type length`; version 2 has more fields before the length), its content and a line feed
(https://archive.org/web/researcher/ArcFileFormat.php). Damage costs only the records it hits: see `frames`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from dataprep.readers.frames import ArchiveFormat, Head, RawRecord, read_raw_records
from dataprep.readers.records import Broken, Page, Record, Skipped, Text
from dataprep.web.http import PAGE_STATUSES, HttpError, TooLargeError, charset_of, parse_response
from dataprep.web.sniffing import media_type
from pipelines.identity import canonical_url

SKIPPED = ("warcinfo", "request", "metadata", "continuation")
"""Record types without a document; ISO 28500 has no others."""
EXTRA_BYTES = 1 << 20
"""Most bytes of a record beside its page: the HTTP head, and framing."""
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(r"\d{1,18}")
_ARC_LINE = re.compile(
    rb"^([A-Za-z][A-Za-z0-9+.-]{1,15}:[^\r\n]{1,8000}) ([0-9A-Fa-f:.]{2,45}) (\d{14})((?: [^\s]{0,2000}){0,12}) "
    rb"(\d{1,18})[ \t]*\r?\n",
    re.MULTILINE,
)
Span = tuple[int, int | None]
"""From which offset to which the records of a part begin; None for the end of the file."""


def parse_warc_head(data: bytes) -> Head | None:
    """Return the named fields of a WARC record; None while they are incomplete."""
    end = _HEAD_END.search(data)
    if end is None:
        return None
    fields: dict[str, str] = {}
    for line in data[: end.start()].decode("utf-8", "replace").split("\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    length = fields.get("content-length", "")
    return Head(end.end(), int(length) if _LENGTH.fullmatch(length) else None, fields)


WARC = ArchiveFormat("WARC", re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n"), _HEAD_END, parse_warc_head, b"\r\n\r\n")


def parse_arc_head(data: bytes) -> Head | None:
    """Return the fields of an ARC record's line; None while it is incomplete."""
    line = _ARC_LINE.match(data)
    if line is None:
        return None
    kind = (line[4].split() or [b""])[0]
    fields = {"url": line[1].decode("utf-8", "replace"), "type": kind.decode("latin-1")}
    fields |= {"ip": line[2].decode(), "date": line[3].decode()}
    return Head(line.end(), int(line[5]), fields)


ARC = ArchiveFormat("ARC", _ARC_LINE, re.compile(rb"\n"), parse_arc_head, b"\n")


def read_warc(file: Path, max_bytes: int, span: Span = (0, None)) -> Iterator[Record]:
    """Yield every record of a WARC file, or of the part that `span` gives, in order.

    Raises UserError if the file is not a WARC at all.
    """
    for raw in read_raw_records(file, WARC, max_bytes + EXTRA_BYTES, *span):
        yield read_warc_record(raw, max_bytes)


def read_warc_record(raw: RawRecord, max_bytes: int) -> Record:
    """Return the page or the text of a WARC record, or why there is none."""
    fields = raw.head.fields if raw.head else {}
    url, kind = normal_url(fields.get("warc-target-uri", "")), fields.get("warc-type", "").lower()
    if raw.rule:
        return Broken(url or raw.location, raw.rule, f"{raw.value}, {raw.location}" if url else raw.value)
    if kind == "revisit":
        return Broken(url, "revisit", fields.get("warc-refers-to-date", ""))
    if kind not in ("response", "resource", "conversion"):
        return Skipped(kind if kind in SKIPPED else "unknown")
    if truncated := fields.get("warc-truncated") or fields.get("warc-segment-number"):
        return Broken(url, "truncated_record", truncated)
    content_type = fields.get("content-type")
    if kind == "conversion" and media_type(content_type) == "text/plain":
        return read_text(url, raw.content, max_bytes)
    if media_type(content_type) == "application/http" or raw.content.startswith(b"HTTP/"):
        return read_http(url, raw.content, max_bytes)
    return page_of(url, raw.content, content_type, max_bytes)


def read_arc(file: Path, max_bytes: int, span: Span = (0, None)) -> Iterator[Record]:
    """Yield every record of an ARC file, or of the part that `span` gives, in order.

    Raises UserError if the file is not an ARC at all.
    """
    for raw in read_raw_records(file, ARC, max_bytes + EXTRA_BYTES, *span):
        yield read_arc_record(raw, max_bytes)


def read_arc_record(raw: RawRecord, max_bytes: int) -> Record:
    """Return the page of an ARC record, or why there is none."""
    fields = raw.head.fields if raw.head else {}
    url = normal_url(fields.get("url", ""))
    if raw.rule:
        return Broken(url or raw.location, raw.rule, f"{raw.value}, {raw.location}" if url else raw.value)
    if url.startswith("filedesc:"):
        return Skipped("filedesc")
    if url.lower().startswith(("http:", "https:")):
        return read_http(url, raw.content, max_bytes)
    return page_of(url, raw.content, fields["type"] or None, max_bytes)


def normal_url(url: str) -> str:
    """Return the canonical form of a record's URL; any other URI unchanged."""
    url = url.strip("<> ")
    return canonical_url(url) or url


def read_http(url: str, block: bytes, max_bytes: int) -> Record:
    """Return the page in an HTTP response, or why there is none."""
    try:
        response = parse_response(block)
        if response.status not in PAGE_STATUSES:
            return Broken(url, "http_status", str(response.status))
        return page_of(url, response.body(max_bytes), response.content_type, max_bytes)
    except HttpError as error:
        return Broken(url, "invalid_http", str(error))
    except TooLargeError as error:
        return Broken(url, "too_large", str(error))


def page_of(url: str, body: bytes, content_type: str | None, max_bytes: int) -> Record:
    """Return a page, or a reason if it is too large."""
    if len(body) > max_bytes:
        return Broken(url, "too_large", f"more than {max_bytes} bytes")
    return Page(url, body, content_type, charset_of(content_type))


def read_text(url: str, content: bytes, max_bytes: int) -> Record:
    """Return the text of a WET record, which is UTF-8."""
    if len(content) > max_bytes:
        return Broken(url, "too_large", f"more than {max_bytes} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return Broken(url, "invalid_utf8", f"not valid UTF-8 at byte {error.start}")
    return Text(url, text) if text.strip() else Broken(url, "empty_text", f"record of {len(content)} bytes")
