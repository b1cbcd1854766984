"""The guards of connections, each on its own: the fetcher's checks are not asked here."""

import asyncio
import socket
import threading
import time
from typing import Any

import aiohttp
import pytest
import yarl

from dataprep.download.crawler import connections
from dataprep.download.crawler.connections import InterimFloodError, VettedResolver, open_session, system_lookup
from dataprep.download.crawler.local_site import LocalServer
from dataprep.web.domains import RefusedAddressError
from pipelines.errors import ConfigError
from tests.dataprep.sites import HTML, raw_server

NOWHERE = LocalServer(frozenset(), 0)
PAGE = HTML.format("hello").encode()


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines]).encode() + b"\r\n\r\n"


def get(server: LocalServer) -> bytes:
    async def main() -> bytes:
        async with open_session(server=server, user_agent="test") as session, session.get("http://raw.test/") as page:
            return await page.read()

    return asyncio.run(main())


def test_a_few_interim_responses_are_read_over_and_many_are_refused() -> None:
    page = head(f"Content-Length: {len(PAGE)}") + PAGE
    with raw_server(lambda _: head(status="103 Early Hints") * 5 + page) as server:
        assert get(server) == PAGE
    with raw_server(lambda _: head(status="100 Continue") * 1000 + page) as server, pytest.raises(InterimFloodError):
        get(server)


def test_large_heads_of_real_sites_are_read_and_endless_ones_are_not() -> None:
    policy, cookies = "x" * 20_000, [f"Set-Cookie: {i}=x" for i in range(150)]
    with raw_server(lambda _: head(f"Policy: {policy}", *cookies, "Content-Length: 0")) as server:
        assert get(server) == b""
    for lines in ([f"Policy: {'x' * 100_000}"], [f"X-{i}: y" for i in range(1000)]):
        with raw_server(lambda _, lines=lines: head(*lines)) as server, pytest.raises(aiohttp.ClientResponseError):  # type: ignore[misc]
            get(server)


def test_a_silent_name_server_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred look-ups that never end, and one that answers at once; nothing waits for the others at the end."""
    over = threading.Event()

    def getaddrinfo(host: str, *_: object, **__: object) -> list[Any]:
        if host.startswith("silent"):
            over.wait(600)
        if host == "unknown.test":
            raise socket.gaierror(socket.EAI_NONAME, "nobody")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 0))] * 2

    async def main() -> list[str]:
        silent = [asyncio.create_task(system_lookup(f"silent{i}.test")) for i in range(100)]
        await asyncio.sleep(0)
        with pytest.raises(socket.gaierror):
            await system_lookup("unknown.test")
        found = await system_lookup("quick.test")
        for task in silent:
            task.cancel()
        return found

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    started = time.monotonic()
    try:
        assert asyncio.run(main()) == ["8.8.8.8"]
        assert time.monotonic() - started < 120.0, "and not 600 s"
    finally:
        over.set()


def bare_get(url: str) -> None:
    async def main() -> None:
        target = yarl.URL(url, encoded=True)
        async with open_session(server=NOWHERE, user_agent="test") as opened, opened.get(target) as response:
            await response.read()

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "10.0.0.1", "0.0.0.0"])
def test_no_socket_is_made_for_a_private_address(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(asyncio.BaseEventLoop, "sock_connect", lambda *arguments: made.append(arguments), raising=False)
    with pytest.raises(aiohttp.ClientConnectorError) as caught:
        bare_get(f"http://{host}/")
    assert isinstance(caught.value.os_error, RefusedAddressError)
    assert made == []


def test_the_local_site_is_one_port_and_nothing_else_on_loopback() -> None:
    """A second server on loopback is not reachable, by address or under the name of the site."""

    def answer(request: bytes) -> bytes:
        return head("Content-Type: text/html", "Content-Length: 2") + b"hi"

    async def main(site: LocalServer, other: LocalServer) -> None:
        async with open_session(server=site, user_agent="test") as session:
            async with session.get("http://raw.test/") as response:
                assert await response.read() == b"hi"
            # the name leads to the site's port, whichever port is asked for
            async with session.get(f"http://raw.test:{other.port}/") as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientConnectorError) as caught:
                await session.get(f"http://127.0.0.1:{other.port}/")
            assert isinstance(caught.value.os_error, RefusedAddressError)

    with raw_server(answer) as site, raw_server(answer) as other:
        asyncio.run(main(site, other))


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["2606:4700:4700::1111", "::1"], ["64:ff9b::a00:1"]]
)
def test_a_name_with_any_private_address_is_refused(addresses: list[str]) -> None:
    async def lookup(name: str) -> list[str]:
        return addresses

    async def main() -> None:
        with pytest.raises(RefusedAddressError, match=r"for inside\.test"):
            await VettedResolver(NOWHERE, lookup).resolve("inside.test", 80)

    asyncio.run(main())


def test_the_vetted_addresses_are_the_ones_connected_to() -> None:
    """A name that is public when checked and private when used (rebinding) is looked up once only."""
    answers = [["8.8.8.8"], ["127.0.0.1"]]
    asked: list[str] = []
    connected: list[Any] = []

    async def lookup(name: str) -> list[str]:
        asked.append(name)
        return answers[len(asked) - 1]

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def connect(sock: socket.socket, address: Any) -> None:
            connected.append(address)
            raise OSError(111, "refused by the test")

        loop.sock_connect = connect  # type: ignore[method-assign]
        async with open_session(server=NOWHERE, user_agent="test", lookup=lookup) as session:
            with pytest.raises(aiohttp.ClientConnectorError, match="refused by the test"):
                await session.get("http://rebinding.test/")

    asyncio.run(main())
    assert asked == ["rebinding.test"]
    assert connected == [("8.8.8.8", 80)]


def test_too_few_open_files_are_one_clear_line_and_few_shorten_the_life_of_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(connections.resource, "setrlimit", lambda _, pair: limits.append(pair))
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (256, 1024))
    assert connections.kept_alive_seconds(64) == 1024 / 2 / 640
    assert limits == [(1024, 1024)]
    with pytest.raises(ConfigError, match=r"concurrency 1000: .* only 1024 files here; .* \(ulimit -n 1200\)"):
        connections.kept_alive_seconds(1000)
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _: (10**6, 10**6))
    assert connections.kept_alive_seconds(64) == 15.0
