"""Captures: the HTTP responses in WARC and ARC files, each with its request and our crawler's metadata.

A capture is read again from its offset, so an archive must be compressed record by record, as the WARC standard
recommends (ISO 28500, annex D).
"""

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dataprep.download.outcomes import REDIRECT_STATUSES, Fetched
from dataprep.download.warc_writer import CRAWLER_PREFIX, ENCODING_HEADERS
from dataprep.readers.frames import RawRecord, read_raw_records
from dataprep.readers.kinds import is_arc
from dataprep.readers.warc import ARC, EXTRA_BYTES, WARC
from dataprep.web.http import Response, parse_response
from pipelines.errors import UserError
from pipelines.identity import split_url

_UNDATED = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Capture:
    """A response in an archive, with the records that belong to it."""

    offset: int
    """Where in the file to read it again."""
    url: str
    """Its target in normal form; for a damaged record without a target, its position in the archive."""
    record: RawRecord
    request: bytes = b""
    metadata: tuple[tuple[str, str], ...] = ()
    """Names and values written by our crawler: list-url, redirect, note."""

    @property
    def fields(self) -> dict[str, str]:
        """The named fields of the response's record."""
        return self.record.head.fields if self.record.head else {}

    @property
    def list_url(self) -> str:
        """The URL of the list that led here; empty in an archive of another crawler."""
        return dict(self.metadata).get("list-url", "")

    @property
    def fault(self) -> tuple[str, str]:
        """The rule and value for which the record cannot answer; two empty strings if it can."""
        if self.record.rule:
            return self.record.rule, self.record.value
        if self.fields.get("warc-type", "").lower() == "revisit":
            return "revisit", self.fields.get("warc-refers-to-date", "")
        truncated = self.fields.get("warc-truncated") or self.fields.get("warc-segment-number", "")
        return ("truncated_record", truncated) if truncated else ("", "")


def read_captures(file: Path, max_bytes: int, start: int = 0) -> Iterator[Capture]:
    """Yield the captures of an archive from offset `start` on; responses larger than `max_bytes` come without content.

    Raises UserError if the file is not an archive, or if its records cannot be read again by offset.
    """
    group: list[RawRecord] = []  # a request, or a response with the records that belong to it
    for record in read_raw_records(file, ARC if is_arc(file) else WARC, max_bytes + EXTRA_BYTES, start):
        kind = _kind(record)
        response = _response(group)
        if response is not None and kind in ("request", "metadata") and _are_linked(record, response):
            group.append(record)
            continue
        if response is not None:
            yield _capture(file, response, group)
            group = []
        if kind == "response":
            group = [*(request for request in group if _are_linked(request, record)), record]
        else:
            group = [record] if kind == "request" else []
    if (response := _response(group)) is not None:
        yield _capture(file, response, group)


def _response(group: list[RawRecord]) -> RawRecord | None:
    return next((record for record in group if _kind(record) == "response"), None)


def _kind(record: RawRecord) -> str:
    """Return "response", "request" or "metadata"; "" for a record that is not an HTTP answer (such as dns:)."""
    if record.head is None:  # damaged: it may have been a response
        return "response" if record.rule and record.offset is not None else ""
    kind = _field(record, "warc-type").lower()
    if kind in ("request", "metadata"):
        return kind
    is_answer = kind in ("response", "resource", "revisit") or "warc-type" not in record.head.fields
    return "response" if is_answer and _uri(record).lower().startswith(("http:", "https:")) else ""


def _field(record: RawRecord, name: str) -> str:
    return record.head.fields.get(name, "") if record.head else ""


def _uri(record: RawRecord) -> str:
    return (_field(record, "warc-target-uri") or _field(record, "url")).strip("<> ")


def _are_linked(record: RawRecord, response: RawRecord) -> bool:
    """Return whether one of two records refers to the other as WARC-Concurrent-To."""
    ids = [_field(record, "warc-record-id"), _field(response, "warc-record-id")]
    references = [_field(response, "warc-concurrent-to"), _field(record, "warc-concurrent-to")]
    return any(record_id and record_id == reference for record_id, reference in zip(ids, references, strict=True))


def _capture(file: Path, response: RawRecord, group: list[RawRecord]) -> Capture:
    if group[0].offset is None:
        raise UserError(
            f"{file}: {group[0].location} cannot be read alone, since the file is compressed as a whole; compress it "
            "record by record (warcio recompress IN OUT)"
        )
    address = split_url(_uri(response))
    url = address.url if address else _uri(response) or response.location
    requests = [record.content for record in group if _kind(record) == "request"]
    fields = [_fields(record) for record in group if _kind(record) == "metadata"]
    metadata = next((pairs for pairs in fields if any(name == "list-url" for name, _ in pairs)), ())
    return Capture(group[0].offset, url, response, requests[0] if requests else b"", metadata)


def _fields(metadata: RawRecord) -> tuple[tuple[str, str], ...]:
    lines = metadata.content.decode("utf-8", "replace").split("\r\n")
    return tuple((name, value) for name, colon, value in (line.partition(": ") for line in lines) if colon)


@dataclass(frozen=True, slots=True)
class Message:
    """The HTTP response of a capture."""

    response: Response
    lines: list[str]
    """Status line and headers as the crawler received them, one line each."""
    redirect: str
    """The absolute URL that it redirects to; empty if it does not redirect."""

    def values(self, name: str) -> list[str]:
        """Return the values of all headers of this name, in any case."""
        fields = (line.partition(":") for line in self.lines[1:])
        return [value.strip() for field, _, value in fields if field.strip().lower() == name.lower()]


def message_of(capture: Capture) -> Message:
    """Parse the HTTP response of a capture that has no fault; raises HttpError if it is not one."""
    content = capture.record.content
    if not is_message(capture):  # a page without its HTTP head, such as a resource record
        declared = capture.fields.get("content-type", "") or capture.fields.get("type", "")
        lines = ["HTTP/1.1 200 OK", *([f"Content-Type: {declared}"] if declared else [])]
        return Message(Response(200, {"content-type": declared} if declared else {}, content), lines, "")
    response = parse_response(content)
    head = content[: len(content) - len(response.raw)].decode("latin-1")
    # After an interim response (100 Continue), the last head is that of the final response.
    lines = head.replace("\r\n", "\n").strip("\n").split("\n\n")[-1].split("\n")
    if capture.list_url:  # undo what `warc_writer` does
        lines = [_unmarked(line) for line in lines if not line.lower().startswith("content-length:")]
    location = _location(lines) if response.status in REDIRECT_STATUSES else ""
    return Message(response, lines, _joined(capture.url, location) if location else "")


def is_message(capture: Capture) -> bool:
    """Return whether a capture is an HTTP message, by the fields of its record or by its first bytes."""
    fields, content = capture.fields, capture.record.content
    is_resource = fields.get("warc-type", "").lower() == "resource"
    declared = fields.get("content-type", "").lower().startswith("application/http")
    return not is_resource and (declared or "warc-type" not in fields or content.startswith(b"HTTP/"))


def _unmarked(line: str) -> str:
    marked = line.lower().startswith(tuple(f"{CRAWLER_PREFIX}{name}".lower() for name in ENCODING_HEADERS))
    return line[len(CRAWLER_PREFIX) :] if marked else line


def _location(lines: list[str]) -> str:
    for name, _, value in (line.partition(":") for line in lines[1:]):
        if name.strip().lower() == "location":
            return value.strip()
    return ""


def _joined(url: str, location: str) -> str:
    """Make a redirect's Location absolute; return one that cannot be parsed as it is."""
    try:
        joined = urllib.parse.urljoin(url, location)
    except ValueError:
        return location
    address = split_url(joined)
    return address.url if address else joined


def archived(capture: Capture, url: str) -> Fetched:
    """Return what an archive says about a response, without its body, as if `url` had led straight to it."""
    pairs = capture.metadata
    return Fetched(
        url=url,
        started=_date(capture.fields),
        final_url=capture.url,
        redirects=tuple(value for name, value in pairs if name == "redirect"),
        note=dict(pairs).get("note", ""),
        address=capture.fields.get("warc-ip-address", "") or capture.fields.get("ip", ""),
        request_head=capture.request.decode("latin-1"),
    )


def _date(fields: dict[str, str]) -> str:
    """Return the date in UTC to the second, from WARC's `2016-09-19T17:20:24.5Z` or ARC's `20091121004501`."""
    digits = "".join(filter(str.isdigit, fields.get("warc-date", "") or fields.get("date", "")))
    if len(digits) < 14:
        return _UNDATED
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}T{digits[8:10]}:{digits[10:12]}:{digits[12:14]}Z"
