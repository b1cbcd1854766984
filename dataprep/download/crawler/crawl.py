"""A crawl: the URLs of a list, fetched by one process or by several.

`crawl(urls, options, server, lookup, processes=2, scratch=folder)` yields a `Packed` for each URL, in the order in
which they finish. With several processes, each fetches from its own hosts, so that limits and delays per host hold.
The parent deals the list out by host, passes redirects from process to process, and yields the outcomes. A child
sends finished pages through a pipe, and starts nothing new while too many wait there. It ends when its pipe is
closed: when the parent has all it wanted, or was killed.

URLs are crawled in the order of their hashes: lists are sorted by URL, and so by host, and a host's URLs should not
come all at once. A list may be larger than memory: URLs are dealt to bucket files by the first bits of their hash,
and each bucket is sorted when its turn comes. A short list never touches the disk.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import xxhash

from dataprep.download.config import CrawlOptions
from dataprep.download.crawler.connections import Lookup
from dataprep.download.crawler.crawler import Crawler, HostPartition, partition_of
from dataprep.download.crawler.frontier import UrlJob
from dataprep.download.crawler.local_site import LocalServer
from dataprep.download.outcomes import Packed
from pipelines import store
from pipelines.engine import KILLED, PARENTS_SIGNALS, start_forkserver, starting
from pipelines.errors import UserError
from pipelines.identity import split_url

URLS_PER_PROCESS = 500
"""Fewest URLs for which starting another process is worthwhile."""
SHORT_LIST = 100_000
"""Most URLs that are sorted in memory."""
_BUCKETS = 1024
"""A list of 50 million URLs has about 50,000 in each."""
_BUFFERED_BYTES = 1 << 25
_LAST_SECONDS = 5.0
"""How long a child may take to end before it is killed."""


def crawl(
    urls: Iterable[str],
    options: CrawlOptions,
    server: LocalServer | None = None,
    lookup: Lookup | None = None,
    *,
    processes: int = 1,
    scratch: Path,
) -> Generator[Packed]:
    """Fetch `urls`, each once; `server` is the only address on loopback that can be reached.

    `urls` is read to its end before the first request. `scratch/frontier` holds what does not fit into memory, and
    is removed at the end. Hosts are divided among `processes`; with one process (or few URLs) the event loop runs in
    this process, and only while the caller waits for the next outcome.
    """
    folder = scratch / "frontier"
    store.remove(folder)
    rest = iter(urls)
    first = list(islice(rest, processes * URLS_PER_PROCESS))
    processes = max(min(processes, options.politeness.concurrency, len(first) // URLS_PER_PROCESS), 1)
    urls = chain(first, rest)
    try:
        if processes == 1:
            yield from _crawl_here(spread(urls, folder), options, server, lookup, folder)
        else:
            yield from crawl_in_processes(urls, options, server, lookup, processes, folder)
    finally:
        store.remove(folder)


def _crawl_here(
    urls: Iterator[str], options: CrawlOptions, server: LocalServer | None, lookup: Lookup | None, folder: Path
) -> Iterator[Packed]:
    with asyncio.Runner() as runner:
        crawler = Crawler(urls, options, server, folder)
        try:
            runner.run(crawler.open(lookup))
            while outcomes := runner.run(crawler.next_outcomes()):
                yield from outcomes
        finally:
            runner.run(crawler.close())


def crawl_in_processes(
    urls: Iterable[str],
    options: CrawlOptions,
    server: LocalServer | None,
    lookup: Lookup | None,
    processes: int,
    folder: Path,
) -> Iterator[Packed]:
    """Fetch `urls` in `processes` processes, at most one for each request that may be in flight."""
    left = deal_by_host(urls, processes, folder)
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(Child(HostPartition(index, processes), part, server, lookup, folder))
            for index, part in enumerate(options.divided(processes))
        ]
        while left:
            for packed in _receive(children):
                left -= 1
                yield packed


def deal_by_host(urls: Iterable[str], processes: int, folder: Path) -> int:
    """Write each URL to the bucket files of the process that owns its host; return the number of URLs."""
    writers = [BucketWriter(folder / str(index), processes) for index in range(processes)]
    number = 0
    for number, url in enumerate(urls, start=1):  # noqa: B007 - the last one is the count
        address = split_url(url)
        writers[partition_of(address.host if address else "", processes)].write(url)
    for writer in writers:
        writer.close()
    return number


def _receive(children: list["Child"]) -> Iterator[Packed]:
    """Yield the outcomes that the children have ready; pass redirects on to the children that own their hosts."""
    by_connection = {child.connection: child for child in children}
    for connection in wait(list(by_connection)):
        child = by_connection[connection]  # type: ignore[index] - wait gives back what it was given
        outcomes, outbound = child.receive()
        for job in outbound:
            children[partition_of(job.host, len(children))].send(job)
        yield from outcomes


class Child:
    """A crawling process, as the parent sees it."""

    def __init__(
        self,
        partition: HostPartition,
        options: CrawlOptions,
        server: LocalServer | None,
        lookup: Lookup | None,
        folder: Path,
    ) -> None:
        # forkserver: the child inherits neither threads, nor locks, nor ends of other children's pipes.
        start_forkserver([__name__])
        context = multiprocessing.get_context("forkserver")
        self.connection, other_end = context.Pipe()
        arguments = (other_end, partition, options, server, lookup, folder / str(partition.index))
        self._process: BaseProcess = context.Process(target=crawl_partition, args=arguments, daemon=True)
        with starting(KILLED):
            self._process.start()
        other_end.close()

    def send(self, job: UrlJob) -> None:
        """Hand a job over to the child."""
        with self._expected_to_live():
            self.connection.send(job)

    def receive(self) -> tuple[list[Packed], list[UrlJob]]:
        """Return outcomes, and jobs for other processes; raises the error that ended the child."""
        with self._expected_to_live():
            message = self.connection.recv()
        if isinstance(message, OSError | UserError):
            raise message
        return message

    @contextlib.contextmanager
    def _expected_to_live(self) -> Generator[None]:
        """Raise UserError if the other end of the pipe is gone, even within a message (an OSError without errno)."""
        try:
            yield
        except (EOFError, OSError):
            self._process.join(_LAST_SECONDS)
            raise UserError(
                f"a crawling process ended with exit code {self._process.exitcode} (out of memory?); everything "
                "fetched is kept: run the same command again, perhaps with fewer --workers"
            ) from None

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *trace: object) -> None:
        self.connection.close()
        self._process.join(_LAST_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def crawl_partition(
    connection: Connection,
    partition: HostPartition,
    options: CrawlOptions,
    server: LocalServer | None,
    lookup: Lookup | None,
    folder: Path,
) -> None:
    """Crawl the hosts of one partition; the main function of a child process."""
    # Ctrl-C reaches the whole process group; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    try:
        asyncio.run(_crawl_partition(connection, Crawler(dealt(folder), options, server, folder, partition), lookup))
    except (OSError, UserError) as error:  # such as a full disk: the parent reports it, once
        connection.send(error)


async def _crawl_partition(connection: Connection, crawler: Crawler, lookup: Lookup | None) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()

    def arrive(job: UrlJob) -> None:
        crawler.receive(job)
        arrived.set()

    await crawler.open(lookup)
    threading.Thread(target=_listen, args=(connection, loop, arrive), daemon=True).start()
    sending: asyncio.Future[Any] | None = None
    while True:
        outcomes = await crawler.next_outcomes()
        outbound, crawler.outbound = crawler.outbound, []
        if sending:
            await sending
        if outcomes or outbound:
            sending = loop.run_in_executor(None, connection.send, (outcomes, outbound))
        else:  # done, unless another process sends a job
            sending = None
            await arrived.wait()
            arrived.clear()


def _listen(connection: Connection, loop: asyncio.AbstractEventLoop, arrive: Any) -> None:
    """Receive the jobs that the parent sends; exit when the parent ends."""
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        loop.call_soon_threadsafe(arrive, job)


def spread(urls: Iterable[str], folder: Path) -> Iterator[str]:
    """Return the URLs in the order of their hashes; a long list is written to bucket files in `folder`."""
    rest = iter(urls)
    first = list(islice(rest, SHORT_LIST))
    if len(first) < SHORT_LIST:
        return iter(_in_order(first))
    deal(chain(first, rest), folder)
    return dealt(folder)


def deal(urls: Iterable[str], folder: Path) -> None:
    """Write each URL to its bucket file."""
    writer = BucketWriter(folder)
    for url in urls:
        writer.write(url)
    writer.close()


def dealt(folder: Path) -> Iterator[str]:
    """Yield the URLs of the bucket files, in the order of their hashes."""
    for file in sorted(folder.glob("bucket-*")):
        yield from _in_order([json.loads(line) for line in file.read_bytes().splitlines()])
        file.unlink()


class BucketWriter:
    """Appends URLs to their buckets, in a few large writes and without keeping files open.

    It is one of `writers` that share the URLs of a list, and the memory for them.
    """

    def __init__(self, folder: Path, writers: int = 1) -> None:
        self._folder = folder
        self._buffers = [bytearray() for _ in range(max(_BUCKETS // writers, 1))]
        self._limit = _BUFFERED_BYTES // writers
        self._buffered = 0
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, url: str) -> None:
        """Buffer a URL, and write the buffers when they are full."""
        line = json.dumps(url).encode() + b"\n"
        self._buffers[_hash(url) * len(self._buffers) >> 64] += line
        self._buffered += len(line)
        if self._buffered > self._limit:
            self.close()

    def close(self) -> None:
        """Write all buffered URLs to the files."""
        for number, buffer in enumerate(self._buffers):
            if buffer:
                with (self._folder / f"bucket-{number:05d}").open("ab") as file:
                    file.write(buffer)
                buffer.clear()
        self._buffered = 0


def _in_order(urls: list[str]) -> list[str]:
    return [url for _, url in sorted((_hash(url), url) for url in urls)]


def _hash(url: str) -> int:
    return xxhash.xxh3_64_intdigest(url.encode("utf-8", "surrogatepass"))
