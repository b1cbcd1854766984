"""One request: where it leads is checked, it is sent, and its answer is a page, a redirect or a FetchError."""

import asyncio
import contextlib
import re
import time
import urllib.parse
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import yarl

from dataprep.crawl.addresses import ALLOWED_PORTS, RefusedAddressError, refuse_private
from dataprep.crawl.bodies import BodyDecoder, BodyEncodingError, BodyExpansionError, BodyTooLargeError
from dataprep.crawl.connections import PeerResponse
from dataprep.crawl.failures import FetchError, network_errors, retry_after
from dataprep.crawl.fetched import REDIRECT_STATUSES
from dataprep.crawl.jobs import RobotsReply
from dataprep.crawl.robots import ROBOTS_BYTES
from dataprep.pages.sniffing import may_be_html, why_not_html
from dataprep.sources.warc_reader import PAGE_STATUSES
from pipelines.identity import Address, split_url

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig

LOCAL_NOTE = "rewritten to http for the local site"
RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_BUSY_STATUSES = (429, 503)
_CHUNK = 1 << 16
# A byte of a header that is no UTF-8, as aiohttp has it (PEP 383); old servers send Latin-1.
_INVALID_BYTE = re.compile("[\udc80-\udcff]")


@dataclass(slots=True)
class Exchange:
    """What was said in the last request, whether it ended well or not."""

    url: str = ""
    status: int | None = None
    address: str = ""
    request_head: str = ""
    response_head: str = ""


@dataclass(frozen=True, slots=True)
class Redirect:
    """An answer that leads on."""

    status: int
    url: str
    """Where to, made absolute; not vetted yet."""


class Fetcher:
    """Makes requests through one session."""

    def __init__(
        self, config: "DownloadConfig", session: aiohttp.ClientSession, site_hosts: frozenset[str] = frozenset()
    ) -> None:
        self._config = config
        self._session = session
        self._site_hosts = site_hosts
        self._timeout = aiohttp.ClientTimeout(
            # `connect` spans the look-up of the name, all addresses that are tried, and TLS.
            total=None,
            connect=config.connect_seconds,
            sock_read=config.read_seconds,
        )

    def vet(self, url: str) -> tuple[Address, str]:
        """Check where a URL leads before anything is sent; the address to request, and a note when it differs.

        Credentials and fragments are gone from it; https of the local site has become http.
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
        if address.host in self._site_hosts and (address.scheme, address.port) != ("http", 80):
            return Address("http", address.host, 80, address.path, address.query), LOCAL_NOTE
        return address, ""

    async def page(self, target: Address, exchange: Exchange) -> bytes | Redirect:
        """Request a page; fills in the exchange. Raises FetchError."""
        exchange.url = target.url
        with network_errors():
            async with self._get(target) as response:
                _note_response(exchange, response)
                return _redirect(target, response) or await self._read_page(response)

    async def robots(self, target: Address) -> RobotsReply | Redirect:
        """Request a robots.txt. Raises FetchError, also for a status after which one should try again."""
        with network_errors():
            async with self._get(target) as response:
                if response.status in RETRIED_STATUSES:
                    raise _status_error(response)
                body = await _read_at_most(response, ROBOTS_BYTES) if response.status == 200 else b""
                return _redirect(target, response) or RobotsReply(response.status, body)

    @contextlib.asynccontextmanager
    async def _get(self, target: Address) -> AsyncGenerator[aiohttp.ClientResponse]:
        # encoded=True: the URL is already in normal form, and must reach the server as it is in the log.
        url = yarl.URL(target.url, encoded=True)
        async with asyncio.timeout(self._config.total_seconds):
            response = await self._session.get(url, allow_redirects=False, timeout=self._timeout)
            try:
                yield response
            finally:
                # Gives the connection back when the body was read to its end, and closes it otherwise.
                response.close()

    async def _read_page(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status not in PAGE_STATUSES:
            raise _status_error(response)
        declared = response.headers.get("Content-Type")
        if not may_be_html(declared):
            raise FetchError("not_html", why_not_html(declared, b""))
        encoding = response.headers.get("Content-Encoding", "")
        try:
            decoder = BodyDecoder(encoding, self._config.max_body_bytes, self._config.max_expansion)
            async for chunk in response.content.iter_chunked(_CHUNK):
                decoder.feed(chunk)
            body = decoder.finish()
        except BodyTooLargeError as error:
            raise FetchError("too_large", error) from None
        except BodyExpansionError as error:
            raise FetchError("decompression_ratio", error) from None
        except BodyEncodingError as error:
            raise FetchError("bad_encoding", error) from None
        if other := why_not_html(declared, body):
            raise FetchError("not_html", other)
        return body


def _redirect(target: Address, response: aiohttp.ClientResponse) -> Redirect | None:
    location = response.headers.get("Location", "")
    if response.status not in REDIRECT_STATUSES or not location:
        return None
    location = _INVALID_BYTE.sub(lambda byte: f"%{ord(byte[0]) - 0xDC00:02X}", location)
    try:
        return Redirect(response.status, urllib.parse.urljoin(target.url, location))
    except ValueError:  # it stays as it is, and is refused as malformed
        return Redirect(response.status, location)


def _status_error(response: aiohttp.ClientResponse) -> FetchError:
    again = response.status in RETRIED_STATUSES
    wait = retry_after(response.headers.get("Retry-After", ""), time.time()) if again else 0.0
    return FetchError(
        "http_status", response.status, again=again, busy=response.status in _BUSY_STATUSES, retry_after=wait
    )


async def _read_at_most(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The first `limit` bytes of a body, decoded; what cannot be decoded counts as nothing."""
    try:
        # The chunk that goes beyond the limit is not kept, so the decoder may hold one more.
        decoder = BodyDecoder(response.headers.get("Content-Encoding", ""), limit + _CHUNK)
    except BodyEncodingError:
        return b""
    try:
        async for chunk in response.content.iter_chunked(_CHUNK):
            decoder.feed(chunk)
        return decoder.finish()[:limit]
    except BodyTooLargeError:
        return bytes(decoder.body[:limit])
    except BodyEncodingError:
        return b""


def _note_response(exchange: Exchange, response: aiohttp.ClientResponse) -> None:
    """Write down who answered what to which request, for the archive."""
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
