"""A web of hostile servers, in a process of its own: raw sockets that do what no honest server does.

    python -m tests.dataprep.hostile_sites

prints the ports of its servers as JSON and serves until it is killed. `CASES` has a host for each
misdeed (`<name>.hostile.test`), the URL to ask for, and the rules that a crawler may end it with.
"""

import asyncio
import contextlib
import gzip
import json
import socket
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

Writer = asyncio.StreamWriter
Behaviour = Callable[[Writer, str], Awaitable[None]]
"""What a server does on a connection once it has read a request for a path."""

DOMAIN = "hostile.test"
LIMIT = 500_000
"""The largest page that the crawler of the test accepts, in bytes."""
HTML = b"<!doctype html><html><head><title>T</title></head><body><p>Good.</p></body></html>"
PAGE = frozenset({""})
MB = 1_000_000


def head(*lines: str, status: str = "200 OK") -> bytes:
    """Status line and headers."""
    return "\r\n".join([f"HTTP/1.1 {status}", *lines]).encode("latin-1") + b"\r\n\r\n"


def page(*lines: str, body: bytes = HTML, kind: str = "text/html") -> bytes:
    """A whole answer."""
    return head(f"Content-Type: {kind}", f"Content-Length: {len(body)}", *lines) + body


def chunked(*lines: str) -> bytes:
    """The head of an answer in chunks."""
    return head("Content-Type: text/html", "Transfer-Encoding: chunked", *lines)


def redirect(location: str) -> bytes:
    """The answer that sends a client elsewhere."""
    return head(f"Location: {location}", "Content-Length: 0", status="302 Found")


NONE = head("Content-Length: 0", status="404 Not Found")

# ---- what servers do


async def send(writer: Writer, path: str, *, data: bytes) -> None:
    """Send these bytes and close."""
    writer.write(data)


async def endless(writer: Writer, path: str, *, start: bytes = b"", data: bytes, pause: float = 0.0) -> None:
    """Send the same bytes again and again, for as long as somebody listens."""
    writer.write(start)
    while True:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(pause)


async def drip(writer: Writer, path: str, *, start: bytes = b"", data: bytes) -> None:
    """Send a beginning, then byte by byte, each soon enough to keep the client waiting for the next."""
    writer.write(start)
    for byte in data:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.1)


async def silence(writer: Writer, path: str, *, start: bytes = b"") -> None:
    """Send a beginning, then nothing more."""
    writer.write(start)
    await asyncio.sleep(3600)


async def reset(writer: Writer, path: str, *, start: bytes = b"") -> None:
    """Send a beginning, then break the connection off (RST)."""
    writer.write(start)
    await writer.drain()
    await asyncio.sleep(0.05)
    abort(writer)


def abort(writer: Writer) -> None:
    """Close with RST in place of FIN."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def endless_gzip(writer: Writer, path: str) -> None:
    """One gzip member without end."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    writer.write(head("Content-Type: text/html", "Content-Encoding: gzip"))
    while True:
        writer.write(packer.compress(b"<p>" * 10_000) + packer.flush(zlib.Z_SYNC_FLUSH))
        await writer.drain()
        await asyncio.sleep(0)


async def nested_tags(writer: Writer, path: str) -> None:
    """100 MB of tags in tags."""
    writer.write(head("Content-Type: text/html", f"Content-Length: {100 * MB}"))
    for _ in range(100):
        writer.write(b"<div>" * (MB // 5))
        await writer.drain()


async def chain(writer: Writer, path: str, *, length: int) -> None:
    """`/0` leads to the page in so many steps."""
    step = int(path.strip("/"))
    writer.write(redirect(f"/{step + 1}") if step < length else page())


async def second_answer(writer: Writer, path: str) -> None:
    """Two answers to the first request: the second must not be taken for the next URL's."""
    writer.write(page(body=b"<html>smuggled</html>") * 2 if path == "/first" else page())


async def redirect_in_bytes(writer: Writer, path: str, *, name: bytes) -> None:
    """A Location with bytes that no URL may hold, as old servers send it; they are meant as they are."""
    percent = "".join(f"%{byte:02X}" for byte in name)
    writer.write(page() if path == f"/{percent}" else NONE if path != "/" else redirect(f"/{name.decode('latin-1')}"))


async def two_targets(writer: Writer, path: str) -> None:
    """`/a` leads to `/b` and back."""
    writer.write(redirect("/b" if path == "/a" else "/a"))


# ---- what they do it with


def bomb(size: int, wbits: int) -> bytes:
    """A megabyte of zeros, so many times, compressed; every worker of a test run packs them."""
    packer = zlib.compressobj(1, zlib.DEFLATED, wbits)
    return b"".join(packer.compress(bytes(MB)) for _ in range(size)) + packer.flush()


def encoded(encoding: str, body: bytes) -> Behaviour:
    """An answer with a Content-Encoding."""
    return partial(send, data=page(f"Content-Encoding: {encoding}", body=body))


PACKED = gzip.compress(HTML, mtime=0)
ZIP, ZLIB, RAW = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS

PRIVATE = [
    *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1", "127.0.0.1."),
    *("%31%32%37.0.0.1", "１２７.０.０.１", "127。0。0。1", "①②⑦.⓪.⓪.①", "user:word@127.0.0.1", "127.0.0.1:80"),
    *("0.0.0.0", "0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.0.8"),
    *("224.0.0.1", "255.255.255.255", "198.18.0.1", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"),
    *("[::127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[fd00::1]", "[fe80::1]", "[fe80::1%25eth0]"),
    *("[ff02::1]", "[0:0:0:0:0:0:0:1]", "localhost", "LOCALHOST.", "private-v4.hostile.test"),
]
REFUSED = {
    **{f"http://{host}/secret": frozenset({"private_address", "malformed"}) for host in PRIVATE},
    "//127.0.0.1/secret": frozenset({"private_address"}),
    "https://127.0.0.1/secret": frozenset({"private_address"}),
    "http://127.0.0.1#@good0.hostile.test/": frozenset({"private_address", "malformed"}),
    "http://good0.hostile.test\\@127.0.0.1/": frozenset({"private_address", "malformed"}),
    "http:\\\\127.0.0.1\\": frozenset({"private_address", "malformed", "http_status"}),
    "http:127.0.0.1/": frozenset({"private_address", "malformed", "http_status"}),
    "file:///etc/passwd": frozenset({"malformed"}),
    "ftp://good0.hostile.test/": frozenset({"malformed"}),
    "gopher://127.0.0.1:6379/_INFO": frozenset({"malformed"}),
    "javascript:alert(1)": frozenset({"malformed"}),
    "data:text/html,<html>": frozenset({"malformed"}),
    "http://good0.hostile.test:22/": frozenset({"port_not_allowed"}),
    "http://good0.hostile.test:8080/": frozenset({"port_not_allowed"}),
    "http://127.0.0.1:6379/": frozenset({"port_not_allowed", "private_address"}),
    "http://good0.hostile.test:0/": frozenset({"malformed", "port_not_allowed"}),
    "http://good0.hostile.test:99999/": frozenset({"malformed", "port_not_allowed"}),
    "http://[::1": frozenset({"malformed"}),
    "http://": frozenset({"malformed", "redirect_loop"}),
    "http://a..b/": frozenset({"malformed"}),
    f"http://{'a' * 64}.test/": frozenset({"malformed"}),
}
"""Where `refused.hostile.test/<number>` leads, and what must become of it."""


async def refused(writer: Writer, path: str) -> None:
    """A redirect to one of the places that nobody may be sent to."""
    if not path[1:].isdigit():
        writer.write(NONE)
        return
    location = list(REFUSED)[int(path[1:])]
    writer.write(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + location.encode() + b"\r\n\r\n")


# ---- the cases


@dataclass(frozen=True)
class Case:
    """One misdeed: what the server does, and the rules of which the crawler may choose."""

    behave: Behaviour
    rules: frozenset[str]
    paths: tuple[str, ...] = ("/",)
    robots: Behaviour = field(default=partial(send, data=NONE))


def case(behave: Behaviour | bytes, *rules: str, paths: tuple[str, ...] = ("/",)) -> Case:
    """A host whose pages are bad; without rules it must give a page all the same."""
    return Case(partial(send, data=behave) if isinstance(behave, bytes) else behave, frozenset(rules) or PAGE, paths)


def manners(robots: Behaviour | bytes, *rules: str) -> Case:
    """A host whose robots.txt is bad, and whose page is good."""
    asked = partial(send, data=robots) if isinstance(robots, bytes) else robots
    return Case(partial(send, data=page()), frozenset(rules) or PAGE, ("/page",), asked)


def robots_txt(body: bytes, *lines: str) -> bytes:
    """A robots.txt."""
    return page(*lines, body=body, kind="text/plain")


DENY = b"User-agent: *\nDisallow: /page\n"
CUT = ("truncated_body", "connection_error")

BODIES = {
    "endless": case(partial(endless, start=head("Content-Type: text/html"), data=b"<p>x</p>" * 1000), "too_large"),
    "endless-chunks": case(
        partial(endless, start=chunked(), data=b"1000\r\n" + b"<p>x</p>" * 512 + b"\r\n"), "too_large"
    ),
    "endless-small-chunks": case(
        partial(endless, start=chunked(), data=b"1\r\nx\r\n" * 5000), "too_large", "timeout", "invalid_http"
    ),
    "endless-gzip": case(endless_gzip, "too_large"),
    "nested-tags": case(nested_tags, "too_large"),
    "nested-tags-below-the-limit": case(page(body=b"<html>" + b"<div>" * (LIMIT // 5 - 10))),
    "announced-too-large": case(
        partial(silence, start=head("Content-Type: text/html", "Content-Length: 99999999")), "too_large", "timeout"
    ),
    "drip": case(partial(drip, data=page()), "timeout"),
    "drip-body": case(partial(drip, start=head("Content-Type: text/html"), data=HTML), "timeout"),
    "gzip-bomb": case(encoded("gzip", bomb(100, ZIP)), "too_large"),
    "zlib-bomb": case(encoded("deflate", bomb(100, ZLIB)), "too_large"),
    "deflate-bomb": case(encoded("deflate", bomb(100, RAW)), "too_large"),
    "gzip-members-bomb": case(encoded("gzip", gzip.compress(bytes(100_000)) * 1000), "too_large"),
    "nested-gzip": case(encoded("gzip", gzip.compress(PACKED)), "not_html"),
    "gzip-twice": case(encoded("gzip, gzip", gzip.compress(PACKED)), "bad_encoding"),
    "gzip-cut": case(encoded("gzip", PACKED[:-9]), "bad_encoding"),
    "gzip-wrong-crc": case(encoded("gzip", PACKED[:-8] + b"abcd" + PACKED[-4:]), "bad_encoding"),
    "gzip-wrong-size": case(encoded("gzip", PACKED[:-4] + b"abcd"), "bad_encoding"),
    "gzip-damaged": case(encoded("gzip", PACKED[:20] + b"\xff" * 20 + PACKED[40:]), "bad_encoding"),
    "gzip-then-garbage": case(encoded("gzip", PACKED + b"garbage")),
    "gzip-that-is-none": case(encoded("gzip", HTML), "bad_encoding"),
    "encoding-unknown": case(encoded("br", HTML), "bad_encoding"),
    "pdf-as-html": case(page(body=b"%PDF-1.7 \n" * 100), "not_html"),
    "a-record-in-the-body": case(page(body=HTML + b"\r\n\r\nWARC/1.1\r\nWARC-Type: response\r\n\r\n")),
}
LENGTHS = {
    "length-short": case(page(body=HTML)[:-20].replace(b"Length: 8", b"Length: 1"), "invalid_http", ""),
    "length-long": case(head("Content-Type: text/html", "Content-Length: 5000") + HTML, *CUT),
    "length-long-and-open": case(
        partial(silence, start=head("Content-Type: text/html", "Content-Length: 5000") + HTML), "timeout"
    ),
    "length-negative": case(head("Content-Type: text/html", "Content-Length: -5") + HTML, "invalid_http"),
    "length-word": case(head("Content-Type: text/html", "Content-Length: many") + HTML, "invalid_http"),
    "length-signed": case(head("Content-Type: text/html", f"Content-Length: +{len(HTML)}") + HTML, "invalid_http"),
    "length-huge": case(
        head("Content-Type: text/html", f"Content-Length: {10**30}") + HTML, "invalid_http", "too_large", *CUT
    ),
    "length-twice": case(
        head("Content-Type: text/html", "Content-Length: 5", "Content-Length: 80") + HTML, "invalid_http"
    ),
    "length-and-chunks": case(chunked("Content-Length: 5") + b"5\r\n<html\r\n0\r\n\r\n", "invalid_http", ""),
    "second-answer": case(second_answer, "invalid_http", "", paths=("/first", "/next", "/last")),
}
REDIRECTS = {
    "loop": case(redirect("/"), "redirect_loop"),
    "loop-of-two": case(two_targets, "redirect_loop", paths=("/a",)),
    "chain-of-five": case(partial(chain, length=5), paths=("/0",)),
    "chain-of-six": case(partial(chain, length=6), "too_many_redirects", paths=("/0",)),
    "chain-without-end": case(partial(chain, length=10**9), "too_many_redirects", paths=("/0",)),
    "redirect-with-endless-body": case(
        partial(endless, start=head("Location: http://good0.hostile.test/0", status="301 Moved"), data=b"x" * 10_000)
    ),
    "redirect-nowhere": case(redirect(""), "http_status"),
    "redirect-far": case(redirect("/" + "x" * 100_000), "invalid_http"),
    "redirect-with-nul": case(redirect("/a\0b"), "invalid_http", "malformed"),
    "redirect-in-utf-8": case(partial(redirect_in_bytes, name="é".encode())),
    "redirect-in-latin-1": case(partial(redirect_in_bytes, name="é".encode("latin-1"))),
}
HTTP = {
    "nothing": case(b"", "connection_error"),
    "garbage": case(bytes(range(256)) * 20, "invalid_http"),
    "ssh": case(b"SSH-2.0-OpenSSH_9.6\r\n", "invalid_http", "connection_error"),
    "http-0.9": case(HTML, "invalid_http"),
    "icecast": case(b"ICY 200 OK\r\nContent-Type: text/html\r\n\r\n" + HTML, "invalid_http"),
    "http-9": case(page().replace(b"HTTP/1.1", b"HTTP/9.9"), "invalid_http", ""),
    "status-word": case(head("Content-Length: 0", status="OK 200"), "invalid_http"),
    "status-0": case(head("Content-Length: 0", status="0 Zero"), "invalid_http", "http_status"),
    "status-999": case(head("Content-Length: 0", status="999 Denied"), "invalid_http", "http_status"),
    "status-long": case(head("Content-Length: 0", status="2000000 OK"), "invalid_http"),
    "reason-endless": case(partial(endless, start=b"HTTP/1.1 200 ", data=b"OK" * 5000), "invalid_http"),
    "reason-in-bytes": case(b"HTTP/1.1 200 \xff\x1b[31m\r\n" + page().partition(b"\r\n")[2], "", "invalid_http"),
    "header-endless": case(partial(endless, start=b"HTTP/1.1 200 OK\r\nX: ", data=b"x" * 10_000), "invalid_http"),
    "headers-endless": case(
        partial(endless, start=b"HTTP/1.1 200 OK\r\n", data=b"X-Header: value\r\n" * 1000), "invalid_http", "timeout"
    ),
    "cookies": case(page(*(f"Set-Cookie: {i}={'x' * 1000}" for i in range(500))), "", "invalid_http"),
    "header-without-colon": case(page("no colon here"), "invalid_http"),
    "header-with-nul": case(page("X-Nul: a\0b"), "invalid_http"),
    "header-without-name": case(page(": value"), "invalid_http"),
    "header-in-bytes": case(page("X-Odd: \xff\xfe\x80"), "", "invalid_http"),
    "header-folded": case(page("X-Folded: a\r\n b"), "", "invalid_http"),
    "100-flood": case(
        partial(endless, data=b"HTTP/1.1 100 Continue\r\n\r\n" * 100, pause=0.001), "timeout", "invalid_http"
    ),
    "103-flood": case(
        partial(endless, data=b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 100, pause=0.001),
        "timeout",
        "invalid_http",
    ),
    "100-then-a-page": case(b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + page()),
    "101": case(
        head("Connection: upgrade", "Upgrade: h2c", status="101 Switching"), "http_status", "invalid_http", *CUT
    ),
    "204-with-body": case(head("Content-Length: 5", status="204 None") + b"<html", "http_status", "invalid_http"),
    "206": case(page().replace(b"200 OK", b"206 Partial"), "http_status"),
    "304": case(head(status="304 Not Modified"), "http_status"),
    "chunk-of-no-size": case(chunked() + b"zz\r\n<html>\r\n0\r\n\r\n", "invalid_http"),
    "chunk-negative": case(chunked() + b"-5\r\n<html\r\n0\r\n\r\n", "invalid_http"),
    "chunk-huge": case(chunked() + b"f" * 40 + b"\r\n" + HTML, "invalid_http", *CUT),
    "chunk-without-end": case(chunked() + b"5\r\n<html0\r\n\r\n", "invalid_http"),
    "chunk-cut": case(chunked() + b"fff\r\n" + HTML, *CUT),
    "chunks-without-end": case(chunked() + b"%x\r\n%b\r\n" % (len(HTML), HTML), *CUT),
    "chunk-extension-endless": case(
        partial(endless, start=chunked() + b"5;", data=b"a=b;" * 2500), "invalid_http", "timeout", "too_large"
    ),
    "trailers-endless": case(
        partial(endless, start=chunked() + b"5\r\n<html\r\n0\r\n", data=b"X-Trailer: value\r\n" * 1000),
        *("invalid_http", "timeout", "too_large"),
    ),
    "transfer-encoding-unknown": case(
        head("Content-Type: text/html", "Transfer-Encoding: foo") + HTML, "", "invalid_http"
    ),
    "transfer-encoding-twice": case(
        head("Content-Type: text/html", "Transfer-Encoding: chunked, chunked") + b"0\r\n\r\n", "", "invalid_http"
    ),
}
STAGES = {
    "request": b"",
    "status": b"HTTP/1.1 2",
    "head": b"HTTP/1.1 200 OK\r\nContent-Ty",
    "body": head("Content-Type: text/html", "Content-Length: 5000") + HTML,
    "chunk": chunked() + b"fff\r\n" + HTML,
    "gzip": head("Content-Type: text/html", "Content-Encoding: gzip", "Content-Length: 5000") + PACKED[:30],
}
BREAKS = {
    **{f"reset-after-{name}": case(partial(reset, start=start), *CUT) for name, start in STAGES.items()},
    **{f"closed-after-{name}": case(start, *CUT, "invalid_http") for name, start in STAGES.items()},
    **{f"silent-after-{name}": case(partial(silence, start=start), "timeout") for name, start in STAGES.items()},
}
_NAMES = range(2000)
ROBOTS = {
    "robots-binary": manners(robots_txt(bytes(range(256)) * 400)),
    "robots-html": manners(page(body=HTML * 100)),
    "robots-utf16": manners(robots_txt("User-agent: *\nDisallow: /other\n".encode("utf-16"))),
    "robots-huge": manners(robots_txt(DENY + b"# more\n" * 200_000), "robots_denied"),
    "robots-endless": manners(
        partial(endless, start=head("Content-Type: text/plain") + DENY, data=b"# more\n" * 1000), "robots_denied"
    ),
    "robots-endless-line": manners(partial(endless, start=head("Content-Type: text/plain"), data=b"x" * 10_000)),
    "robots-bomb": manners(robots_txt(bomb(100, ZIP), "Content-Encoding: gzip")),
    "robots-no-gzip": manners(robots_txt(DENY, "Content-Encoding: gzip"), "", "robots_unreachable"),
    "robots-backtracking": manners(robots_txt(b"User-agent: *\nDisallow: /" + b"*a" * 5000 + b"*b$\n")),
    "robots-many-rules": manners(robots_txt(b"User-agent: *\n" + b"Disallow: /*x*y\n" * 30_000)),
    # Each name times each rule: 4 million rules from 56 kB.
    "robots-names-times-rules": manners(
        robots_txt(b"".join(b"User-agent:a%d\n" % i for i in _NAMES) + b"".join(b"Allow:/%d\n" % i for i in _NAMES))
    ),
    **{
        f"robots-delay-{value}": manners(robots_txt(f"User-agent: *\nCrawl-delay: {value}\n".encode()))
        for value in ("nan", "1e999", "-7", "x", "86400")
    },
    "robots-loop": manners(redirect("/robots.txt")),
    "robots-private": manners(redirect("http://127.0.0.1/robots.txt"), "robots_unreachable", "private_address"),
    "robots-500": manners(head("Content-Length: 0", status="500 Down"), "robots_unreachable"),
    "robots-503": manners(head("Content-Length: 0", "Retry-After: 99999", status="503 Busy"), "robots_unreachable"),
    "robots-429": manners(head("Content-Length: 0", status="429 Slow"), "robots_unreachable"),
    "robots-403": manners(head("Content-Length: 0", status="403 No")),
    "robots-garbage": manners(bytes(range(256)) * 20, "robots_unreachable"),
    "robots-silent": manners(partial(silence), "robots_unreachable"),
    "robots-drip": manners(partial(drip, data=robots_txt(DENY * 10)), "robots_unreachable"),
    "robots-reset": manners(partial(reset, start=head("Content-Length: 5000") + DENY), "robots_unreachable"),
}
CASES: dict[str, Case] = {
    **{f"good{i}": case(page(), paths=tuple(f"/{j}" for j in range(10))) for i in range(4)},
    **BODIES,
    **LENGTHS,
    **REDIRECTS,
    **HTTP,
    **BREAKS,
    **ROBOTS,
    "refused": case(refused, paths=tuple(f"/{i}" for i in range(len(REFUSED)))),
    "rebinding": case(page(), paths=("/0", "/1", "/2")),
}


# ---- the servers


async def answer(reader: asyncio.StreamReader, writer: Writer) -> None:
    """Read requests, and behave as the host of each does; a good page keeps its connection."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            path = request.split(" ", 2)[1]
            name = request.partition("\r\nHost: ")[2].partition("\r\n")[0].removesuffix(f".{DOMAIN}")
            found = CASES[name]
            await (found.robots if path == "/robots.txt" else found.behave)(writer, path)
            await writer.drain()
            if not name.startswith(("good", "second")):
                break
    writer.close()


def connection(behave: Behaviour) -> Callable[[asyncio.StreamReader, Writer], Awaitable[None]]:
    """A server that behaves without having read anything."""

    async def accept(reader: asyncio.StreamReader, writer: Writer) -> None:
        with contextlib.suppress(ConnectionError):
            await behave(writer, "")
        writer.close()

    return accept


SERVERS = {
    "web": answer,
    "deaf": connection(silence),
    "broken": connection(reset),
    "plain": connection(partial(send, data=page())),
    "garbage": connection(partial(send, data=bytes(range(256)) * 20)),
    "half-hello": connection(partial(silence, start=b"\x16\x03\x03\x40\x00\x02")),
}


async def serve() -> None:
    """Print the ports of all servers, then serve for ever."""
    servers = {name: await asyncio.start_server(behave, "127.0.0.1", 0) for name, behave in SERVERS.items()}
    print(json.dumps({name: server.sockets[0].getsockname()[1] for name, server in servers.items()}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
