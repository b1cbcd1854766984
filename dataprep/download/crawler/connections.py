"""Connections that only ever lead to vetted addresses, whatever a name resolves to.

There are two guards. The resolver refuses a name if any of its addresses is private, and hands exactly the vetted
addresses to the connector, so a name cannot change between check and use. And no socket is created for an address
that is not public, including literal addresses in URLs. Both make a single exception: the hosts of a local site lead
to the port of its server on loopback.
"""

import asyncio
import contextlib
import functools
import itertools
import resource
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from dataprep.download.crawler.local_site import LOOPBACK, LocalServer
from dataprep.web.domains import RefusedAddressError, is_public, parse_address, refuse_private
from dataprep.web.http import ACCEPTED
from pipelines.errors import ConfigError

Lookup = Callable[[str], Awaitable[list[str]]]
"""Return the addresses of a host name; raises OSError."""

_CACHED_NAMES_SECONDS = 300
KEPT_ALIVE_SECONDS = 15.0
"""How long a connection is kept for the next request to its host, if the limit of open files allows it."""
_OTHER_FILES = 200
"""Open files beside those of the requests in flight: connections kept alive, and our own files."""
_READ_BYTES = 1 << 18
_LINE_BYTES = 16 << 10
_FIELD_BYTES = 32 << 10
_MOST_FIELDS = 200
"""Limits of a response's head: real ones contain policies of 20 kB, but a bomb must be stopped."""
_MOST_INTERIM_RESPONSES = 16


class InterimFloodError(aiohttp.ClientError):
    """A server that sends interim responses such as `100 Continue` endlessly."""


class VettedResolver(AbstractResolver):
    """Resolves names; raises RefusedAddressError if any address of a name is not public."""

    def __init__(self, server: LocalServer, lookup: Lookup | None = None) -> None:
        self._server = server
        self._lookup = lookup or system_lookup

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - the interface has it
    ) -> list[ResolveResult]:
        """Return the addresses of `host`, all vetted."""
        if host in self._server.hosts:
            return [_result(host, LOOPBACK, self._server.port)]
        addresses = await self._lookup(host)
        if not addresses:
            raise OSError(socket.EAI_NONAME, "has no address")
        for address in addresses:
            refuse_private(address, host)
        return [_result(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


async def system_lookup(host: str) -> list[str]:
    """Return the addresses of a host from the system's resolver.

    getaddrinfo blocks its thread while a name server is silent, which may take longer than the crawler waits. So each
    lookup has a separate daemon thread, which delays neither other lookups nor the end of the process.
    """
    loop = asyncio.get_running_loop()
    addresses: asyncio.Future[list[str]] = loop.create_future()
    threading.Thread(target=_look_up, args=(host, loop, addresses), name="resolver", daemon=True).start()
    return await addresses


def _look_up(host: str, loop: asyncio.AbstractEventLoop, addresses: "asyncio.Future[list[str]]") -> None:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        finish = functools.partial(addresses.set_result, list(dict.fromkeys(str(info[4][0]) for info in infos)))
    except (OSError, UnicodeError) as error:
        reason = error if isinstance(error, OSError) else OSError(str(error))
        finish = functools.partial(addresses.set_exception, reason)
    # The crawl may have ended by now, or given up on this lookup.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if addresses.done() else finish())


def _result(name: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=name, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


def make_socket(site_port: int, address_info: Any) -> socket.socket:
    """Create a socket for one address; raises RefusedAddressError unless it is public or that of the local site."""
    family, kind, protocol, _, target = address_info
    address = parse_address(target[0])
    if target[:2] != (LOOPBACK, site_port) and (address is None or not is_public(address)):
        raise RefusedAddressError(str(target[0]))
    return socket.socket(family, kind, protocol)


class PeerResponse(aiohttp.ClientResponse):
    """A response that records the address it came from: a short one has released its connection before we could ask."""

    peer = ""

    async def start(self, connection: Any) -> "PeerResponse":
        """Read the head of the response from `connection`."""
        target = connection.transport.get_extra_info("peername") if connection.transport else None
        self.peer = str(target[0]) if target else ""
        with _few_interim_responses(connection.protocol):
            await super().start(connection)
        return self


@contextlib.contextmanager
def _few_interim_responses(protocol: Any) -> Generator[None]:
    """Limit the number of heads: aiohttp reads them from a connection until one is final, however many there are."""
    read, heads = protocol.read, itertools.count()

    def counted() -> Any:
        if next(heads) > _MOST_INTERIM_RESPONSES:
            raise InterimFloodError(f"more than {_MOST_INTERIM_RESPONSES} interim responses")
        return read()

    protocol.read = counted
    try:
        yield
    finally:
        del protocol.read


def open_session(
    *,
    server: LocalServer,
    lookup: Lookup | None = None,
    user_agent: str,
    keep_alive: float = KEPT_ALIVE_SECONDS,
) -> aiohttp.ClientSession:
    """Open a session without cookies, proxies, netrc, automatic redirects or decompression; TLS is verified."""
    connector = aiohttp.TCPConnector(
        resolver=VettedResolver(server, lookup),
        socket_factory=functools.partial(make_socket, server.port),
        limit=0,  # the crawler limits connections itself
        ttl_dns_cache=_CACHED_NAMES_SECONDS,
        keepalive_timeout=keep_alive,
    )
    return aiohttp.ClientSession(
        connector=connector,
        response_class=PeerResponse,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        read_bufsize=_READ_BYTES,
        max_line_size=_LINE_BYTES,
        max_field_size=_FIELD_BYTES,
        max_headers=_MOST_FIELDS,
        headers={
            "User-Agent": user_agent,
            "Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.1",
            "Accept-Encoding": ACCEPTED,
        },
    )


def kept_alive_seconds(concurrency: int) -> float:
    """Return how many seconds connections are kept for another request: each is an open file, and those are limited.

    Sets the soft limit of open files to the hard one; raises ConfigError if even that is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # If the system allows fewer files than the hard limit says, the soft limit stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return KEPT_ALIVE_SECONDS
    if soft < concurrency + _OTHER_FILES:
        raise ConfigError(
            f"download.concurrency {concurrency}: a process may open only {soft} files here; raise the limit "
            f"(ulimit -n {concurrency + _OTHER_FILES}), or lower download.concurrency"
        )
    # Assume at most ten new connections a second for each request in flight; half of the files may be idle connections.
    return min(KEPT_ALIVE_SECONDS, soft / 2 / (10 * concurrency))
