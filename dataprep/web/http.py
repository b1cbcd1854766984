"""HTTP responses: status, headers, and the decoded body, read whole from an archive or chunk by chunk as it arrives.

Archives keep what servers and crawlers really wrote: bare line feeds as line ends, and headers about encodings
that were undone long ago (RFC 9112 for the framing, RFC 9110 section 8.4 for the codings). A body that is visibly
a page is therefore taken as it is, whatever the headers say about its encodings.
"""

import math
import re
from dataclasses import dataclass

from dataprep.web.sniffing import may_be_html, why_not_html
from pipelines.compression import CODINGS, CodingError, Decoder, OutputLimitError
from pipelines.identity import Address

ACCEPTED = "gzip, deflate"
"""What the crawler asks servers for, as Accept-Encoding."""
REQUESTED = ("gzip", "x-gzip", "deflate")
"""The names under which servers may send those encodings."""
PAGE_STATUSES = (200, 203)
"""Statuses of answers that are pages."""
MAX_CODINGS = 4
"""Most nested codings; real pages have one, and each may multiply the work of decoding."""
MAX_HEAD_BYTES = 1 << 20
_HARMLESS_BYTES = 100_000
"""A decoded body up to this size is never called a bomb, however well it was compressed."""
_WANTED = ("content-type", "content-encoding", "transfer-encoding")
_STATUS = re.compile(rb"\s*(?:HTTP|ICY)\S*[ \t]+([1-5]\d\d)\b", re.IGNORECASE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_FOLD = re.compile(rb"\r?\n[ \t]+")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_LIKE_CHUNK_SIZE = re.compile(rb"(?:\xef\xbb\xbf)?\s*[-+]?[0-9a-fA-F]+[ \t]*(?:[;\r\n]|\Z)")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)
# Values of Content-Encoding that do not mean a coding.
_NO_CODING = ("", "identity", "none", "chunked", "7bit", "8bit", "binary", "utf-8")


def escaped_fragment(address: Address) -> Address:
    """Return the address under which a server offers the page of a `#!` fragment; any other address as it is.

    Browsers send no fragment, so without this all `#!` pages of a site would be its start page. Sites that have such
    pages offer them as `?_escaped_fragment_=` (Google's "AJAX crawling" specification of 2009, which it recommended
    until October 2015); others ignore the parameter.
    """
    if not address.fragment:
        return address
    value = address.fragment.removeprefix("!").replace("%", "%25").replace("&", "%26").replace("+", "%2B")
    query = f"{address.query}&" if address.query else ""
    return address._replace(query=f"{query}_escaped_fragment_={value}", fragment="")


class HttpError(ValueError):
    """A block that is not an HTTP response, or a response whose body cannot be decoded."""


class TooLargeError(ValueError):
    """A body larger than the limit, as sent or decoded."""


class BodyEncodingError(ValueError):
    """A content encoding that was not asked for, or data that are not in the declared encoding."""


class BodyExpansionError(ValueError):
    """A body that decompression expanded more than any honest page; the message says how much."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response, with the headers that say how to read it."""

    status: int
    headers: dict[str, str]
    """Content-Type (the first, if there are several), Content-Encoding, Transfer-Encoding; names in lower case."""
    raw: bytes
    """The body as it is in the archive."""

    @property
    def content_type(self) -> str | None:
        """The declared type."""
        return self.headers.get("content-type")

    def body(self, limit: int) -> bytes:
        """Return the body without transfer and content encodings; raises HttpError or TooLargeError.

        Archives keep the headers of bodies that they decoded. So a body that is not in the encoding declared is no
        error if it is a page without it, or if it is none whatever it is in: what it is instead is then the reason.
        """
        body = self._without_chunks()
        names = [name.strip().lower() for name in self.headers.get("content-encoding", "").split(",")]
        codings = [name for name in names if name not in _NO_CODING]
        if len(codings) > MAX_CODINGS:
            raise HttpError(f"{len(codings)} content encodings")
        for coding in reversed(codings):
            try:
                body = decode(coding, body, limit)
            except HttpError:
                if may_be_html(self.content_type) and not _is_page(body):
                    raise
        if len(body) > limit:
            raise TooLargeError(f"more than {limit} bytes")
        return body

    def _without_chunks(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", "").lower():
            return self.raw
        try:
            return join_chunks(self.raw)
        except HttpError:
            # Undone already, if it does not begin with a number, if it is a page, or if its type says that it is none.
            if not _LIKE_CHUNK_SIZE.match(self.raw) or _is_page(self.raw) or not may_be_html(self.content_type):
                return self.raw
            raise


def _is_page(body: bytes) -> bool:
    """Return whether bytes are visibly HTML, so that any encoding named by the headers was already undone."""
    return bool(body) and not why_not_html("", body)


def charset_of(content_type: str | None) -> str | None:
    """Return the charset of a content type: `text/html; charset="utf-8"` -> `utf-8`."""
    match = _CHARSET.search(content_type or "")
    return match[1] if match else None


def parse_response(block: bytes) -> Response:
    """Return the response in `block`; raises HttpError if it has no status line or its head has no end."""
    response = _parse_once(block)
    if response.status < 200 and _STATUS.match(response.raw, 0, 256):  # 100 Continue, then the answer
        return _parse_once(response.raw)
    return response


def _parse_once(block: bytes) -> Response:
    status = _STATUS.match(block, 0, 256)
    if status is None:
        raise HttpError("no status line")
    end = _HEAD_END.search(block, 0, MAX_HEAD_BYTES)
    if end is None:
        raise HttpError("the head has no end")
    wanted: dict[str, list[str]] = {name: [] for name in _WANTED}
    for line in _FOLD.sub(b" ", block[: end.start()]).split(b"\n")[1:]:
        name, _, value = line.partition(b":")
        key, text = name.strip().lower().decode("latin-1"), value.strip().decode("latin-1")
        if key in wanted and text:
            wanted[key].append(text)
    headers = {
        name: values[0] if name == "content-type" else ", ".join(values) for name, values in wanted.items() if values
    }
    return Response(int(status[1]), headers, block[end.end() :])


def join_chunks(data: bytes) -> bytes:
    """Return a chunked body without its framing; raises HttpError if a chunk is broken or cut off."""
    body, position = bytearray(), 0
    while True:
        head = _CHUNK_SIZE.match(data, position)
        if head is None:
            raise HttpError(f"no chunk begins at byte {position}")
        size = int(head[1], 16)
        if not size:
            return bytes(body)
        chunk = data[head.end() : head.end() + size]
        if len(chunk) < size:
            raise HttpError(f"a chunk has {len(chunk)} of {size} bytes")
        body += chunk
        position = head.end() + size
        position += 2 if data.startswith(b"\r\n", position) else 1 if data.startswith(b"\n", position) else 0


def decode(coding: str, data: bytes, limit: int) -> bytes:
    """Undo one content coding; raises HttpError, or TooLargeError for more than `limit` bytes."""
    if coding not in CODINGS:
        raise HttpError(f"content encoding {coding[:40]!r} is unknown")
    # With gzip and deflate, the decoded body may be as large as the encoded one, whatever the limit.
    decoder = Decoder(coding, limit if coding in ("br", "zstd") else max(limit, len(data)))
    try:
        decoder.feed(data)
        return decoder.finish()
    except OutputLimitError:
        raise TooLargeError(f"more than {limit} bytes") from None
    except CodingError as error:
        raise HttpError(f"{coding}: {error}") from None


class BodyDecoder:
    """Undoes the Content-Encoding of a body chunk by chunk, as it arrives; holds at most `limit` decoded bytes.

    `max_expansion` is the largest ratio of decoded to sent bytes. It is checked once the body is complete, so that
    the verdict does not depend on how it was chunked; until then the limit bounds the work.
    """

    def __init__(self, encoding: str, limit: int, max_expansion: float = math.inf) -> None:
        self._encoding = encoding.strip().lower()
        self._limit = limit
        self._max_expansion = max_expansion
        self._received = 0
        self._decoder = None if self._encoding in ("", "identity") else _requested(self._encoding, limit)
        self.body = self._decoder.data if self._decoder else bytearray()

    def feed(self, chunk: bytes) -> None:
        """Decode a chunk as it was sent; raises TooLargeError or BodyEncodingError."""
        self._received += len(chunk)
        if self._received > self._limit:
            raise TooLargeError(f"more than {self._limit} bytes sent")
        if self._decoder is None:
            self.body += chunk
            return
        try:
            self._decoder.feed(chunk)
        except OutputLimitError as error:
            raise TooLargeError(f"{error} decoded, from {self._received} sent") from None
        except CodingError as error:
            raise BodyEncodingError(f"{self._encoding}: {error}") from None

    def finish(self) -> bytes:
        """Return the whole body; raises BodyEncodingError if compressed data are cut off, and BodyExpansionError."""
        try:
            body = self._decoder.finish() if self._decoder else bytes(self.body)
        except CodingError as error:
            raise BodyEncodingError(f"{self._encoding}: {error}") from None
        if len(body) > _HARMLESS_BYTES and len(body) > self._received * self._max_expansion:
            raise BodyExpansionError(f"{len(body)} bytes decoded, from {self._received} sent")
        return body


def _requested(encoding: str, limit: int) -> Decoder:
    if encoding not in REQUESTED:
        raise BodyEncodingError(f"{encoding} was not asked for")
    return Decoder(encoding, limit)
