"""The crawler: many URLs at once, each host politely, every URL to its outcome.

`crawl(urls, config, site)` yields a `Fetched` for each URL, in the order they are finished. A retry
waits in the frontier and not in a task, so a slow or failing host holds none of the places that the
others need.
"""

import asyncio
import contextlib
import datetime
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import xxhash

from dataprep.crawl.connections import Lookup, open_session
from dataprep.crawl.fetched import PAGE, Fetched
from dataprep.crawl.fetcher import Fetcher, FetchError, Trail
from dataprep.crawl.frontier import Frontier, Job
from dataprep.crawl.local_site import LOOPBACK, SITE_TIME, Site, serve
from pipelines.identity import split_url

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig

LONGEST_WAIT = 300.0
"""Seconds before a retry; a server that asks for more is asked again by a later run only."""


def crawl(
    urls: Iterable[str], config: "DownloadConfig", site: Site | None = None, lookup: Lookup | None = None
) -> Iterator[Fetched]:
    """Fetch `urls` (each once); `site` is the only thing on loopback that can be reached.

    The event loop runs only while the caller waits for the next outcome.
    """
    with asyncio.Runner() as runner:
        crawler = Crawler(config, site)
        try:
            runner.run(crawler.open(urls, lookup))
            while outcomes := runner.run(crawler.next_outcomes()):
                yield from outcomes
        finally:
            runner.run(crawler.close())


class Crawler:
    """Tasks under way, the frontier of what is to come, and the outcomes not yet handed over."""

    def __init__(self, config: "DownloadConfig", site: Site | None) -> None:
        self._config = config
        self._site = site
        self._hosts = site.hosts if site else frozenset[str]()
        self._frontier = Frontier(config.host_delay_seconds)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: list[asyncio.Task[None]] = []
        self._outcomes: list[Fetched] = []
        self._wake = asyncio.Event()
        self._resources = contextlib.AsyncExitStack()
        self._fetcher: Fetcher

    async def open(self, urls: Iterable[str], lookup: Lookup | None) -> None:
        """Start the local site, open the session, and take in the URLs."""
        port = await self._resources.enter_async_context(serve(self._site)) if self._site else 0
        session = open_session(
            site_hosts=self._hosts, site_port=port, lookup=lookup, user_agent=self._config.user_agent
        )
        await self._resources.enter_async_context(session)
        self._fetcher = Fetcher(self._config, session, self._hosts)
        for url in urls:
            address = split_url(url)
            self._frontier.add(Job(url, address.host if address else ""))

    async def close(self) -> None:
        """Cancel what is under way and release everything."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._resources.aclose()

    async def next_outcomes(self) -> list[Fetched]:
        """At least one outcome; none when all URLs are done."""
        while not self._outcomes:
            self._wake.clear()
            while self._ended:
                self._ended.pop().result()  # raises what an attempt should not have raised
            wait = self._start_tasks()
            if not self._tasks and wait is None:
                return []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def _start_tasks(self) -> float | None:
        """Start what may start now; the seconds until something may that is not waiting for a task."""
        loop = asyncio.get_running_loop()
        while len(self._tasks) < self._config.concurrency and (job := self._frontier.take(loop.time())):
            task = loop.create_task(self._attempt(job))
            task.add_done_callback(self._end)
            self._tasks.add(task)
        turn = self._frontier.next_turn()
        if turn == float("inf") or len(self._tasks) >= self._config.concurrency:
            return None
        return max(turn - loop.time(), 0.0)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended.append(task)
        self._wake.set()

    async def _attempt(self, job: Job) -> None:
        """One attempt at a URL: an outcome, or its return to the frontier."""
        loop = asyncio.get_running_loop()
        job.attempts += 1
        started, begin = utc_now(), loop.time()
        trail, error, body = Trail(), None, b""
        try:
            await self._meet_host(job)
            body = await self._fetcher.fetch(job.url, trail)
        except FetchError as problem:
            error = problem
        wait = self._wait_before_retry(job, error) if error else None
        if wait is not None:
            if error and error.retry_after:
                self._frontier.hold(job.host, loop.time() + wait)
            self._frontier.add(job, loop.time() + wait)
        else:
            self._outcomes.append(self._outcome(job, trail, error, body, started, loop.time() - begin))
        self._frontier.done(job)

    async def _meet_host(self, job: Job) -> None:
        """Learn the manners of a host from its robots.txt, once it is known that it may be asked."""
        target = self._fetcher.vet(job.url, Trail())
        rules = await self._fetcher.rules(target.origin)
        delay = rules.delay(self._config.user_agent)
        self._frontier.welcome(job.host, 1 if delay else self._config.per_host, delay)
        self._wake.set()

    def _wait_before_retry(self, job: Job, error: FetchError) -> float | None:
        """Seconds until the next attempt, or None when this was the last one.

        Exponential, between 50 and 100 % of its full length by a hash, so that URLs that failed
        together do not come back together.
        """
        if not error.again or job.attempts >= self._config.max_attempts or error.retry_after > LONGEST_WAIT:
            return None
        share = 0.5 + xxhash.xxh3_64_intdigest(f"{job.attempts} {job.url}".encode()) / 2**65
        backoff = min(self._config.backoff_seconds * 2 ** (job.attempts - 1), LONGEST_WAIT) * share
        return max(backoff, error.retry_after)

    def _outcome(
        self, job: Job, trail: Trail, error: FetchError | None, body: bytes, started: str, seconds: float
    ) -> Fetched:
        # What a local site answers, and what is refused without asking, is of one moment.
        local = self._site is not None and trail.address in ("", LOOPBACK)
        return Fetched(
            url=job.url,
            rule=error.rule if error else PAGE,
            value=_valid(error.value) if error else "",
            transient=bool(error and error.transient),
            attempts=job.attempts,
            started=SITE_TIME if local else started,
            elapsed_ms=0 if local else round(seconds * 1000),
            final_url=trail.final_url,
            redirects=tuple(trail.redirects),
            note=trail.note,
            status=trail.status,
            address=trail.address,
            request_head=trail.request_head,
            response_head=_valid(trail.response_head),
            body=body,
        )


def _valid(text: str) -> str:
    """Text without halves of surrogate pairs, which stand for the invalid bytes of a server."""
    return text.encode("utf-8", "backslashreplace").decode()


def utc_now() -> str:
    """This moment, to the second, as WARC and the fetch log write it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
