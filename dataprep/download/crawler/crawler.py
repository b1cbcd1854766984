"""The crawler of one process: fetches many URLs at once, and each host politely, until every URL has its outcome.

Only a window of the list is in memory. Retries and redirects wait in the frontier, not in tasks, so a slow or failing
host takes no concurrency away from the others.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from dataprep.download.config import CrawlOptions
from dataprep.download.crawler.connections import Lookup, kept_alive_seconds, open_session
from dataprep.download.crawler.frontier import Backlog, Frontier, UrlJob
from dataprep.download.crawler.local_site import LocalServer
from dataprep.download.crawler.request import Fetcher
from dataprep.download.crawler.visit import HostPolicy, Visits
from dataprep.download.opt_outs import PageOptOuts
from dataprep.download.outcomes import Fetched, Packed
from dataprep.download.warc_writer import pack

WINDOW = 50_000
"""Most jobs in memory, at about 500 bytes each."""
FILL_SLICE = 200
"""URLs taken into the window at once; few, so that the network never waits long."""
UNSENT_BYTES = 32 << 20
"""Bytes of outcomes that wait to be collected; beyond this, nothing new starts."""
_OUTCOME_BYTES = 2000
"""Memory of an outcome beside its page."""
_BURST_SECONDS = 0.1
"""How far starts may fall behind the global rate and still catch up."""


@dataclass(frozen=True, slots=True)
class HostPartition:
    """The hosts owned by process number `index` of `processes`."""

    index: int
    processes: int

    def owns(self, host: str) -> bool:
        """Return whether this process owns a host."""
        return self.processes == 1 or partition_of(host, self.processes) == self.index


ALL_HOSTS = HostPartition(0, 1)


def partition_of(host: str, processes: int) -> int:
    """Return the number of the process that owns a host."""
    return xxhash.xxh3_64_intdigest(host.encode()) % processes


class Crawler:
    """The frontier of waiting jobs, the running tasks, and the outcomes not yet collected."""

    def __init__(
        self,
        urls: Iterator[str],
        options: CrawlOptions,
        server: LocalServer | None,
        folder: Path,
        partition: HostPartition = ALL_HOSTS,
    ) -> None:
        self.outbound: list[UrlJob] = []
        """Jobs that were redirected to hosts of other processes, to be passed on."""
        self._urls: Iterator[str] | None = urls
        self._options = options
        self._politeness = options.politeness
        self._server = server
        self._partition = partition
        self._backlog = Backlog(folder / "backlog")
        self._frontier = Frontier(options.politeness.host_delay_seconds, self._backlog)
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcomes: list[Packed] = []
        self._unsent = 0
        self._failure: BaseException | None = None
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._next_start = 0.0
        self._resources = contextlib.AsyncExitStack()
        self._policy: HostPolicy
        self._visits: Visits

    async def open(self, lookup: Lookup | None) -> None:
        """Open the HTTP session, and set up the objects that make requests through it."""
        server = self._server or LocalServer(frozenset(), 0)
        session = open_session(
            server=server,
            lookup=lookup,
            user_agent=self._options.identity.user_agent,
            keep_alive=kept_alive_seconds(self._politeness.concurrency),
        )
        await self._resources.enter_async_context(session)
        identity, limits, retries = self._options.identity, self._options.limits, self._options.retries
        fetcher = Fetcher(limits, session, server.hosts, PageOptOuts(identity.opt_outs, identity.user_agent))
        per_host = self._politeness.per_host
        self._policy = HostPolicy(identity, per_host, retries, fetcher, self._frontier, self.send)
        self._visits = Visits(
            limits.max_redirects,
            retries,
            self._policy,
            fetcher,
            self._frontier,
            self.send,
            has_site=self._server is not None,
        )

    async def close(self) -> None:
        """Cancel all tasks and release all resources."""
        if self._timer:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._resources.aclose()
        self._backlog.close()

    async def next_outcomes(self) -> list[Packed]:
        """Wait for outcomes or outbound jobs, and return the outcomes; with neither, the crawl is done."""
        self._unsent = 0
        self._go_on()
        while not self._failure and not (self._outcomes or self.outbound or self._finished):
            self._wake.clear()
            await self._wake.wait()
        if self._failure:
            raise self._failure
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def send(self, job: UrlJob) -> None:
        """Queue a job for its host: in this process, or by `outbound` in the process that owns the host."""
        if not self._partition.owns(job.host):
            self.outbound.append(job)
            self._wake.set()
            return
        now = asyncio.get_running_loop().time()
        if job.robots_fetch and job.robots_fetch.reply:
            self._policy.learn(job, now)
        elif job.robots_fetch:
            self._frontier.add_first(job, now)
        else:
            self._frontier.add_redirected(job, now)

    def receive(self, job: UrlJob) -> None:
        """Accept a job from another process."""
        self.send(job)
        self._go_on()

    @property
    def _finished(self) -> bool:
        return self._urls is None and not self._tasks and not self._frontier

    def _go_on(self) -> None:
        """Fill the window and start the jobs that may start now; keep any error for `next_outcomes` to raise.

        The event loop calls this too, and would log an error and leave the crawl waiting forever.
        """
        try:
            self._fill()
            self._start()
        except BaseException as error:  # noqa: BLE001 - `next_outcomes` raises it
            self._failure = self._failure or error
            self._wake.set()

    def _start(self) -> None:
        """Start the jobs that may start now, and set a timer for the next ones."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._has_room and now >= self._next_start and (job := self._frontier.take(now)):
            task = loop.create_task(self._attempt(job))
            task.add_done_callback(self._end)
            self._tasks.add(task)
            if self._politeness.requests_per_second:
                self._next_start = (
                    max(self._next_start, now - _BURST_SECONDS) + 1 / self._politeness.requests_per_second
                )
        if self._timer:
            self._timer.cancel()
        self._timer = None
        if self._urls is not None and self._takes_more:
            self._timer = loop.call_later(0, self._go_on)
        elif self._has_room and (turn := self._frontier.next_turn()) < math.inf:
            self._timer = loop.call_at(max(turn, self._next_start), self._go_on)

    @property
    def _has_room(self) -> bool:
        return len(self._tasks) < self._politeness.concurrency and self._unsent < UNSENT_BYTES

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

    async def _attempt(self, job: UrlJob) -> None:
        loop = asyncio.get_running_loop()
        host = job.host
        outcome, asked = await self._visits.visit(job)
        self._frontier.done(host, loop.time(), asked=asked)
        if not asked and self._politeness.requests_per_second:
            self._next_start -= 1 / self._politeness.requests_per_second
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
