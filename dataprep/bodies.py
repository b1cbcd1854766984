"""Response bodies, decoded as they arrive and never larger than the limit, before or after decoding."""

import zlib
from collections.abc import AsyncIterator
from typing import Any

ACCEPTED = "gzip, deflate"


class BodyTooLargeError(ValueError):
    """A body exceeds the limit; its text says which size, as sent or decoded."""


class BodyEncodingError(ValueError):
    """A content encoding that was not asked for, or data that does not follow it."""


class BodyDecoder:
    """Undoes one Content-Encoding chunk by chunk; holds at most `limit` decoded bytes."""

    def __init__(self, encoding: str, limit: int) -> None:
        self.body = bytearray()
        self._limit = limit
        self._received = 0
        self._encoding = encoding.strip().lower()
        self._inflater: Any = _inflater(self._encoding)
        self._member_open = False

    def feed(self, chunk: bytes) -> None:
        """Take in a chunk as it was sent; raises BodyTooLargeError or BodyEncodingError."""
        self._received += len(chunk)
        if self._received > self._limit:
            raise BodyTooLargeError(f"more than {self._limit} bytes sent")
        if self._inflater is None:
            self.body += chunk
            return
        try:
            self._inflate(chunk)
        except zlib.error as error:
            raise BodyEncodingError(f"{self._encoding}: {error}") from None

    def finish(self) -> bytes:
        """The whole body; raises BodyEncodingError when compressed data stop short."""
        if self._member_open:
            raise BodyEncodingError(f"{self._encoding}: the compressed data are cut off")
        return bytes(self.body)

    def _inflate(self, chunk: bytes) -> None:
        while chunk and self._inflater is not None:
            if self._encoding == "deflate" and not self._received - len(chunk):
                self._inflater = _deflate_inflater(chunk)
            self._member_open = True
            self.body += self._inflater.decompress(chunk, self._limit + 1 - len(self.body))
            if len(self.body) > self._limit:
                raise BodyTooLargeError(f"more than {self._limit} bytes decoded, from {self._received} sent")
            chunk = self._inflater.unconsumed_tail
            if self._inflater.eof:
                # gzip files may have several members; what else follows the end is not part of the body.
                chunk = self._inflater.unused_data
                self._member_open = False
                self._inflater = _inflater(self._encoding)
                if not chunk.startswith(b"\x1f\x8b"):
                    return


def _inflater(encoding: str) -> Any:
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip"):
        return zlib.decompressobj(zlib.MAX_WBITS | 16)
    if encoding == "deflate":
        return zlib.decompressobj()
    raise BodyEncodingError(f"{encoding} was not asked for")


def _deflate_inflater(start: bytes) -> Any:
    # "deflate" should be zlib's format (RFC 9110 section 8.4.1.2), but some servers send it bare.
    is_zlib = start[0] & 0x0F == 8 and (len(start) < 2 or int.from_bytes(start[:2], "big") % 31 == 0)
    return zlib.decompressobj() if is_zlib else zlib.decompressobj(-zlib.MAX_WBITS)


async def read_body(chunks: AsyncIterator[bytes], encoding: str, limit: int) -> bytes:
    """Read and decode a whole body."""
    decoder = BodyDecoder(encoding, limit)
    async for chunk in chunks:
        decoder.feed(chunk)
    return decoder.finish()
