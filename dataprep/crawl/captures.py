"""Captures: the HTTP responses of WARC and ARC files, each with its request and what our crawler said of it.

A capture can be read again from its offset, so an archive must be compressed record by record, as the
WARC standard has it (ISO 28500, annex D).
"""

import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dataprep.crawl.fetched import REDIRECT_STATUSES, Fetched
from dataprep.crawl.warc_writer import CRAWLER_PREFIX, ENCODING_HEADERS
from dataprep.sources.arc_reader import ARC
from dataprep.sources.finding import is_arc
from dataprep.sources.frames import Frame, read_frames
from dataprep.sources.http_message import Response, parse_response
from dataprep.sources.warc_reader import EXTRA_BYTES, WARC
from pipelines.errors import UserError
from pipelines.identity import split_url

_UNDATED = "1970-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Capture:
    """A response of an archive, and what stands beside it."""

    offset: int
    """Where to read it again."""
    url: str
    """Its target in normal form; for something damaged without a target its place in the archive."""
    frame: Frame
    request: bytes = b""
    metadata: tuple[tuple[str, str], ...] = ()
    """Names and values that our crawler wrote: list-url, redirect, note."""

    @property
    def fields(self) -> dict[str, str]:
        """The named fields of the response's record."""
        return self.frame.head.fields if self.frame.head else {}

    @property
    def list_url(self) -> str:
        """The URL of the list that led here; empty in an archive of another crawler."""
        return dict(self.metadata).get("list-url", "")

    @property
    def fault(self) -> tuple[str, str]:
        """The rule and value that keep the record from answering; two empty texts when nothing does."""
        if self.frame.rule:
            return self.frame.rule, self.frame.value
        if self.fields.get("warc-type", "").lower() == "revisit":
            return "revisit", self.fields.get("warc-refers-to-date", "")
        truncated = self.fields.get("warc-truncated") or self.fields.get("warc-segment-number", "")
        return ("truncated_record", truncated) if truncated else ("", "")


def read_captures(file: Path, max_bytes: int, start: int = 0) -> Iterator[Capture]:
    """The captures of an archive from offset `start` on; responses larger than `max_bytes` come without content.

    Raises UserError when the file is no archive, or when its records cannot be found again.
    """
    group: list[Frame] = []  # a request, or a response with what belongs to it
    for frame in read_frames(file, ARC if is_arc(file) else WARC, max_bytes + EXTRA_BYTES, start):
        kind = _kind(frame)
        response = _response(group)
        if response is not None and kind in ("request", "metadata") and _are_linked(frame, response):
            group.append(frame)
            continue
        if response is not None:
            yield _capture(file, response, group)
            group = []
        if kind == "response":
            group = [*(request for request in group if _are_linked(request, frame)), frame]
        else:
            group = [frame] if kind == "request" else []
    if (response := _response(group)) is not None:
        yield _capture(file, response, group)


def _response(group: list[Frame]) -> Frame | None:
    return next((frame for frame in group if _kind(frame) == "response"), None)


def _kind(frame: Frame) -> str:
    """response, request or metadata; "" for what answers nothing (dns: records too)."""
    if frame.head is None:  # something damaged: it may have been a response
        return "response" if frame.rule and frame.offset is not None else ""
    kind = _field(frame, "warc-type").lower()
    if kind in ("request", "metadata"):
        return kind
    is_answer = kind in ("response", "resource", "revisit") or "warc-type" not in frame.head.fields
    return "response" if is_answer and _uri(frame).lower().startswith(("http:", "https:")) else ""


def _field(frame: Frame, name: str) -> str:
    return frame.head.fields.get(name, "") if frame.head else ""


def _uri(frame: Frame) -> str:
    return (_field(frame, "warc-target-uri") or _field(frame, "url")).strip("<> ")


def _are_linked(frame: Frame, response: Frame) -> bool:
    """Whether one of two records says that it belongs to the other."""
    ids = [_field(frame, "warc-record-id"), _field(response, "warc-record-id")]
    others = [_field(response, "warc-concurrent-to"), _field(frame, "warc-concurrent-to")]
    return any(own and own == other for own, other in zip(ids, others, strict=True))


def _capture(file: Path, response: Frame, group: list[Frame]) -> Capture:
    if group[0].offset is None:
        raise UserError(
            f"{file}: {group[0].place} cannot be read alone, since the file is compressed as a whole; compress it "
            "record by record (warcio recompress IN OUT)"
        )
    address = split_url(_uri(response))
    url = address.url if address else _uri(response) or response.place
    requests = [frame.content for frame in group if _kind(frame) == "request"]
    fields = [_fields(frame) for frame in group if _kind(frame) == "metadata"]
    own = next((pairs for pairs in fields if any(name == "list-url" for name, _ in pairs)), ())
    return Capture(group[0].offset, url, response, requests[0] if requests else b"", own)


def _fields(metadata: Frame) -> tuple[tuple[str, str], ...]:
    lines = metadata.content.decode("utf-8", "replace").split("\r\n")
    return tuple((name, value) for name, colon, value in (line.partition(": ") for line in lines) if colon)


@dataclass(frozen=True, slots=True)
class Message:
    """The HTTP response of a capture."""

    response: Response
    lines: list[str]
    """Status line and headers as the crawler received them, one line each."""
    redirect: str
    """The absolute URL that it redirects to; empty when it does not."""


def message_of(capture: Capture) -> Message:
    """The HTTP response of a capture that has no fault; raises HttpError when it is none."""
    content = capture.frame.content
    if not is_message(capture):  # a page without its HTTP head: a resource record, say
        declared = capture.fields.get("content-type", "") or capture.fields.get("type", "")
        lines = ["HTTP/1.1 200 OK", *([f"Content-Type: {declared}"] if declared else [])]
        return Message(Response(200, {"content-type": declared} if declared else {}, content), lines, "")
    response = parse_response(content)
    head = content[: len(content) - len(response.raw)].decode("latin-1")
    # After an interim response (100 Continue) the head of the final one is the last.
    lines = head.replace("\r\n", "\n").strip("\n").split("\n\n")[-1].split("\n")
    if capture.list_url:  # the opposite of what our writer does
        lines = [_unmarked(line) for line in lines if not line.lower().startswith("content-length:")]
    location = _location(lines) if response.status in REDIRECT_STATUSES else ""
    return Message(response, lines, _joined(capture.url, location) if location else "")


def is_message(capture: Capture) -> bool:
    """Whether a capture is an HTTP message, by what the record says or by how it begins."""
    fields, content = capture.fields, capture.frame.content
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
    """Where a redirect leads; a Location that cannot be read stays as it is."""
    try:
        joined = urllib.parse.urljoin(url, location)
    except ValueError:
        return location
    address = split_url(joined)
    return address.url if address else joined


def archived(capture: Capture, url: str) -> Fetched:
    """What an archive says of a response without its body, as if `url` had led straight to it."""
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
    """UTC to the second: WARC's `2016-09-19T17:20:24.5Z`, ARC's `20091121004501`."""
    digits = "".join(filter(str.isdigit, fields.get("warc-date", "") or fields.get("date", "")))
    if len(digits) < 14:
        return _UNDATED
    return f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}T{digits[8:10]}:{digits[10:12]}:{digits[12:14]}Z"
