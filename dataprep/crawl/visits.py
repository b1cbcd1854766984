"""One visit: what a job does when its turn has come, and where it goes from there.

A visit makes at most one request. It ends with the outcome of the URL, or with the job on its way:
back to the frontier to try again later, or to the host that a redirect names.
"""

import asyncio
import datetime
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import xxhash

from dataprep.crawl.failures import FetchError
from dataprep.crawl.fetched import PAGE, Fetched
from dataprep.crawl.fetcher import Exchange, Fetcher, Redirect
from dataprep.crawl.frontier import Frontier
from dataprep.crawl.jobs import Job
from dataprep.crawl.local_site import LOOPBACK, SITE_TIME
from dataprep.crawl.manners import Manners
from dataprep.crawl.robots import Rules
from pipelines.identity import Address

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig

LONGEST_WAIT = 300.0
"""Seconds before a retry; a server that asks for more is asked again by a later run only."""
_MOST_AWAY = 10_000
_OF_THE_HOST = ("private_address", "dns_error")
"""Rules of a failed request for robots.txt that hold for every path of the host."""


class Visits:
    """Makes visits; `send` brings a job to its host, wherever that is looked after."""

    def __init__(
        self,
        config: "DownloadConfig",
        fetcher: Fetcher,
        frontier: Frontier,
        send: Callable[[Job], None],
        *,
        has_site: bool,
    ) -> None:
        self._config = config
        self._fetcher = fetcher
        self._frontier = frontier
        self._send = send
        self._has_site = has_site
        self._away: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """Hosts that want to be left alone for longer than this crawl waits: until when, and what they said."""
        self.manners = Manners(config, fetcher, frontier, send, self.wait_before_retry)

    def first_job(self, url: str) -> Job | Fetched:
        """The job of a listed URL, or the outcome of one that leads nowhere that may be asked."""
        job = Job(url, "", url, attempts=1)
        try:
            target, job.note = self._fetcher.vet(url)
        except FetchError as error:
            return self._outcome(job, Exchange(), error)
        job.host, job.attempts = target.host, 0
        return job

    async def visit(self, job: Job) -> tuple[Fetched | None, bool]:
        """The outcome, if this was the last visit; and whether anything was requested."""
        loop = asyncio.get_running_loop()
        target, _ = self._fetcher.vet(job.target)
        if not job.walk and (refusal := self._left_alone(job.host, loop.time())):
            job.attempts += 1
            return self._outcome(job, Exchange(target.url), refusal), False
        rules = None if job.walk else self.manners.rules(target, loop.time())
        if rules is None:
            if not job.walk and not self.manners.begin(job, target):
                return None, False
            target, _ = self._fetcher.vet(job.target)
            await self.manners.ask(job, target, loop.time)
            return None, True
        job.attempts += 1
        exchange = Exchange(target.url)
        if refusal := self._refusal(rules, target):
            return self._outcome(job, exchange, refusal), False
        return await self._request(job, target, exchange), True

    async def _request(self, job: Job, target: Address, exchange: Exchange) -> Fetched | None:
        loop = asyncio.get_running_loop()
        started, begin = utc_now(), loop.time()
        body, problem = b"", None
        try:
            answer = await self._fetcher.page(target, exchange)
            if isinstance(answer, Redirect):
                self._follow(job, target, answer)
                self._send(job)
                return None
            body = answer
        except FetchError as error:
            if self._try_again(job, error, loop.time()):
                return None
            problem = error
        return self._outcome(job, exchange, problem, body, started, loop.time() - begin)

    def _left_alone(self, host: str, now: float) -> FetchError | None:
        until, said = self._away.get(host, (0.0, ""))
        return FetchError("host_busy", said, transient=True) if now < until else None

    def _leave_alone(self, host: str, error: FetchError, now: float) -> None:
        self._away[host] = (now + error.retry_after, f"{error.value} with Retry-After: {error.retry_after:.0f}")
        if len(self._away) > _MOST_AWAY:
            self._away.popitem(last=False)

    def _refusal(self, rules: Rules, target: Address) -> FetchError | None:
        """Why robots.txt, or what came in its place, lets a page not be asked for."""
        if rules.unreachable:
            rule, _, value = rules.unreachable.partition(": ")
            if rule in _OF_THE_HOST:
                return FetchError(rule, value, transient=rule == "dns_error")
            return FetchError("robots_unreachable", rules.unreachable, transient=True)
        if not rules.allow(target.url):
            return FetchError("robots_denied", f"{target.origin}/robots.txt")
        return None

    def _follow(self, job: Job, target: Address, redirect: Redirect) -> None:
        """Lead a job to where it was redirected; raises FetchError when it must not go there."""
        job.redirects.append(f"{redirect.status} {target.url}")
        if len(job.redirects) > self._config.max_redirects:
            raise FetchError("too_many_redirects", len(job.redirects))
        following, note = self._fetcher.vet(redirect.url)
        if any(following.url == met.partition(" ")[2] for met in job.redirects):
            raise FetchError("redirect_loop", following.url)
        if target.scheme == "https" and following.scheme == "http":
            note = note or "redirected from https to http"
        # A chain of redirects is one attempt, however many hosts it leads over.
        job.attempts -= 1
        job.note = note or job.note
        job.target, job.host = following.url, following.host

    def _try_again(self, job: Job, error: FetchError, now: float) -> bool:
        wait = self.wait_before_retry(job, error, job.attempts)
        if wait is None:
            if error.busy and error.retry_after > LONGEST_WAIT:
                self._leave_alone(job.host, error, now)
            return False
        if error.busy or error.retry_after:
            self._frontier.hold(job.host, now + wait)
        self._frontier.add_first(job, now + wait)
        return True

    def wait_before_retry(self, job: Job, error: FetchError, attempts: int) -> float | None:
        """Seconds until the next attempt, or None when this was the last one.

        Exponential, between 50 and 100 % of its full length by a hash, so that URLs that failed
        together do not come back together.
        """
        if not error.again or attempts >= self._config.max_attempts or error.retry_after > LONGEST_WAIT:
            return None
        share = 0.5 + xxhash.xxh3_64_intdigest(f"{attempts} {job.target}".encode()) / 2**65
        backoff = min(self._config.backoff_seconds * 2 ** (attempts - 1), LONGEST_WAIT) * share
        return max(backoff, error.retry_after)

    def _outcome(
        self,
        job: Job,
        exchange: Exchange,
        error: FetchError | None,
        body: bytes = b"",
        started: str = "",
        seconds: float = 0.0,
    ) -> Fetched:
        # What a local site answers, and what is refused without asking, is of one moment.
        local = self._has_site and exchange.address in ("", LOOPBACK)
        return Fetched(
            url=job.url,
            rule=error.rule if error else PAGE,
            value=_valid(error.value) if error else "",
            transient=bool(error and error.transient),
            attempts=job.attempts,
            started=SITE_TIME if local else started or utc_now(),
            elapsed_ms=0 if local else round(seconds * 1000),
            final_url=exchange.url,
            redirects=tuple(job.redirects),
            note=job.note,
            status=exchange.status,
            address=exchange.address,
            request_head=exchange.request_head,
            response_head=_valid(exchange.response_head),
            body=body,
        )


def _valid(text: str) -> str:
    """Text without halves of surrogate pairs, which stand for the invalid bytes of a server."""
    return text.encode("utf-8", "backslashreplace").decode()


def utc_now() -> str:
    """This moment, to the second, as WARC and the fetch log write it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
