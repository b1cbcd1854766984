"""Connections that only ever lead to vetted addresses, whatever a name resolves to and whoever asks.

Two guards: the resolver refuses a name when any of its addresses is private, and hands exactly the
vetted ones to the connector, so a name cannot change between check and use; and no socket is made
for an address that is not public, literal ones included. Both know the single exception: the hosts
of a local site lead to the port of its server on loopback.
"""

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from dataprep.crawl import bodies
from dataprep.crawl.addresses import RefusedAddressError, is_public, parse_address, refuse_private
from dataprep.crawl.local_site import LOOPBACK

Lookup = Callable[[str], Awaitable[list[str]]]
"""Host name -> its addresses; raises OSError."""

# getaddrinfo blocks a thread for as long as a name server is silent; others must not wait for it.
_LOOKUP_THREADS = 64


class VettedResolver(AbstractResolver):
    """Resolves names; raises RefusedAddressError when any address of a name is not public."""

    def __init__(self, site_hosts: frozenset[str], site_port: int, lookup: Lookup | None = None) -> None:
        self._site_hosts = site_hosts
        self._site_port = site_port
        self._threads = ThreadPoolExecutor(_LOOKUP_THREADS, thread_name_prefix="resolver")
        self._lookup = lookup or self._system_lookup

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - the interface has it
    ) -> list[ResolveResult]:
        """The addresses of `host`, all of them vetted."""
        if host in self._site_hosts:
            return [_result(host, LOOPBACK, self._site_port)]
        addresses = await self._lookup(host)
        if not addresses:
            raise OSError(socket.EAI_NONAME, "has no address")
        for address in addresses:
            refuse_private(address, host)
        return [_result(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Wait for nobody: a thread may hang on a silent name server."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _system_lookup(self, host: str) -> list[str]:
        lookup = functools.partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, lookup)
        return list(dict.fromkeys(str(info[4][0]) for info in found))


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
        await super().start(connection)
        return self


def open_session(
    *, site_hosts: frozenset[str] = frozenset(), site_port: int = 0, lookup: Lookup | None = None, user_agent: str
) -> aiohttp.ClientSession:
    """A session without cookies, proxies, netrc, automatic redirects or decompression; TLS is verified."""
    connector = aiohttp.TCPConnector(
        resolver=VettedResolver(site_hosts, site_port, lookup),
        socket_factory=functools.partial(make_socket, site_port),
        limit=0,  # the frontier limits
        ttl_dns_cache=300,
    )
    return aiohttp.ClientSession(
        connector=connector,
        response_class=PeerResponse,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        headers={
            "User-Agent": user_agent,
            "Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.1",
            "Accept-Encoding": bodies.ACCEPTED,
        },
    )
