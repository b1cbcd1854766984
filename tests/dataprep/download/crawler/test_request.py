"""One request to servers that misbehave: its outcome, and why there is no page."""

import asyncio
import gzip
from typing import Any

import pytest

from dataprep.download.crawler.request import FetchError, retry_after
from dataprep.download.crawler.robots import ROBOTS_BYTES
from dataprep.download.outcomes import Packed
from tests.dataprep.sites import HTML, Answer, by_url, crawled, crawling, raw_server, records

URL = "http://raw.test/page"
PAGE = HTML.format("hello").encode()


def head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines]).encode() + b"\r\n\r\n"


def fetch(answer: Answer, url: str = URL, **config: Any) -> Packed:
    """What becomes of `url` at a server that sends what `answer` gives for the request head."""
    with raw_server(answer) as server:
        [packed] = crawling([url], server, **{"robots": False, "max_attempts": 2, **config})
    return packed


def page(answer: Answer, url: str = URL, **config: Any) -> bytes:
    """The page that comes."""
    packed = fetch(answer, url, **config)
    assert packed.outcome.rule == "", packed.outcome.value
    return records(packed)["response"].partition(b"\r\n\r\n")[2]


def test_a_page_and_what_was_said() -> None:
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return head("Content-Type: text/html", "X-Odd: \xe9", f"Content-Length: {len(PAGE)}") + PAGE

    packed = fetch(answer, "http://raw.test/a%20b?q=%C3%A9&x=%2F#part")
    outcome, said = packed.outcome, records(packed)
    assert outcome.final_url == "http://raw.test/a%20b?q=%C3%A9&x=%2F"
    assert (outcome.status, outcome.address) == (200, "127.0.0.1")
    assert said["response"].startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nX-Odd: \xc3\xa9\r\n")
    assert said["response"].endswith(b"\r\n\r\n" + PAGE)
    assert said["request"] == requests[0], "the archive holds the request as it was sent"
    assert b"GET /a%20b?q=%C3%A9&x=%2F HTTP/1.1\r\nHost: raw.test\r\n" in requests[0]
    assert b"User-Agent: millrace/0.1 (" in requests[0]
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
    ("overload", head("Content-Length: 0", "Retry-After: 1", status="503 Busy"), "http_status", "503", True),
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
    outcome = fetch(lambda _: sent, max_body_bytes=100_000).outcome
    assert (outcome.rule, outcome.attempts) == (rule, 2 if again else 1)
    assert outcome.transient is again
    assert value in outcome.value
    assert outcome.value


def test_a_page_without_a_type_is_told_by_its_bytes() -> None:
    assert page(lambda _: head("Connection: close") + PAGE) == PAGE


def test_compressed_and_chunked_pages_arrive_as_they_are() -> None:
    packed = gzip.compress(PAGE)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (packed[:11], packed[11:])) + b"0\r\n\r\n"
    sent = head("Content-Type: text/html", "Content-Encoding: gzip", "Transfer-Encoding: chunked") + chunks
    assert page(lambda _: sent) == PAGE


def test_a_page_that_grows_too_much_is_a_bomb_below_the_limit_too() -> None:
    def sent(body: bytes) -> bytes:
        packed = gzip.compress(body)
        return head("Content-Type: text/html", "Content-Encoding: gzip", f"Content-Length: {len(packed)}") + packed

    bomb = sent(PAGE + b" " * 3_000_000)
    outcome = fetch(lambda _: bomb).outcome
    assert (outcome.rule, outcome.transient) == ("decompression_ratio", False)
    assert "3000082 bytes decoded, from" in outcome.value
    assert len(page(lambda _: bomb, max_expansion=2000)) == 3_000_082
    assert len(page(lambda _: sent(PAGE + b" " * 90_000))) == 90_082, "a small page may be all blanks"


def test_a_redirect_drops_credentials_and_fragment() -> None:
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        if b"GET /page" in request:
            return head("Location: http://user:secret@raw.test/next#part", "Content-Length: 0", status="301 Moved")
        return head("Content-Type: text/html", "Set-Cookie: a=b", f"Content-Length: {len(PAGE)}") + PAGE

    packed = fetch(answer)
    assert records(packed)["response"].endswith(PAGE)
    assert (packed.outcome.final_url, packed.outcome.redirects) == ("http://raw.test/next", (f"301 {URL}",))
    assert b"uthorization" not in requests[1]
    assert b"ookie" not in requests[1]


def test_silence_ends_at_the_read_limit_and_a_trickle_at_the_total() -> None:
    async def silence(request: bytes) -> bytes:
        await asyncio.sleep(5)
        return b""

    outcome = fetch(silence, read_seconds=0.1).outcome
    assert (outcome.rule, outcome.attempts) == ("timeout", 2)
    outcome = fetch(silence, read_seconds=5.0, total_seconds=0.1).outcome
    assert (outcome.rule, outcome.value) == ("timeout", "no whole answer in the total time")


@pytest.mark.parametrize("packed", [False, True])
def test_of_a_robots_txt_that_is_too_long_the_first_part_counts(packed: bool) -> None:
    text = b"User-agent: *\nDisallow: /private/\n" + b"# padding\n" * (ROBOTS_BYTES // 5)
    body = gzip.compress(text) if packed else text
    lines = [f"Content-Length: {len(body)}", *(["Content-Encoding: gzip"] if packed else [])]

    def answer(request: bytes) -> bytes:
        if b"GET /robots.txt" in request:
            return head(*lines) + body
        return head("Content-Type: text/html", f"Content-Length: {len(PAGE)}") + PAGE

    with raw_server(answer) as server:
        found = by_url(crawled(["http://raw.test/private/a", "http://raw.test/a"], server))
    assert found["http://raw.test/private/a"].rule == "robots_denied"
    assert found["http://raw.test/a"].rule == ""


def test_the_session_takes_nothing_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return head("Content-Type: text/html", f"Content-Length: {len(PAGE)}") + PAGE

    assert page(answer) == PAGE
    assert requests[0].startswith(b"GET /page HTTP/1.1")


def test_a_value_is_one_short_line() -> None:
    assert FetchError("rule", "a\n b\t" + "x" * 1000).value == "a b " + "x" * 296


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
