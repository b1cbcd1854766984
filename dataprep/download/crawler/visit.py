"""One visit: what a job does when its turn comes, and where it goes next.

A visit makes at most one request. It ends with the outcome of the URL, or sends the job on: back to the frontier for
a later retry, or to the host that a redirect names. The first job at a host fetches its robots.txt before anything
else, retries with a backoff if that fails, and follows its redirects from host to host. Each of these requests is a
separate start in the frontier, so limits and delays hold for them too, and nothing else starts at the origin's host
until the job is back there with a reply. Then it goes on to its page.
"""

import asyncio
import dataclasses
import datetime
from collections import OrderedDict
from collections.abc import Callable, Sequence

import xxhash

from dataprep.download.config import Identity, Retries
from dataprep.download.crawler.frontier import Frontier, RobotsFetch, UrlJob
from dataprep.download.crawler.local_site import LOOPBACK, SITE_TIME
from dataprep.download.crawler.request import Exchange, Fetcher, FetchError, Redirect
from dataprep.download.crawler.robots import RobotsCache, RobotsReply, Rules, read_robots
from dataprep.download.opt_outs import FILES
from dataprep.download.opt_outs import read_file as opt_outs_of
from dataprep.download.outcomes import PAGE, Fetched
from pipelines.identity import Address

ROBOTS_TXT = "/robots.txt"
LONGEST_WAIT = 300.0
"""Longest wait in seconds before a retry; a server that asks for more is left to a later run."""
_MOST_REDIRECTS = 5
"""Redirects followed from a robots.txt (RFC 9309, section 2.3.1.2)."""
_MOST_AWAY = 10_000
_OF_THE_HOST = ("private_address", "dns_error")
"""Rules of a failed request for robots.txt that hold for every path of the host."""


class HostPolicy:
    """The robots.txt rules of this process's hosts, and the fetches by which it learns them.

    `send` passes a job to its host, whichever process owns it.
    """

    def __init__(
        self,
        identity: Identity,
        per_host: int,
        retries: Retries,
        fetcher: Fetcher,
        frontier: Frontier,
        send: Callable[[UrlJob], None],
    ) -> None:
        self._identity = identity
        self._per_host = per_host
        self._retries = retries
        self._fetcher = fetcher
        self._frontier = frontier
        self._send = send
        self._files = site_files(identity)
        self._cache = RobotsCache()
        self._waiting: dict[str, list[UrlJob]] = {}
        """Origin -> jobs that wait for its robots.txt, since they were running when its fetch began."""

    def rules(self, target: Address, now: float) -> Rules | None:
        """Return the rules of the target's origin, or None if they must be fetched first."""
        rules = self._cache.find(target.origin, now) if self._files else Rules()
        if rules is not None:
            self._set_policy(target.host, rules)
        return rules

    def begin(self, job: UrlJob, target: Address) -> bool:
        """Make a job fetch the robots.txt of its target; if another job already does, let it wait and return False."""
        if target.origin in self._waiting:
            self._waiting[target.origin].append(job)
            return False
        self._waiting[target.origin] = []
        self._frontier.set_policy(target.host, 1, 0.0)
        job.robots_fetch = RobotsFetch(target.origin, target.host, job.target)
        job.target = f"{target.origin}{self._files[0]}"
        return True

    async def ask(self, job: UrlJob, target: Address, now: Callable[[], float]) -> None:
        """Request the robots.txt that a job is to fetch, and send the job on."""
        fetch = job.robots_fetch
        assert fetch is not None
        fetch.attempts += 1
        try:
            answer = await self._fetcher.robots(target)
        except FetchError as error:
            self._failed(job, fetch, error, now())
            return
        if isinstance(answer, Redirect):
            self._redirected(job, fetch, answer)
        else:
            self._return(job, fetch, answer)

    def learn(self, job: UrlJob, now: float) -> None:
        """Send a job for the next file of its origin, or cache the rules and resume the jobs that waited for them."""
        fetch = job.robots_fetch
        assert fetch is not None
        assert fetch.reply is not None
        fetch.replies.append(fetch.reply)
        fetch.reply = None
        rules = self._read(fetch.replies)
        if len(fetch.replies) < len(self._files) and not rules.unreachable:
            fetch.hops = fetch.attempts = 0
            job.target = f"{fetch.origin}{self._files[len(fetch.replies)]}"
            self._frontier.set_policy(fetch.origin_host, 1, rules.delay)
            self._frontier.add_first(job, now)
            return
        self._cache.keep(fetch.origin, rules, sum(len(reply.body) for reply in fetch.replies), now)
        self._set_policy(fetch.origin_host, rules)
        job.robots_fetch, job.target = None, fetch.page
        for waiting in (job, *self._waiting.pop(fetch.origin, [])):
            self._frontier.add_first(waiting, now)

    def _read(self, replies: Sequence[RobotsReply]) -> Rules:
        """Return the rules from the files of an origin that were read so far."""
        by_file = dict(zip(self._files, replies, strict=False))
        robots = by_file.pop(ROBOTS_TXT, None)
        rules = read_robots(robots, self._identity.user_agent) if robots else Rules()
        opt_outs = [opt_outs_of(file, reply, self._identity.user_agent) for file, reply in by_file.items()]
        return dataclasses.replace(rules, opt_outs=opt_outs)

    def _set_policy(self, host: str, rules: Rules) -> None:
        self._frontier.set_policy(host, 1 if rules.delay else self._per_host, rules.delay)

    def _failed(self, job: UrlJob, fetch: RobotsFetch, error: FetchError, now: float) -> None:
        wait = wait_before_retry(self._retries, job, error, fetch.attempts)
        if wait is None:
            reason = f"robots.txt answers {error.value}" if error.rule == "http_status" else str(error)
            # A failure on another host says nothing about the origin's host itself.
            self._return(job, fetch, RobotsReply(error=f"after a redirect: {reason}" if fetch.hops else reason))
            return
        if job.host == fetch.origin_host or error.busy:
            self._frontier.hold(job.host, now + wait)
        self._frontier.add_first(job, now + wait)

    def _redirected(self, job: UrlJob, fetch: RobotsFetch, redirect: Redirect) -> None:
        fetch.hops += 1
        if fetch.hops > _MOST_REDIRECTS:
            self._return(job, fetch, RobotsReply(404))  # as if there were no robots.txt
            return
        try:
            target, _ = self._fetcher.vet(redirect.url)
        except FetchError as error:
            self._return(job, fetch, RobotsReply(error=f"after a redirect: {error}"))
            return
        if job.host == fetch.origin_host and target.host != fetch.origin_host:
            self._frontier.close_host(fetch.origin_host)
        job.target, job.host = target.url, target.host
        self._send(job)

    def _return(self, job: UrlJob, fetch: RobotsFetch, reply: RobotsReply) -> None:
        fetch.reply = reply
        job.host = fetch.origin_host
        self._send(job)


def site_files(identity: Identity) -> list[str]:
    """Return the paths of the files about a whole origin that are asked for before its first page."""
    wanted = [path for path, opt_out in FILES.items() if opt_out in identity.opt_outs]
    return [ROBOTS_TXT, *wanted] if identity.robots else wanted


def wait_before_retry(retries: Retries, job: UrlJob, error: FetchError, attempts: int) -> float | None:
    """Return the seconds until the next attempt, or None if this was the last one.

    The backoff is exponential; a hash picks between 50 and 100 % of its full length, so that URLs that failed
    together are not retried together.
    """
    if not error.again or attempts >= retries.max_attempts or error.retry_after > LONGEST_WAIT:
        return None
    fraction = 0.5 + xxhash.xxh3_64_intdigest(f"{attempts} {job.target}".encode()) / 2**65
    backoff = min(retries.backoff_seconds * 2 ** (attempts - 1), LONGEST_WAIT) * fraction
    return max(backoff, error.retry_after)


class Visits:
    """Makes visits; `send` passes a job to its host, whichever process owns it."""

    def __init__(
        self,
        max_redirects: int,
        retries: Retries,
        policy: HostPolicy,
        fetcher: Fetcher,
        frontier: Frontier,
        send: Callable[[UrlJob], None],
        *,
        has_site: bool,
    ) -> None:
        self._max_redirects = max_redirects
        self._retries = retries
        self._policy = policy
        self._fetcher = fetcher
        self._frontier = frontier
        self._send = send
        self._has_site = has_site
        self._away: OrderedDict[str, tuple[float, str]] = OrderedDict()
        """Hosts that asked for a pause longer than this crawl waits -> end of the pause, and what they said."""

    def first_job(self, url: str) -> UrlJob | Fetched:
        """Return the job of a listed URL, or its outcome if the URL may not be requested at all."""
        job = UrlJob(url, "", url, attempts=1)
        try:
            target, job.note = self._fetcher.vet(url)
        except FetchError as error:
            return self._outcome(job, Exchange(), error)
        job.host, job.attempts = target.host, 0
        return job

    async def visit(self, job: UrlJob) -> tuple[Fetched | None, bool]:
        """Make a visit for a job; return its outcome, if this was its last visit, and whether a request was made."""
        loop = asyncio.get_running_loop()
        target, _ = self._fetcher.vet(job.target)
        if not job.robots_fetch and (refusal := self._left_alone(job.host, loop.time())):
            job.attempts += 1
            return self._outcome(job, Exchange(target.url), refusal), False
        rules = None if job.robots_fetch else self._policy.rules(target, loop.time())
        if rules is None:
            if not job.robots_fetch and not self._policy.begin(job, target):
                return None, False
            target, _ = self._fetcher.vet(job.target)
            await self._policy.ask(job, target, loop.time)
            return None, True
        job.attempts += 1
        exchange = Exchange(target.url)
        if refusal := self._refusal(rules, target):
            return self._outcome(job, exchange, refusal), False
        return await self._request(job, target, exchange), True

    async def _request(self, job: UrlJob, target: Address, exchange: Exchange) -> Fetched | None:
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
        """Return why robots.txt, or the failure to fetch it, forbids a page, if it does."""
        if rules.unreachable:
            rule, _, value = rules.unreachable.partition(": ")
            if rule in _OF_THE_HOST:
                return FetchError(rule, value, transient=rule == "dns_error")
            return FetchError("robots_unreachable", rules.unreachable, transient=True)
        if not rules.allow(target.url):
            return FetchError("robots_denied", f"{target.origin}/robots.txt")
        reasons = (opted_out(target.url) for opted_out in rules.opt_outs)
        return next((FetchError(*reason) for reason in reasons if reason), None)

    def _follow(self, job: UrlJob, target: Address, redirect: Redirect) -> None:
        """Point a job at the target of a redirect; raises FetchError if the job must not go there."""
        job.redirects.append(f"{redirect.status} {target.url}")
        if len(job.redirects) > self._max_redirects:
            raise FetchError("too_many_redirects", len(job.redirects))
        following, note = self._fetcher.vet(redirect.url)
        if any(following.url == redirect.partition(" ")[2] for redirect in job.redirects):
            raise FetchError("redirect_loop", following.url)
        if target.scheme == "https" and following.scheme == "http":
            note = note or "redirected from https to http"
        # A chain of redirects is one attempt, however many hosts it visits.
        job.attempts -= 1
        job.note = note or job.note
        job.target, job.host = following.url, following.host

    def _try_again(self, job: UrlJob, error: FetchError, now: float) -> bool:
        wait = wait_before_retry(self._retries, job, error, job.attempts)
        if wait is None:
            if error.busy and error.retry_after > LONGEST_WAIT:
                self._leave_alone(job.host, error, now)
            return False
        if error.busy or error.retry_after:
            self._frontier.hold(job.host, now + wait)
        self._frontier.add_first(job, now + wait)
        return True

    def _outcome(
        self,
        job: UrlJob,
        exchange: Exchange,
        error: FetchError | None,
        body: bytes = b"",
        started: str = "",
        seconds: float = 0.0,
    ) -> Fetched:
        # Answers of a local site, and URLs refused without a request, get a fixed timestamp.
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
    """Escape lone surrogates in a text; they stand for invalid bytes sent by a server."""
    return text.encode("utf-8", "backslashreplace").decode()


def utc_now() -> str:
    """Return the current time to the second, in the format of WARC and the fetch log."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
