"""One attempt at one URL: vet, ask robots.txt, request, follow redirects, read; or say why not."""

import asyncio
import contextlib
import email.utils
import socket
import time
import urllib.parse
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import yarl

from dataprep.crawl.addresses import ALLOWED_PORTS, RefusedAddressError, refuse_private
from dataprep.crawl.bodies import BodyDecoder, BodyEncodingError, BodyTooLargeError, read_body
from dataprep.crawl.connections import PeerResponse
from dataprep.crawl.robots import ROBOTS_BYTES, Robots, RobotsReply, Rules
from dataprep.pages.sniffing import may_be_html, why_not_html
from pipelines.identity import Address, split_url

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig

RETRIED_STATUSES = (408, 425, 429, 500, 502, 503, 504)
_REDIRECTS = (301, 302, 303, 307, 308)
_PAGES = (200, 203)
_ROBOTS_REDIRECTS = 5
_LONGEST_VALUE = 300
_CHUNK = 1 << 14


class FetchError(Exception):
    """An attempt that gave no page.

    `transient`: a later run may succeed. `again`: this one should try again, after `retry_after`
    seconds at least.
    """

    def __init__(
        self, rule: str, value: object, *, transient: bool = False, again: bool = False, retry_after: float = 0.0
    ) -> None:
        self.rule = rule
        self.value = " ".join(str(value).split())[:_LONGEST_VALUE]
        super().__init__(f"{rule}: {self.value}")
        self.transient = transient or again
        self.again = again
        self.retry_after = retry_after


@dataclass(slots=True)
class Trail:
    """What is known of an attempt so far, whether it ends well or not."""

    final_url: str = ""
    redirects: list[str] = field(default_factory=list[str])
    note: str = ""
    status: int | None = None
    address: str = ""
    request_head: str = ""
    response_head: str = ""


class Fetcher:
    """Makes attempts through one session."""

    def __init__(
        self, config: "DownloadConfig", session: aiohttp.ClientSession, site_hosts: frozenset[str] = frozenset()
    ) -> None:
        self._config = config
        self._session = session
        self._site_hosts = site_hosts
        self._robots = Robots(self._fetch_robots)
        self._timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=config.connect_seconds, sock_read=config.read_seconds
        )

    async def fetch(self, url: str, trail: Trail) -> bytes:
        """The page at `url`; fills in the trail. Raises FetchError."""
        target = self.vet(url, trail)
        seen: set[str] = set()
        while True:
            trail.final_url = target.url
            await self._ask_robots(target)
            with network_errors():
                async with self._get(target) as response:
                    _note_response(trail, response)
                    location = response.headers.get("Location", "")
                    if response.status not in _REDIRECTS or not location:
                        return await self._read_page(response)
            seen.add(target.url)
            trail.redirects.append(f"{response.status} {target.url}")
            if len(trail.redirects) > self._config.max_redirects:
                raise FetchError("too_many_redirects", len(trail.redirects))
            target = self.vet(_joined(target.url, location), trail)
            if target.url in seen:
                raise FetchError("redirect_loop", target.url)

    def vet(self, url: str, trail: Trail) -> Address:
        """Check where a URL leads before anything is sent; https of the local site becomes http."""
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
            trail.note = "rewritten to http for the local site"
            return Address("http", address.host, 80, address.path, address.query)
        return address

    async def rules(self, origin: str) -> Rules:
        """The robots rules of an origin."""
        return await self._robots.rules(origin) if self._config.robots else Rules()

    async def _ask_robots(self, target: Address) -> None:
        rules = await self.rules(target.origin)
        if rules.unreachable:
            rule, _, value = rules.unreachable.partition(": ")
            if rule in ("private_address", "dns_error"):  # it is the host, whatever the path
                raise FetchError(rule, value, transient=rule == "dns_error")
            raise FetchError("robots_unreachable", rules.unreachable, transient=True)
        if not rules.allow(target.url, self._config.user_agent):
            raise FetchError("robots_denied", f"{target.origin}/robots.txt")

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
        if response.status not in _PAGES:
            again = response.status in RETRIED_STATUSES
            wait = retry_after(response.headers.get("Retry-After", ""), time.time()) if again else 0.0
            raise FetchError("http_status", response.status, again=again, retry_after=wait)
        declared = response.headers.get("Content-Type")
        if not may_be_html(declared):
            raise FetchError("not_html", why_not_html(declared, b""))
        encoding = response.headers.get("Content-Encoding", "")
        try:
            body = await read_body(response.content.iter_chunked(1 << 16), encoding, self._config.max_body_bytes)
        except BodyTooLargeError as error:
            raise FetchError("too_large", error) from None
        except BodyEncodingError as error:
            raise FetchError("bad_encoding", error) from None
        if other := why_not_html(declared, body):
            raise FetchError("not_html", other)
        return body

    async def _fetch_robots(self, url: str) -> RobotsReply:
        """robots.txt with retries; an error is a reply too."""
        error = ""
        for attempt in range(self._config.max_attempts):
            if attempt:
                await asyncio.sleep(self._config.backoff_seconds * 2 ** (attempt - 1))
            try:
                reply = await self._fetch_robots_once(url)
            except FetchError as problem:
                error = str(problem)
                if not problem.again:
                    break
                continue
            if reply.status not in RETRIED_STATUSES:
                return reply
            error = f"robots.txt answers {reply.status}"
        return RobotsReply(error=error)

    async def _fetch_robots_once(self, url: str) -> RobotsReply:
        for _ in range(_ROBOTS_REDIRECTS + 1):
            target = self.vet(url, Trail())
            with network_errors():
                async with self._get(target) as response:
                    location = response.headers.get("Location", "")
                    if response.status not in _REDIRECTS or not location:
                        body = await _read_at_most(response, ROBOTS_BYTES) if response.status == 200 else b""
                        return RobotsReply(response.status, body)
            url = _joined(target.url, location)
        return RobotsReply(404)  # RFC 9309 section 2.3.1.2: after five redirects, as if there were none


def _joined(url: str, location: str) -> str:
    """Where a redirect leads; a Location that cannot be read stays as it is, and is refused as malformed."""
    try:
        return urllib.parse.urljoin(url, location)
    except ValueError:
        return location


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


def _note_response(trail: Trail, response: aiohttp.ClientResponse) -> None:
    """Write down who answered what to which request, for the archive."""
    request = response.request_info
    lines = [
        f"GET {request.url.raw_path_qs} HTTP/1.1",
        *(f"{name}: {value}" for name, value in request.headers.items()),
    ]
    trail.request_head = "\r\n".join(lines) + "\r\n\r\n"
    headers = [f"{name.decode('latin-1')}: {value.decode('latin-1')}" for name, value in response.raw_headers]
    trail.response_head = "\r\n".join([f"HTTP/1.1 {response.status} {response.reason or ''}", *headers]) + "\r\n\r\n"
    trail.status = response.status
    trail.address = response.peer if isinstance(response, PeerResponse) else ""


def retry_after(value: str, now: float) -> float:
    """Seconds to wait by a Retry-After header: a number, or a date (RFC 9110 section 10.2.3); 0 when unreadable."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return 0.0


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
