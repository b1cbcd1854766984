"""Response bodies, decoded as they arrive and never larger than the limit, before or after decoding."""

import math
import zlib
from typing import Any

ACCEPTED = "gzip, deflate"
_GZIP = b"\x1f\x8b"
_HARMLESS_BYTES = 100_000
"""A decoded body up to this size is no bomb, however well it was compressed."""


class BodyTooLargeError(ValueError):
    """A body exceeds the limit; its text says which size, as sent or decoded."""


class BodyExpansionError(ValueError):
    """A body grew more by decompression than any honest page does; its text says how much."""


class BodyEncodingError(ValueError):
    """A content encoding that was not asked for, or data that does not follow it."""


class BodyDecoder:
    """Undoes one Content-Encoding chunk by chunk; holds at most `limit` decoded bytes.

    `max_expansion` is the largest ratio of decoded to sent bytes. It is judged when the body is whole,
    so that the verdict does not depend on the chunks; until then the limit bounds the work.
    """

    def __init__(self, encoding: str, limit: int, max_expansion: float = math.inf) -> None:
        self.body = bytearray()
        self._limit = limit
        self._max_expansion = max_expansion
        self._received = 0
        self._encoding = encoding.strip().lower()
        self._plain = self._encoding in ("", "identity")
        # None: between two members of a gzip file, or before the first byte.
        self._inflater: Any = None
        self._start = b""
        self._ended = False
        if not self._plain:
            _new_inflater(self._encoding, b"")

    def feed(self, chunk: bytes) -> None:
        """Take in a chunk as it was sent; raises BodyTooLargeError or BodyEncodingError."""
        self._received += len(chunk)
        if self._received > self._limit:
            raise BodyTooLargeError(f"more than {self._limit} bytes sent")
        if self._plain:
            self.body += chunk
            return
        try:
            self._inflate(chunk)
        except zlib.error as error:
            raise BodyEncodingError(f"{self._encoding}: {error}") from None

    def finish(self) -> bytes:
        """The whole body; raises BodyEncodingError when compressed data stop short, and BodyExpansionError."""
        if self._inflater is not None:
            raise BodyEncodingError(f"{self._encoding}: the compressed data are cut off")
        size = len(self.body)
        if size > _HARMLESS_BYTES and size > self._received * self._max_expansion:
            raise BodyExpansionError(f"{size} bytes decoded, from {self._received} sent")
        return bytes(self.body)

    def _inflate(self, chunk: bytes) -> None:
        while chunk and not self._ended:
            if self._inflater is None:
                chunk = self._open_member(chunk)
                continue
            self.body += self._inflater.decompress(chunk, self._limit + 1 - len(self.body))
            if len(self.body) > self._limit:
                raise BodyTooLargeError(f"more than {self._limit} bytes decoded, from {self._received} sent")
            chunk = self._inflater.unconsumed_tail
            if self._inflater.eof:
                chunk = self._inflater.unused_data
                self._inflater = None

    def _open_member(self, chunk: bytes) -> bytes:
        """Start to decompress once two bytes say what follows; whatever else follows a member is no body."""
        self._start += chunk
        if len(self._start) < 2:
            return b""
        start, self._start = self._start, b""
        if self.body and not start.startswith(_GZIP):
            self._ended = True
            return b""
        self._inflater = _new_inflater(self._encoding, start)
        return start


def _new_inflater(encoding: str, start: bytes) -> Any:
    if encoding in ("gzip", "x-gzip"):
        return zlib.decompressobj(zlib.MAX_WBITS | 16)
    if encoding == "deflate":
        # It should be zlib's format (RFC 9110 section 8.4.1.2), but some servers send it bare.
        is_zlib = start[:1] and start[0] & 0x0F == 8 and int.from_bytes(start[:2], "big") % 31 == 0
        return zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
    raise BodyEncodingError(f"{encoding} was not asked for")
