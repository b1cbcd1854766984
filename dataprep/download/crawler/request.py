"""One request: its target is vetted, it is sent, and its answer is a page, a redirect or a FetchError."""

import asyncio
import contextlib
import email.utils
import re
import socket
import time
import urllib.parse
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass

import aiohttp
import yarl

from dataprep.download.config import Limits
from dataprep.download.crawler.connections import InterimFloodError, PeerResponse
from dataprep.download.crawler.robots import ROBOTS_BYTES, RobotsReply
from dataprep.download.opt_outs import NO_OPT_OUTS, PageOptOuts
from dataprep.download.outcomes import REDIRECT_STATUSES
from dataprep.web.domains import ALLOWED_PORTS, RefusedAddressError, refuse_private
from dataprep.web.http import (
    PAGE_STATUSES,
    BodyDecoder,
    BodyEncodingError,
    BodyExpansionError,
    TooLargeError,
    escaped_fragment,
)
from dataprep.web.sniffing import may_be_html, why_not_html
from pipelines.identity import Address, split_url

LOCAL_NOTE = "rewritten to http for the local site"
HASH_BANG_NOTE = "#! requested as _escaped_fragment_"
RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_BUSY_STATUSES = (429, 503)
_CHUNK = 1 << 16
_LONGEST_VALUE = 300
# A byte of a header that is not UTF-8, as aiohttp decodes it (PEP 383); old servers send Latin-1.
_INVALID_BYTE = re.compile("[\udc80-\udcff]")


@dataclass(slots=True)
class Exchange:
    """What was sent and received in the last request, whether it succeeded or not."""

    url: str = ""
    status: int | None = None
    address: str = ""
    request_head: str = ""
    response_head: str = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """An answer that redirects to another URL."""

    status: int
    url: str
    """The target as an absolute URL, not vetted yet."""


class FetchError(Exception):
    """An attempt without a page.

    `transient`: a later run may succeed. `again`: this run should retry, after at least `retry_after` seconds.
    `busy`: nothing should be requested from the whole host until then.
    """

    def __init__(
        self,
        rule: str,
        value: object,
        *,
        transient: bool = False,
        again: bool = False,
        busy: bool = False,
        retry_after: float = 0.0,
    ) -> None:
        self.rule = rule
        self.value = " ".join(str(value).split())[:_LONGEST_VALUE]
        super().__init__(f"{rule}: {self.value}")
        self.transient = transient or again
        self.again = again
        self.busy = busy
        self.retry_after = retry_after


@contextlib.contextmanager
def network_errors() -> Generator[None]:
    """Turn everything that a request can raise into a FetchError with its reason."""
    try:
        yield
    except aiohttp.ClientSSLError as error:
        raise FetchError("tls_error", error) from None
    except aiohttp.ClientConnectorError as error:
        raise _connect_error(error) from None
    except (aiohttp.InvalidURL, UnicodeError) as error:
        raise FetchError("malformed", error) from None
    except TimeoutError as error:
        raise FetchError("timeout", str(error) or "no whole answer in the total time", again=True) from None
    except InterimFloodError as error:
        raise FetchError("invalid_http", error) from None
    except aiohttp.ClientPayloadError as error:
        raise FetchError("truncated_body", error, again=True) from None
    except aiohttp.ClientResponseError as error:
        raise FetchError("invalid_http", error.message, again=True) from None
    except (aiohttp.ClientError, OSError) as error:
        raise FetchError("connection_error", str(error) or type(error).__name__, again=True) from None


def _connect_error(error: aiohttp.ClientConnectorError) -> FetchError:
    cause = error.os_error
    if isinstance(cause, RefusedAddressError):
        return FetchError("private_address", cause)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        again = cause.errno == socket.EAI_AGAIN
        return FetchError("dns_error", cause.strerror or cause, transient=True, again=again)
    return FetchError("connection_error", cause.strerror or cause, again=True)


def retry_after(value: str, now: float) -> float:
    """Return the wait in seconds of a Retry-After header, a number or a date (RFC 9110, 10.2.3); 0 if unreadable."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return 0.0


class Fetcher:
    """Makes requests through one session."""

    def __init__(
        self,
        limits: Limits,
        session: aiohttp.ClientSession,
        site_hosts: frozenset[str] = frozenset(),
        opt_outs: PageOptOuts = NO_OPT_OUTS,
    ) -> None:
        self._limits = limits
        self._session = session
        self._site_hosts = site_hosts
        self._opt_outs = opt_outs
        self._timeout = aiohttp.ClientTimeout(
            # `connect` includes the name lookup, all addresses that are tried, and TLS.
            total=None,
            connect=limits.connect_seconds,
            sock_read=limits.read_seconds,
        )

    def vet(self, url: str) -> tuple[Address, str]:
        """Check the target of a URL before anything is sent; return the address to request, and a note if it differs.

        Credentials and fragments are dropped, `#!` becomes a parameter; https of the local site becomes http. Raises
        FetchError.
        """
        address = split_url(url)
        if address is None:
            raise FetchError("malformed", url)
        if address.port not in ALLOWED_PORTS:
            raise FetchError("port_not_allowed", address.port)
        try:
            refuse_private(address.host)
        except RefusedAddressError as error:
            raise FetchError("private_address", error) from None
        notes = [HASH_BANG_NOTE] if address.fragment else []
        address = escaped_fragment(address)
        if address.host in self._site_hosts and (address.scheme, address.port) != ("http", 80):
            notes.append(LOCAL_NOTE)
            address = Address("http", address.host, 80, address.path, address.query)
        return address, "; ".join(notes)

    async def page(self, target: Address, exchange: Exchange) -> bytes | Redirect:
        """Request a page and fill in the exchange. Raises FetchError."""
        exchange.url = target.url
        with network_errors():
            async with self._get(target) as response:
                _note_response(exchange, response)
                return _redirect(target, response) or await self._read_page(response)

    async def robots(self, target: Address) -> RobotsReply | Redirect:
        """Request a robots.txt, or another file about a whole origin.

        Raises FetchError, also for a status that should be retried.
        """
        with network_errors():
            async with self._get(target) as response:
                if response.status in RETRIED_STATUSES:
                    raise _status_error(response)
                body = await _read_at_most(response, ROBOTS_BYTES) if response.status == 200 else b""
                return _redirect(target, response) or RobotsReply(response.status, body)

    @contextlib.asynccontextmanager
    async def _get(self, target: Address) -> AsyncGenerator[aiohttp.ClientResponse]:
        # encoded=True: the URL is already in normal form, and must reach the server as it is logged.
        url = yarl.URL(target.url, encoded=True)
        async with asyncio.timeout(self._limits.total_seconds):
            response = await self._session.get(url, allow_redirects=False, timeout=self._timeout)
            try:
                yield response
            finally:
                # Returns the connection to the pool if the body was read to its end, and closes it otherwise.
                response.close()

    async def _read_page(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status not in PAGE_STATUSES:
            raise _status_error(response)
        declared = response.headers.get("Content-Type")
        if not may_be_html(declared):
            raise FetchError("not_html", why_not_html(declared, b""))
        encoding = response.headers.get("Content-Encoding", "")
        try:
            decoder = BodyDecoder(encoding, self._limits.max_body_bytes, self._limits.max_expansion)
            async for chunk in response.content.iter_chunked(_CHUNK):
                decoder.feed(chunk)
            body = decoder.finish()
        except TooLargeError as error:
            raise FetchError("too_large", error) from None
        except BodyExpansionError as error:
            raise FetchError("decompression_ratio", error) from None
        except BodyEncodingError as error:
            raise FetchError("bad_encoding", error) from None
        if other := why_not_html(declared, body):
            raise FetchError("not_html", other)
        if refusal := self._opt_outs.refusal(lambda name: response.headers.getall(name, []), body):
            raise FetchError(*refusal)
        return body


def _redirect(target: Address, response: aiohttp.ClientResponse) -> Redirect | None:
    location = response.headers.get("Location", "")
    if response.status not in REDIRECT_STATUSES or not location:
        return None
    location = _INVALID_BYTE.sub(lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", location)
    try:
        return Redirect(response.status, urllib.parse.urljoin(target.url, location))
    except ValueError:  # kept as it is, to be refused as malformed
        return Redirect(response.status, location)


def _status_error(response: aiohttp.ClientResponse) -> FetchError:
    again = response.status in RETRIED_STATUSES
    wait = retry_after(response.headers.get("Retry-After", ""), time.time()) if again else 0.0
    return FetchError(
        "http_status", response.status, again=again, busy=response.status in _BUSY_STATUSES, retry_after=wait
    )


async def _read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read the first `limit` decoded bytes of a body; a body that cannot be decoded counts as empty."""
    try:
        # The chunk that exceeds a decoder's limit is dropped, so the decoder may hold one chunk more.
        decoder = BodyDecoder(response.headers.get("Content-Encoding", ""), limit + _CHUNK)
    except BodyEncodingError:
        return b""
    try:
        async for chunk in response.content.iter_chunked(_CHUNK):
            decoder.feed(chunk)
        return decoder.finish()[:limit]
    except TooLargeError:
        return bytes(decoder.body[:limit])
    except BodyEncodingError:
        return b""


def _note_response(exchange: Exchange, response: aiohttp.ClientResponse) -> None:
    """Record the request, the response's head and the server's address, for the archive."""
    request = response.request_info
    lines = [
        f"GET {request.url.raw_path_qs} HTTP/1.1",
        *(f"{name}: {value}" for name, value in request.headers.items()),
    ]
    exchange.request_head = "\r\n".join(lines) + "\r\n\r\n"
    headers = [f"{name.decode('latin-1')}: {value.decode('latin-1')}" for name, value in response.raw_headers]
    exchange.response_head = "\r\n".join([f"HTTP/1.1 {response.status} {response.reason or ''}", *headers]) + "\r\n\r\n"
    exchange.status = response.status
    exchange.address = response.peer if isinstance(response, PeerResponse) else ""
