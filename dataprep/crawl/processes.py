"""A crawl in several processes: each looks after its own hosts, so limits and delays per host hold for all.

This process deals the list out by host, hands redirects over from process to process, and yields what
comes. A child sends finished pages through a pipe and starts nothing new while too many wait there. It
ends when its pipe does: when this process has all it wanted, or is killed.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.crawl import schedule
from dataprep.crawl.connections import Lookup
from dataprep.crawl.crawler import Crawler
from dataprep.crawl.fetched import Packed
from dataprep.crawl.jobs import Job
from dataprep.crawl.local_site import LocalServer
from dataprep.crawl.shares import Share, share_of
from pipelines.errors import UserError
from pipelines.identity import split_url

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig

_LAST_SECONDS = 5.0
"""How long a child may take to end before it is killed."""


def crawl_in_processes(
    urls: Iterable[str],
    config: "DownloadConfig",
    server: LocalServer | None,
    lookup: Lookup | None,
    processes: int,
    folder: Path,
) -> Iterator[Packed]:
    """Fetch `urls` in so many processes, or in as many as there are places."""
    processes = min(processes, config.concurrency)
    left = deal_by_host(urls, processes, folder)
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(Child(Share(index, processes), config, server, lookup, folder))
            for index in range(processes)
        ]
        while left:
            for packed in _receive(children):
                left -= 1
                yield packed


def deal_by_host(urls: Iterable[str], processes: int, folder: Path) -> int:
    """Write each URL to the bucket files of the process that looks after its host; the number of URLs."""
    writers = [schedule.BucketWriter(folder / str(index), processes) for index in range(processes)]
    number = 0
    for number, url in enumerate(urls, start=1):  # noqa: B007 - the last one is the count
        address = split_url(url)
        writers[share_of(address.host if address else "", processes)].write(url)
    for writer in writers:
        writer.close()
    return number


def _receive(children: list["Child"]) -> Iterator[Packed]:
    """What the children have ready; redirects to hosts of another child go there."""
    by_connection = {child.connection: child for child in children}
    for connection in wait(list(by_connection)):
        child = by_connection[connection]  # type: ignore[index] - wait gives back what it was given
        outcomes, strangers = child.receive()
        for job in strangers:
            children[share_of(job.host, len(children))].send(job)
        yield from outcomes


class Child:
    """A crawling process, seen from outside."""

    def __init__(
        self,
        share: Share,
        config: "DownloadConfig",
        server: LocalServer | None,
        lookup: Lookup | None,
        folder: Path,
    ) -> None:
        # forkserver: the child inherits no threads, locks or ends of other children's pipes.
        context = multiprocessing.get_context("forkserver")
        self.connection, other_end = context.Pipe()
        arguments = (other_end, share, config, server, lookup, folder / str(share.index))
        self._process: BaseProcess = context.Process(target=crawl_share, args=arguments, daemon=True)
        self._process.start()
        other_end.close()

    def send(self, job: Job) -> None:
        """Hand a job over to the child."""
        with self._expected_to_live():
            self.connection.send(job)

    def receive(self) -> tuple[list[Packed], list[Job]]:
        """Outcomes, and jobs for other processes; raises what ended the child."""
        with self._expected_to_live():
            message = self.connection.recv()
        if isinstance(message, OSError | UserError):
            raise message
        return message

    @contextlib.contextmanager
    def _expected_to_live(self) -> Generator[None]:
        """UserError when the pipe has no other end any more, or ends within a message (an OSError without number)."""
        try:
            yield
        except (EOFError, OSError):
            self._process.join(_LAST_SECONDS)
            raise UserError(
                f"a crawling process ended with exit code {self._process.exitcode} (out of memory?); what was "
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


def crawl_share(
    connection: Connection,
    share: Share,
    config: "DownloadConfig",
    server: LocalServer | None,
    lookup: Lookup | None,
    folder: Path,
) -> None:
    """The life of a child."""
    # Ctrl-C reaches the whole group: the parent decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        asyncio.run(_crawl_share(connection, Crawler(schedule.dealt(folder), config, server, folder, share), lookup))
    except (OSError, UserError) as error:  # a full disk, say: the parent says so, once
        connection.send(error)


async def _crawl_share(connection: Connection, crawler: Crawler, lookup: Lookup | None) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()

    def arrive(job: Job) -> None:
        crawler.receive(job)
        arrived.set()

    await crawler.open(lookup)
    threading.Thread(target=_listen, args=(connection, loop, arrive), daemon=True).start()
    sending: asyncio.Future[Any] | None = None
    while True:
        outcomes = await crawler.next_outcomes()
        strangers, crawler.strangers = crawler.strangers, []
        if sending:
            await sending
        if outcomes or strangers:
            sending = loop.run_in_executor(None, connection.send, (outcomes, strangers))
        else:  # all done, unless another process sends a job
            sending = None
            await arrived.wait()
            arrived.clear()


def _listen(connection: Connection, loop: asyncio.AbstractEventLoop, arrive: Any) -> None:
    """Take in what the parent sends; end with it."""
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        loop.call_soon_threadsafe(arrive, job)
