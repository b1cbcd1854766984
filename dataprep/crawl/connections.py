"""Connections that only ever lead to vetted addresses, whatever a name resolves to and whoever asks.

Two guards: the resolver refuses a name when any of its addresses is private, and hands exactly the
vetted ones to the connector, so a name cannot change between check and use; and no socket is made
for an address that is not public, literal ones included. Both know the single exception: the hosts
of a local site lead to the port of its server on loopback.
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

from dataprep.crawl import bodies
from dataprep.crawl.addresses import RefusedAddressError, is_public, parse_address, refuse_private
from dataprep.crawl.local_site import LOOPBACK, LocalServer
from pipelines.errors import ConfigError

Lookup = Callable[[str], Awaitable[list[str]]]
"""Host name -> its addresses; raises OSError."""

_CACHED_NAMES_SECONDS = 300
KEPT_ALIVE_SECONDS = 15.0
"""How long a connection waits for the next request to its host, where there may be enough open files."""
_OTHER_FILES = 200
"""Open files beside the requests under way: connections kept alive, and our own."""
_READ_BYTES = 1 << 18
_LINE_BYTES = 16 << 10
_FIELD_BYTES = 32 << 10
_MOST_FIELDS = 200
"""Limits of a response's head: real ones have policies of 20 kB, and a bomb must end somewhere."""
_MOST_INTERIM_RESPONSES = 16


class InterimFloodError(aiohttp.ClientError):
    """A server that sends `100 Continue` and the like without end."""


class VettedResolver(AbstractResolver):
    """Resolves names; raises RefusedAddressError when any address of a name is not public."""

    def __init__(self, server: LocalServer, lookup: Lookup | None = None) -> None:
        self._server = server
        self._lookup = lookup or system_lookup

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - the interface has it
    ) -> list[ResolveResult]:
        """The addresses of `host`, all of them vetted."""
        if host in self._server.hosts:
            return [_result(host, LOOPBACK, self._server.port)]
        addresses = await self._lookup(host)
        if not addresses:
            raise OSError(socket.EAI_NONAME, "has no address")
        for address in addresses:
            refuse_private(address, host)
        return [_result(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Nothing is held."""


async def system_lookup(host: str) -> list[str]:
    """What the system's resolver says.

    getaddrinfo blocks its thread for as long as a name server is silent, longer than anyone waits for
    it: so each look-up has a thread of its own, which neither keeps others waiting nor this process.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()
    threading.Thread(target=_look_up, args=(host, loop, found), name="resolver", daemon=True).start()
    return await found


def _look_up(host: str, loop: asyncio.AbstractEventLoop, found: "asyncio.Future[list[str]]") -> None:
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        answer = functools.partial(found.set_result, list(dict.fromkeys(str(info[4][0]) for info in infos)))
    except (OSError, UnicodeError) as error:
        answer = functools.partial(found.set_exception, error if isinstance(error, OSError) else OSError(str(error)))
    # The crawl may have ended by now, or nobody waits for this answer any more.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if found.done() else answer())


def _result(name: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=name, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


def make_socket(site_port: int, address_info: Any) -> socket.socket:
    """A socket for one address to connect to; raises RefusedAddressError unless it is public or the local site."""
    family, kind, protocol, _, target = address_info
    address = parse_address(target[0])
    if target[:2] != (LOOPBACK, site_port) and (address is None or not is_public(address)):
        raise RefusedAddressError(str(target[0]))
    return socket.socket(family, kind, protocol)


class PeerResponse(aiohttp.ClientResponse):
    """A response that remembers which address it came from; a short one has given its connection back by then."""

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
    """Count the heads: aiohttp reads them from a connection until one is final, however many that takes."""
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
    """A session without cookies, proxies, netrc, automatic redirects or decompression; TLS is verified."""
    connector = aiohttp.TCPConnector(
        resolver=VettedResolver(server, lookup),
        socket_factory=functools.partial(make_socket, server.port),
        limit=0,  # the crawler limits
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
            "Accept-Encoding": bodies.ACCEPTED,
        },
    )


def kept_alive_seconds(places: int) -> float:
    """How long connections are kept for another request, each being an open file, of which there are only so many.

    Raises the soft limit of open files to the hard one; ConfigError when that is too low even so.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Where the system itself allows fewer than the hard limit says, the soft one stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return KEPT_ALIVE_SECONDS
    if soft < places + _OTHER_FILES:
        raise ConfigError(
            f"download.concurrency {places}: a process may open only {soft} files here; raise the limit "
            f"(ulimit -n {places + _OTHER_FILES}), or lower the parameter"
        )
    # A place makes ten new connections in a second, at most; half of the files may be idle ones.
    return min(KEPT_ALIVE_SECONDS, soft / 2 / (10 * places))
