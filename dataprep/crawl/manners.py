"""How a host wants to be treated: its robots.txt is asked for before anything else, by the first job that comes.

That job goes on a walk: it requests robots.txt, again after a backoff when that fails, and from host
to host when it is redirected, each time as a start of its own in the frontier, so that limits and
delays hold for these requests too. Meanwhile its home host starts nothing else. Back home with a
reply, it goes on to its page.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dataprep.crawl.failures import FetchError
from dataprep.crawl.fetcher import Fetcher, Redirect
from dataprep.crawl.frontier import Frontier
from dataprep.crawl.jobs import Job, RobotsReply, Walk
from dataprep.crawl.robots import RobotsCache, Rules, read_robots
from pipelines.identity import Address

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig

_MOST_REDIRECTS = 5
"""RFC 9309 section 2.3.1.2."""


class Manners:
    """The rules of the hosts that are ours, and the walks by which they are learned.

    `send` brings a job to its host, wherever that is looked after; `retry` says how long a failed job
    waits, or None when it has failed too often.
    """

    def __init__(
        self,
        config: "DownloadConfig",
        fetcher: Fetcher,
        frontier: Frontier,
        send: Callable[[Job], None],
        retry: Callable[[Job, FetchError, int], float | None],
    ) -> None:
        self._config = config
        self._fetcher = fetcher
        self._frontier = frontier
        self._send = send
        self._retry = retry
        self._cache = RobotsCache()
        self._walks: dict[str, list[Job]] = {}
        """Origin -> jobs that wait for the walk to it: those that were under way when it began."""

    def rules(self, target: Address, now: float) -> Rules | None:
        """What the target's origin allows, or None when that must be learned first."""
        rules = self._cache.find(target.origin, now) if self._config.robots else Rules()
        if rules is not None:
            self._welcome(target.host, rules)
        return rules

    def begin(self, job: Job, target: Address) -> bool:
        """Send a job on the walk to the rules of its target; whether it may ask now (else it waits for another)."""
        if target.origin in self._walks:
            self._walks[target.origin].append(job)
            return False
        self._walks[target.origin] = []
        self._frontier.welcome(target.host, 1, 0.0)
        job.walk = Walk(target.origin, target.host, job.target)
        job.target = f"{target.origin}/robots.txt"
        return True

    async def ask(self, job: Job, target: Address, now: Callable[[], float]) -> None:
        """Make the request that a job on a walk is there for, and send the job on."""
        walk = job.walk
        assert walk is not None
        walk.attempts += 1
        try:
            answer = await self._fetcher.robots(target)
        except FetchError as error:
            self._failed(job, walk, error, now())
            return
        if isinstance(answer, Redirect):
            self._redirected(job, walk, answer)
        else:
            self._return(job, walk, answer)

    def learn(self, job: Job, now: float) -> None:
        """A job is back home: from now on the rules of its origin are known."""
        walk = job.walk
        assert walk is not None
        assert walk.reply is not None
        rules = read_robots(walk.reply, self._config.user_agent)
        self._cache.keep(walk.origin, rules, len(walk.reply.body), now)
        self._welcome(walk.home, rules)
        job.walk, job.target = None, walk.page
        for waiting in (job, *self._walks.pop(walk.origin, [])):
            self._frontier.add_first(waiting, now)

    def _welcome(self, host: str, rules: Rules) -> None:
        self._frontier.welcome(host, 1 if rules.delay else self._config.per_host, rules.delay)

    def _failed(self, job: Job, walk: Walk, error: FetchError, now: float) -> None:
        wait = self._retry(job, error, walk.attempts)
        if wait is None:
            reason = f"robots.txt answers {error.value}" if error.rule == "http_status" else str(error)
            # What goes wrong elsewhere says nothing about the home host itself.
            self._return(job, walk, RobotsReply(error=f"after a redirect: {reason}" if walk.hops else reason))
            return
        if job.host == walk.home or error.busy:
            self._frontier.hold(job.host, now + wait)
        self._frontier.add_first(job, now + wait)

    def _redirected(self, job: Job, walk: Walk, redirect: Redirect) -> None:
        walk.hops += 1
        if walk.hops > _MOST_REDIRECTS:
            self._return(job, walk, RobotsReply(404))  # as if there were none
            return
        try:
            target, _ = self._fetcher.vet(redirect.url)
        except FetchError as error:
            self._return(job, walk, RobotsReply(error=f"after a redirect: {error}"))
            return
        if job.host == walk.home and target.host != walk.home:
            self._frontier.close_host(walk.home)
        job.target, job.host = target.url, target.host
        self._send(job)

    def _return(self, job: Job, walk: Walk, reply: RobotsReply) -> None:
        walk.reply = reply
        job.host = walk.home
        self._send(job)
