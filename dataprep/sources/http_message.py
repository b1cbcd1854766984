"""The HTTP response in an archive's record: its status, its headers, and its body without encodings.

Archives keep what servers and crawlers really wrote: line feeds for line ends, headers of bodies that
were decoded long ago (RFC 9112 for the framing, RFC 9110 section 8.4 for the codings). A body that is
visibly a page is taken as it is, whatever the headers say of its encodings.
"""

import re
import zlib
from dataclasses import dataclass

from dataprep.pages.sniffing import why_not_html
from dataprep.sources.members import GZIP, ZstdInflater

MAX_CODINGS = 4
"""Codings on top of each other; real pages have one, and each may multiply what has to be undone."""
MAX_HEAD_BYTES = 1 << 20
HTTP_ZSTD_WINDOW = 1 << 23
"""Largest window of a zstd body (RFC 9659)."""
_WANTED = ("content-type", "content-encoding", "transfer-encoding")
_STATUS = re.compile(rb"\s*(?:HTTP|ICY)\S*[ \t]+([1-5]\d\d)\b", re.IGNORECASE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_FOLD = re.compile(rb"\r?\n[ \t]+")
_CHUNK_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,8})[ \t]*(?:;[^\r\n]*)?\r?\n")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)
# What is written there without meaning a coding.
_NO_CODING = ("", "identity", "none", "chunked", "7bit", "8bit", "binary", "utf-8")


class HttpError(ValueError):
    """A block that is no HTTP response, or one whose body cannot be decoded."""


class TooLargeError(ValueError):
    """A body that is larger than wanted once it is decoded."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response, with the headers that say how to read it."""

    status: int
    headers: dict[str, str]
    """Content-Type (of several the first), Content-Encoding, Transfer-Encoding; names in lower case."""
    raw: bytes
    """The body as it is in the archive."""

    @property
    def content_type(self) -> str | None:
        """The declared type."""
        return self.headers.get("content-type")

    def body(self, limit: int) -> bytes:
        """The body without transfer and content encodings; raises HttpError or TooLargeError."""
        body = self._without_chunks()
        names = [name.strip().lower() for name in self.headers.get("content-encoding", "").split(",")]
        codings = [name for name in names if name not in _NO_CODING]
        if len(codings) > MAX_CODINGS:
            raise HttpError(f"{len(codings)} content encodings")
        for coding in reversed(codings):
            try:
                body = decode(coding, body, limit)
            except HttpError:
                if not _is_page(body):
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
            if self.raw.startswith(GZIP) or _is_page(self.raw):
                return self.raw
            raise


def _is_page(body: bytes) -> bool:
    """Whether bytes are visibly HTML, so that an encoding which their headers name was undone before."""
    return bool(body) and not why_not_html("", body)


def charset_of(content_type: str | None) -> str | None:
    """`text/html; charset="utf-8"` -> `utf-8`."""
    found = _CHARSET.search(content_type or "")
    return found[1] if found else None


def parse_response(block: bytes) -> Response:
    """The response in `block`; raises HttpError when it has no status line or its head has no end."""
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
    found: dict[str, list[str]] = {name: [] for name in _WANTED}
    for line in _FOLD.sub(b" ", block[: end.start()]).split(b"\n")[1:]:
        name, _, value = line.partition(b":")
        key, text = name.strip().lower().decode("latin-1"), value.strip().decode("latin-1")
        if key in found and text:
            found[key].append(text)
    headers = {
        name: values[0] if name == "content-type" else ", ".join(values) for name, values in found.items() if values
    }
    return Response(int(status[1]), headers, block[end.end() :])


def join_chunks(data: bytes) -> bytes:
    """A body without its transfer encoding; raises HttpError when a chunk is broken or cut off."""
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
    """`data` without one content coding, at most `limit` bytes."""
    if coding in ("gzip", "x-gzip", "deflate"):
        return _inflate(coding, data, limit)
    if coding == "br":
        return _unbrotli(data, limit)
    if coding == "zstd":
        return _unzstd(data, limit)
    raise HttpError(f"content encoding {coding[:40]!r} is unknown")


def _inflate(coding: str, data: bytes, limit: int) -> bytes:
    from dataprep.crawl.bodies import BodyDecoder, BodyEncodingError, BodyTooLargeError

    decoder = BodyDecoder(coding, max(limit, len(data)))
    try:
        decoder.feed(data)
        return decoder.finish()
    except BodyTooLargeError:
        raise TooLargeError(f"more than {limit} bytes") from None
    except BodyEncodingError as error:
        raise HttpError(str(error)) from None


def _unbrotli(data: bytes, limit: int) -> bytes:
    import brotli

    decoder, out = brotli.Decompressor(), bytearray()
    try:
        feed = data
        while not decoder.is_finished():
            if not feed and decoder.can_accept_more_data():
                raise HttpError("br: the compressed data are cut off")
            out += decoder.process(feed, output_buffer_limit=limit + 1 - len(out))
            feed = b""
            if len(out) > limit:
                raise TooLargeError(f"more than {limit} bytes")
    except brotli.error as error:
        raise HttpError(f"br: {error}") from None
    return bytes(out)


def _unzstd(data: bytes, limit: int) -> bytes:
    inflater, out = ZstdInflater(b"", HTTP_ZSTD_WINDOW), bytearray()
    try:
        while not inflater.eof:
            if not data:
                raise HttpError("zstd: the compressed data are cut off")
            out += inflater.decompress(data, limit)
            data = inflater.unconsumed_tail
            if len(out) > limit:
                raise TooLargeError(f"more than {limit} bytes")
    except zlib.error as error:
        raise HttpError(f"zstd: {error}") from None
    return bytes(out)
