"""The crawler: many URLs at once, each host politely, every URL to its outcome.

`crawl(urls, config, server, lookup, processes=2, scratch=folder)` yields a `Packed` for each URL, in the
order they are finished. The list may be larger than memory: it is put in an order that mixes hosts
(`schedule`), and only a window of it is in memory. A retry waits in the frontier and not in a task,
and so does a redirect, so a slow or failing host holds none of the places that the others need.
"""

import asyncio
import contextlib
import math
from collections.abc import Generator, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.crawl.backlog import Backlog
from dataprep.crawl.connections import Lookup, kept_alive_seconds, open_session
from dataprep.crawl.fetched import Fetched, Packed
from dataprep.crawl.fetcher import Fetcher
from dataprep.crawl.frontier import Frontier
from dataprep.crawl.jobs import Job
from dataprep.crawl.local_site import LocalServer
from dataprep.crawl.schedule import spread
from dataprep.crawl.shares import ONLY_SHARE, Share
from dataprep.crawl.visits import Visits
from dataprep.crawl.warc_writer import pack
from pipelines import store

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig

URLS_PER_PROCESS = 500
"""A process for fewer is not worth its start."""
WINDOW = 50_000
"""Jobs in memory; at some 500 bytes each."""
FILL_SLICE = 200
"""URLs taken into the window at once, so that the network never waits long."""
UNSENT_BYTES = 32 << 20
"""Of outcomes that nobody has fetched yet; beyond it nothing new starts."""
_OUTCOME_BYTES = 2000
"""What an outcome takes beside its page."""
_BURST_SECONDS = 0.1
"""How far starts may fall behind the global rate and catch up."""


def crawl(
    urls: Iterable[str],
    config: "DownloadConfig",
    server: LocalServer | None = None,
    lookup: Lookup | None = None,
    *,
    processes: int = 1,
    scratch: Path,
) -> Generator[Packed]:
    """Fetch `urls` (each once); `server` is the only thing on loopback that can be reached.

    `urls` is read to its end before the first request. `scratch/frontier` takes what memory has no room
    for, and is removed at the end. Hosts are shared out to `processes`; with one (or few URLs) the event
    loop runs in this process, and only while the caller waits for the next outcome.
    """
    folder = scratch / "frontier"
    store.remove(folder)
    given = iter(urls)
    first = list(islice(given, processes * URLS_PER_PROCESS))
    processes = max(min(processes, config.concurrency, len(first) // URLS_PER_PROCESS), 1)
    urls = chain(first, given)
    try:
        if processes == 1:
            yield from _crawl_here(spread(urls, folder), config, server, lookup, folder)
        else:
            from dataprep.crawl.processes import crawl_in_processes

            yield from crawl_in_processes(urls, config, server, lookup, processes, folder)
    finally:
        store.remove(folder)


def _crawl_here(
    urls: Iterator[str], config: "DownloadConfig", server: LocalServer | None, lookup: Lookup | None, folder: Path
) -> Iterator[Packed]:
    with asyncio.Runner() as runner:
        crawler = Crawler(urls, config, server, folder)
        try:
            runner.run(crawler.open(lookup))
            while outcomes := runner.run(crawler.next_outcomes()):
                yield from outcomes
        finally:
            runner.run(crawler.close())


class Crawler:
    """The frontier of what is to come, tasks under way, and outcomes not yet handed over."""

    def __init__(
        self,
        urls: Iterator[str],
        config: "DownloadConfig",
        server: LocalServer | None,
        folder: Path,
        share: Share = ONLY_SHARE,
    ) -> None:
        self.strangers: list[Job] = []
        """Jobs that a redirect has led to hosts of other processes."""
        self._urls: Iterator[str] | None = urls
        self._config = share.of(config)
        self._server = server
        self._share = share
        self._backlog = Backlog(folder / "backlog")
        self._frontier = Frontier(config.host_delay_seconds, self._backlog)
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes: list[Packed] = []
        self._unsent = 0
        self._failure: BaseException | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._next_start = 0.0
        self._resources = contextlib.AsyncExitStack()
        self._visits: Visits

    async def open(self, lookup: Lookup | None) -> None:
        """Open the session."""
        server = self._server or LocalServer(frozenset(), 0)
        session = open_session(
            server=server,
            lookup=lookup,
            user_agent=self._config.user_agent,
            keep_alive=kept_alive_seconds(self._config.concurrency),
        )
        await self._resources.enter_async_context(session)
        fetcher = Fetcher(self._config, session, server.hosts)
        has_site = self._server is not None
        self._visits = Visits(self._config, fetcher, self._frontier, self.send, has_site=has_site)

    async def close(self) -> None:
        """Cancel what is under way and release everything."""
        if self._timer:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._resources.aclose()
        self._backlog.close()

    async def next_outcomes(self) -> list[Packed]:
        """Outcomes, or strangers to pass on, or nothing at all when all that came here is done."""
        self._unsent = 0
        self._go_on()
        while not self._failure and not (self._outcomes or self.strangers or self._finished):
            self._wake.clear()
            await self._wake.wait()
        if self._failure:
            raise self._failure
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def send(self, job: Job) -> None:
        """Bring a job to its host: here, or by way of `strangers` to the process that looks after it."""
        if not self._share.has(job.host):
            self.strangers.append(job)
            self._wake.set()
            return
        now = asyncio.get_running_loop().time()
        if job.walk and job.walk.reply:
            self._visits.manners.learn(job, now)
        elif job.walk:
            self._frontier.add_first(job, now)
        else:
            self._frontier.add_redirected(job, now)

    def receive(self, job: Job) -> None:
        """Take in a job that another process sends."""
        self.send(job)
        self._go_on()

    @property
    def _finished(self) -> bool:
        return self._urls is None and not self._tasks and not self._frontier

    def _go_on(self) -> None:
        """Fill the window and start what may start now; `next_outcomes` raises what goes wrong.

        Called by the event loop too, which would write an error in its log and let the crawl wait for ever.
        """
        try:
            self._fill()
            self._start()
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits
            self._failure = self._failure or error
            self._wake.set()

    def _start(self) -> None:
        """Start what may start now; set the time to come back without being called."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._has_room and now >= self._next_start and (job := self._frontier.take(now)):
            task = loop.create_task(self._attempt(job))
            task.add_done_callback(self._end)
            self._tasks.add(task)
            if self._config.requests_per_second:
                self._next_start = max(self._next_start, now - _BURST_SECONDS) + 1 / self._config.requests_per_second
        if self._timer:
            self._timer.cancel()
        self._timer = None
        if self._urls is not None and self._takes_more:
            self._timer = loop.call_later(0, self._go_on)
        elif self._has_room and (turn := self._frontier.next_turn()) < math.inf:
            self._timer = loop.call_at(max(turn, self._next_start), self._go_on)

    @property
    def _has_room(self) -> bool:
        return len(self._tasks) < self._config.concurrency and self._unsent < UNSENT_BYTES

    @property
    def _takes_more(self) -> bool:
        return self._frontier.in_memory < WINDOW and self._unsent < UNSENT_BYTES

    def _fill(self) -> None:
        for _ in range(FILL_SLICE):
            if self._urls is None or not self._takes_more:
                return
            url = next(self._urls, None)
            if url is None:
                self._urls = None
                self._wake.set()
                return
            first = self._visits.first_job(url)
            if isinstance(first, Fetched):
                self._finish(first)
            else:
                self._frontier.add(first)

    async def _attempt(self, job: Job) -> None:
        loop = asyncio.get_running_loop()
        host = job.host
        outcome, asked = await self._visits.visit(job)
        self._frontier.done(host, loop.time(), asked=asked)
        if not asked and self._config.requests_per_second:
            self._next_start -= 1 / self._config.requests_per_second
        if outcome:
            self._finish(outcome)

    def _finish(self, fetched: Fetched) -> None:
        packed = pack(fetched)
        self._outcomes.append(packed)
        self._unsent += len(packed.members) + _OUTCOME_BYTES
        self._wake.set()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._failure = self._failure or task.exception()
            self._go_on()
        self._wake.set()
