"""One attempt against servers that misbehave, and the guards that no request gets past."""

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
import yarl

from dataprep.crawl.addresses import RefusedAddressError
from dataprep.crawl.connections import VettedResolver, open_session
from dataprep.crawl.fetcher import Fetcher, FetchError, Trail, retry_after
from dataprep.crawl.robots import ROBOTS_BYTES, Rules
from tests.dataprep.sites import HTML, quick, raw_server

URL = "http://raw.test/page"
PAGE = HTML.format("hello").encode()


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines]).encode() + b"\r\n\r\n"


def fetch(answer: Callable[[bytes], Awaitable[bytes] | bytes], url: str = URL, **config: Any) -> tuple[bytes, Trail]:
    """Fetch `url` from a server that sends what `answer` gives for the request head."""
    trail = Trail()

    async def main() -> bytes:
        async with raw_server(answer) as port:
            hosts = frozenset({"raw.test"})
            async with open_session(site_hosts=hosts, site_port=port, user_agent="millrace/0 (test)") as session:
                return await Fetcher(quick(robots=False, **config), session, hosts).fetch(url, trail)

    return asyncio.run(main()), trail


def test_a_page_and_its_trail() -> None:
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return head("Content-Type: text/html", "X-Odd: \xe9", f"Content-Length: {len(PAGE)}") + PAGE

    body, trail = fetch(answer, "http://raw.test/a%20b?q=%C3%A9&x=%2F#part")
    assert body == PAGE
    assert trail.final_url == "http://raw.test/a%20b?q=%C3%A9&x=%2F"
    assert (trail.status, trail.address) == (200, "127.0.0.1")
    assert trail.response_head.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Odd: \xc3\xa9\r\n")
    assert trail.request_head.encode() == requests[0], "the archive holds the request as it was sent"
    assert b"GET /a%20b?q=%C3%A9&x=%2F HTTP/1.1\r\nHost: raw.test\r\n" in requests[0]
    assert b"User-Agent: millrace/0 (test)\r\n" in requests[0]
    assert b"Accept-Encoding: gzip, deflate\r\n" in requests[0]


FAILURES: list[tuple[str, bytes, str, str, bool]] = [
    # name, what the server sends, rule, part of the value, worth another attempt
    ("nothing", b"", "connection_error", "Server disconnected", True),
    ("no HTTP", b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "invalid_http", "", True),
    ("a broken status", b"HTTP/1.1 abc Not a number\r\n\r\n", "invalid_http", "", True),
    ("an endless header", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, "invalid_http", "", True),
    ("half a header", b"HTTP/1.1 200 OK\r\nContent-", "connection_error", "", True),
    (
        "less than announced",
        head("Content-Type: text/html", "Content-Length: 1000") + PAGE,
        "truncated_body",
        "",
        True,
    ),
    (
        "more than announced",
        head("Content-Type: text/html", f"Content-Length: {len(PAGE)}") + PAGE + b"and more",
        "invalid_http",
        "",
        True,
    ),
    (
        "a chunk cut off",
        head("Content-Type: text/html", "Transfer-Encoding: chunked") + b"ff\r\n<html>",
        "truncated_body",
        "",
        True,
    ),
    (
        "a chunk of no size",
        head("Content-Type: text/html", "Transfer-Encoding: chunked") + b"zz\r\n<html>\r\n0\r\n\r\n",
        "invalid_http",
        "",
        True,
    ),
    (
        "damaged gzip",
        head("Content-Type: text/html", "Content-Encoding: gzip", "Connection: close") + b"no gzip",
        "bad_encoding",
        "gzip",
        False,
    ),
    (
        "cut gzip",
        head("Content-Type: text/html", "Content-Encoding: gzip", "Connection: close") + gzip.compress(PAGE)[:-9],
        "bad_encoding",
        "cut off",
        False,
    ),
    (
        "brotli unasked",
        head("Content-Type: text/html", "Content-Encoding: br", "Content-Length: 3") + b"abc",
        "bad_encoding",
        "br",
        False,
    ),
    (
        "a bomb",
        head("Content-Type: text/html", "Content-Encoding: gzip", "Connection: close")
        + gzip.compress(b"\0" * 3_000_000),
        "too_large",
        "decoded",
        False,
    ),
    (
        "too much announced",
        head("Content-Type: text/html", "Connection: close") + b"x" * 150_000,
        "too_large",
        "more than 100000 bytes sent",
        False,
    ),
    (
        "JSON",
        head("Content-Type: application/json", "Content-Length: 2") + b"{}",
        "not_html",
        "application/json",
        False,
    ),
    ("a PDF", head("Content-Type: text/html", "Content-Length: 8") + b"%PDF-1.7", "not_html", "PDF", False),
    ("nothing found", head("Content-Length: 0", status="404 Not Found"), "http_status", "404", False),
    ("overload", head("Content-Length: 0", "Retry-After: 7", status="503 Busy"), "http_status", "503", True),
    ("no content", head(status="204 No Content"), "http_status", "204", False),
    ("a redirect to nowhere", head("Content-Length: 0", status="302 Found"), "http_status", "302", False),
    (
        "a redirect to another scheme",
        head("Location: ftp://raw.test/", "Content-Length: 0", status="302 Found"),
        "malformed",
        "ftp://raw.test/",
        False,
    ),
    (
        "a redirect to rubbish",
        head("Location: http://[::1", "Content-Length: 0", status="302 Found"),
        "malformed",
        "",
        False,
    ),
    (
        "a redirect to a port",
        head("Location: http://raw.test:6379/", "Content-Length: 0", status="302 Found"),
        "port_not_allowed",
        "6379",
        False,
    ),
    (
        "a redirect to itself",
        head("Location: /page", "Content-Length: 0", status="302 Found"),
        "redirect_loop",
        URL,
        False,
    ),
]


@pytest.mark.parametrize(
    ("sent", "rule", "value", "again"), [case[1:] for case in FAILURES], ids=[case[0] for case in FAILURES]
)
def test_every_failure_is_a_rule_with_a_value(sent: bytes, rule: str, value: str, again: bool) -> None:
    with pytest.raises(FetchError) as caught:
        fetch(lambda _: sent, max_body_bytes=100_000)
    error = caught.value
    assert (error.rule, error.again) == (rule, again)
    assert value in error.value
    assert error.value


def test_a_page_without_a_type_is_told_by_its_bytes() -> None:
    assert fetch(lambda _: head("Connection: close") + PAGE)[0] == PAGE


def test_compressed_and_chunked_pages_arrive_as_they_are() -> None:
    packed = gzip.compress(PAGE)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (packed[:11], packed[11:])) + b"0\r\n\r\n"
    sent = head("Content-Type: text/html", "Content-Encoding: gzip", "Transfer-Encoding: chunked") + chunks
    assert fetch(lambda _: sent)[0] == PAGE


def test_a_redirect_drops_credentials_and_fragment() -> None:
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        if b"GET /page" in request:
            return head("Location: http://user:secret@raw.test/next#part", "Content-Length: 0", status="301 Moved")
        return head("Content-Type: text/html", "Set-Cookie: a=b", f"Content-Length: {len(PAGE)}") + PAGE

    body, trail = fetch(answer)
    assert body == PAGE
    assert (trail.final_url, trail.redirects) == ("http://raw.test/next", [f"301 {URL}"])
    assert b"uthorization" not in requests[1]
    assert b"ookie" not in requests[1]


def test_silence_ends_at_the_read_limit_and_a_trickle_at_the_total() -> None:
    async def silence(request: bytes) -> bytes:
        await asyncio.sleep(5)
        return b""

    with pytest.raises(FetchError, match="timeout") as caught:
        fetch(silence, read_seconds=0.1)
    assert caught.value.again
    with pytest.raises(FetchError, match="timeout: no whole answer in the total time"):
        fetch(silence, read_seconds=5.0, total_seconds=0.1)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 120 ", 120.0),
        ("", 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("Thu, 01 Jan 2026 00:01:30 GMT", 90.0),
        ("Thu, 01 Jan 2015 00:00:00 GMT", 0.0),
        ("9" * 400, 999_999_999.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float) -> None:
    assert retry_after(value, 1767225600.0) == seconds


# ---- the guards, each on its own: the fetcher's checks are not asked here


def bare_get(url: str, **session: Any) -> None:
    async def main() -> None:
        target = yarl.URL(url, encoded=True)
        async with open_session(user_agent="test", **session) as opened, opened.get(target) as response:
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

    async def main() -> None:
        def answer(request: bytes) -> bytes:
            return head("Content-Type: text/html", "Content-Length: 2") + b"hi"

        hosts = frozenset({"raw.test"})
        async with (
            raw_server(answer) as site_port,
            raw_server(answer) as other_port,
            open_session(site_hosts=hosts, site_port=site_port, user_agent="test") as session,
        ):
            async with session.get("http://raw.test/") as response:
                assert await response.read() == b"hi"
            # the name leads to the site's port, whichever port is asked for
            async with session.get(f"http://raw.test:{other_port}/") as response:
                assert response.status == 200
            with pytest.raises(aiohttp.ClientConnectorError) as caught:
                await session.get(f"http://127.0.0.1:{other_port}/")
            assert isinstance(caught.value.os_error, RefusedAddressError)

    asyncio.run(main())


@pytest.mark.parametrize(
    "addresses", [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["2606:4700:4700::1111", "::1"], ["64:ff9b::a00:1"]]
)
def test_a_name_with_any_private_address_is_refused(addresses: list[str]) -> None:
    async def lookup(name: str) -> list[str]:
        return addresses

    async def main() -> None:
        with pytest.raises(RefusedAddressError, match=r"for inside\.test"):
            await VettedResolver(frozenset(), 0, lookup).resolve("inside.test", 80)

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
        async with open_session(user_agent="test", lookup=lookup) as session:
            with pytest.raises(aiohttp.ClientConnectorError, match="refused by the test"):
                await session.get("http://rebinding.test/")

    asyncio.run(main())
    assert asked == ["rebinding.test"]
    assert connected == [("8.8.8.8", 80)]


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_robots_txt_that_is_too_long_the_first_part_counts(packed: bool) -> None:
    text = b"User-agent: *\nDisallow: /private/\n" + b"# padding\n" * (ROBOTS_BYTES // 5)
    body = gzip.compress(text) if packed else text
    lines = [f"Content-Length: {len(body)}", *(["Content-Encoding: gzip"] if packed else [])]

    async def main() -> Rules:
        async with raw_server(lambda _: head(*lines) + body) as port:
            hosts = frozenset({"raw.test"})
            async with open_session(site_hosts=hosts, site_port=port, user_agent="test") as session:
                return await Fetcher(quick(), session, hosts).rules("http://raw.test")

    rules = asyncio.run(main())
    assert not rules.allow("http://raw.test/private/a", "test")
    assert rules.allow("http://raw.test/a", "test")


def test_the_session_takes_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return head("Content-Type: text/html", f"Content-Length: {len(PAGE)}") + PAGE

    assert fetch(answer)[0] == PAGE
    assert requests[0].startswith(b"GET /page HTTP/1.1")
