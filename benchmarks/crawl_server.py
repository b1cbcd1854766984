"""The web of the crawl benchmark: real pages on made-up hosts, and the process that serves them.

Pages are whole real pages of the collections that `make_real_site` reads: all of scrapinghub's (174 kB
on average), then pages of L3S-GN1 and CleanEval in the order of their SHA-256 until the mean has come
down to 90 kB. Page number i of a crawl is page i modulo their number, on host i modulo the hosts.

The server answers by Host header, keeps connections open, and waits before each answer: the latency,
or on every 50th host (with 2 %) as long as the hosts hang. Everything is made before the first
request, so that an answer costs it one write.
"""

import argparse
import asyncio
import gzip
import hashlib
import itertools
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_real_site import cleaneval, l3s, scrapinghub

MEAN_BYTES = 90_000
ROBOTS = b"User-agent: *\nDisallow: /private/\nDisallow: /search\n"
COUNTER_BYTES = 8
"""The file through which the server says how many pages it has sent: one little-endian number."""


def real_pages(collections: Path) -> list[bytes]:
    """Distinct pages of 90 kB mean, in the order of their SHA-256; always the same ones."""
    chosen = [page.body for page in scrapinghub(collections)]
    size = sum(map(len, chosen))
    for body in _by_digest([page.body for page in itertools.chain(l3s(collections), cleaneval(collections))]):
        if size <= MEAN_BYTES * len(chosen):
            break
        chosen.append(body)
        size += len(body)
    return _by_digest(chosen)


def _by_digest(bodies: list[bytes]) -> list[bytes]:
    return sorted(set(bodies), key=lambda body: hashlib.sha256(body).digest())


def host_name(number: int) -> str:
    """The name of a host; the number can be read from it."""
    return f"www{number:05d}.bench.test"


def page_urls(pages: int, hosts: int) -> Iterator[str]:
    """One URL for each page, so mixed that neighbours have different hosts, as in a list of submissions."""
    order = sorted(range(pages), key=lambda number: hashlib.sha256(b"%d" % number).digest())
    return (f"http://{host_name(number % hosts)}/news/{number}/a-page-of-the-benchmark.html" for number in order)


class Answers:
    """All answers of one run, and how often a page was sent."""

    def __init__(self, pages: list[bytes], options: argparse.Namespace) -> None:
        self.robots = _response(ROBOTS, "text/plain", packed=False)
        self._pages = [_response(body, "text/html", packed=options.gzip) for body in pages]
        self._latency, self._hang = options.latency, options.hang
        self._every = round(1 / options.hanging) if options.hanging else sys.maxsize
        with options.counter.open("r+b") as file:
            self._counter = mmap.mmap(file.fileno(), COUNTER_BYTES)
        self._sent = 0

    def delay(self, host: bytes) -> float:
        """Seconds before a host answers."""
        return self._hang if (int(host[3:8]) + 1) % self._every == 0 else self._latency

    def page(self, path: bytes) -> bytes:
        """Head and body of the page at `/news/<number>/...`."""
        self._sent += 1
        self._counter[:] = self._sent.to_bytes(COUNTER_BYTES, "little")
        return self._pages[int(path.split(b"/")[2]) % len(self._pages)]


def _response(body: bytes, kind: str, *, packed: bool) -> bytes:
    sent = gzip.compress(body, 6, mtime=0) if packed else body
    lines = [
        "HTTP/1.1 200 OK",
        "Date: Thu, 01 Jan 2026 00:00:00 GMT",
        "Server: Apache/2.4.58 (Unix)",
        "Last-Modified: Wed, 31 Dec 2025 00:00:00 GMT",
        f'ETag: "{hashlib.md5(body, usedforsecurity=False).hexdigest()}"',
        "Cache-Control: max-age=300",
        "Vary: Accept-Encoding",
        *(["Content-Encoding: gzip"] if packed else []),
        f"Content-Length: {len(sent)}",
        "Keep-Alive: timeout=60",
        "Connection: Keep-Alive",
        f"Content-Type: {kind}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + sent


class Connection(asyncio.Protocol):
    """One connection: a request, a wait, an answer, and again."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where answers go."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each whole request after its wait."""
        *requests, self._received = (self._received + data).split(b"\r\n\r\n")
        for request in requests:
            path = request.split(b" ", 2)[1]
            host = request.partition(b"\r\nHost: ")[2].partition(b"\r\n")[0]
            delay = self._answers.delay(host)
            asyncio.get_running_loop().call_later(delay, self._answer, path, b"Connection: close" in request)

    def _answer(self, path: bytes, last: bool) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._answers.robots if path == b"/robots.txt" else self._answers.page(path))
        if last:
            self._transport.close()


async def serve(answers: Answers) -> None:
    """Say the port on standard output, then serve for ever."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(answers), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    """The server's own process, until it is killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path)
    parser.add_argument("counter", type=Path)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--hang", type=float, default=10.0)
    parser.add_argument("--hanging", type=float, default=0.02, help="share of the hosts")
    parser.add_argument("--gzip", action="store_true")
    options = parser.parse_args()
    asyncio.run(serve(Answers(real_pages(options.collections), options)))


if __name__ == "__main__":
    main()
