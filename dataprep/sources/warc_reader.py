"""Records of WARC and WET files, ours and foreign ones (ISO 28500; WARC/0.17 to 1.1).

Responses and resources are pages, conversions to plain text (WET) are documents; what carries no
document by its nature (requests, metadata, the file's description) is counted as skipped. Damage costs
the record it hits: see `frames`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from dataprep.pages.sniffing import media_type
from dataprep.sources.frames import Dialect, Frame, Head, read_frames
from dataprep.sources.http_message import HttpError, TooLargeError, charset_of, parse_response
from dataprep.sources.records import Broken, Page, Record, Skipped, Text
from pipelines.identity import canonical_url

PAGE_STATUSES = (200, 203)
SKIPPED = ("warcinfo", "request", "metadata", "continuation")
"""Types of records that carry no document; there are no others in ISO 28500."""
EXTRA_BYTES = 1 << 20
"""What a record may have beside its page: the HTTP head, and framing."""
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(r"\d{1,18}")
Span = tuple[int, int | None]
"""The offsets where the records of a part begin; no end is that of the file."""


def parse_head(data: bytes) -> Head | None:
    """The named fields of a record; None while they are not all there."""
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


WARC = Dialect("WARC", re.compile(rb"WARC/\d+\.\d+[ \t]*\r?\n"), _HEAD_END, parse_head, b"\r\n\r\n")


def read_warc(file: Path, max_bytes: int, span: Span = (0, None)) -> Iterator[Record]:
    """Every record of a WARC file, in order; or of the part that `span` is.

    Raises UserError when the file is no WARC at all.
    """
    for frame in read_frames(file, WARC, max_bytes + EXTRA_BYTES, *span):
        yield read_record(frame, max_bytes)


def read_record(frame: Frame, max_bytes: int) -> Record:
    """What one record gives."""
    fields = frame.head.fields if frame.head else {}
    url, kind = normal_url(fields.get("warc-target-uri", "")), fields.get("warc-type", "").lower()
    if frame.rule:
        return Broken(url or frame.place, frame.rule, f"{frame.value}, {frame.place}" if url else frame.value)
    if kind == "revisit":
        return Broken(url, "revisit", fields.get("warc-refers-to-date", ""))
    if kind not in ("response", "resource", "conversion"):
        return Skipped(kind if kind in SKIPPED else "unknown")
    if truncated := fields.get("warc-truncated") or fields.get("warc-segment-number"):
        return Broken(url, "truncated_record", truncated)
    content_type = fields.get("content-type")
    if kind == "conversion" and media_type(content_type) == "text/plain":
        return read_text(url, frame.content, max_bytes)
    if media_type(content_type) == "application/http" or frame.content.startswith(b"HTTP/"):
        return read_http(url, frame.content, max_bytes)
    return page_of(url, frame.content, content_type, max_bytes)


def normal_url(url: str) -> str:
    """The canonical form of a record's URL; another URI as it is."""
    url = url.strip("<> ")
    return canonical_url(url) or url


def read_http(url: str, block: bytes, max_bytes: int) -> Record:
    """The page in an HTTP response."""
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
    """A page, if it is not too large."""
    if len(body) > max_bytes:
        return Broken(url, "too_large", f"more than {max_bytes} bytes")
    return Page(url, body, content_type, charset_of(content_type))


def read_text(url: str, content: bytes, max_bytes: int) -> Record:
    """The text of a WET record, which is UTF-8."""
    if len(content) > max_bytes:
        return Broken(url, "too_large", f"more than {max_bytes} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return Broken(url, "invalid_utf8", f"not valid UTF-8 at byte {error.start}")
    return Text(url, text) if text.strip() else Broken(url, "empty_text", f"record of {len(content)} bytes")
