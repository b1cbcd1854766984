"""The frontier: which job may start next, so that each host is treated politely and none waits for another.

Pure but for its backlog: no network, no clock (the caller says what time it is). Hosts take turns. A
host has a limit of jobs under way, a least time between two starts, and a hold; a job may have a time
before which it is not due (a retry). Of each host only the next few jobs are in memory, the others
lie in the backlog, so neither a huge host nor a slow one fills it.
"""

import heapq
import math
from dataclasses import dataclass, field
from itertools import count

from dataprep.crawl.backlog import Backlog
from dataprep.crawl.jobs import Job

HOST_QUEUE = 16
"""Jobs of one host in memory."""


@dataclass(slots=True)
class Host:
    """The queue of one host and its manners."""

    limit: int
    delay: float
    waiting: list[Job] = field(default_factory=list[Job])
    later: list[tuple[float, int, Job]] = field(default_factory=list[tuple[float, int, Job]])
    """Heap of (due, order, job): retries, and jobs that come from elsewhere."""
    stored: bool = False
    """Whether more of its jobs lie in the backlog."""
    active: int = 0
    started: float = -math.inf
    """Time of its last start."""
    before: float = -math.inf
    """Time of the start before that."""
    hold: float = 0.0
    """No start before this time, whatever the delay."""
    turn: float = math.inf
    """Time of its entry in the frontier's heap; infinite when it has none."""

    def rested(self) -> float:
        """When it may be asked again."""
        return max(self.hold, self.started + self.delay)

    def due(self) -> float:
        """When its next job may start, its limit aside; infinite without jobs."""
        # A host with many retries to come is given no new jobs, which may only join them.
        if (self.waiting or self.stored) and len(self.later) < HOST_QUEUE:
            return self.rested()
        return max(self.rested(), self.later[0][0]) if self.later else math.inf

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way; not so while it is closed."""
        return not (self.waiting or self.later or self.stored or self.active) and self.limit > 0


class Frontier:
    """All jobs that have been met and are not done.

    A host starts with one job at a time, until `welcome` says what its robots.txt allows.
    """

    def __init__(self, delay: float, backlog: Backlog) -> None:
        self.in_memory = 0
        """Jobs that wait and are not in the backlog."""
        self._delay = delay
        self._backlog = backlog
        self._hosts: dict[str, Host] = {}
        self._turns: list[tuple[float, int, str]] = []
        self._order = count()

    def __len__(self) -> int:
        """Jobs that wait, wherever."""
        return self.in_memory + len(self._backlog)

    def add(self, job: Job) -> None:
        """Put a job at the end of its host's queue."""
        host = self._host(job.host)
        if host.stored or len(host.waiting) >= HOST_QUEUE:
            self._backlog.push(job)
            host.stored = True
        else:
            host.waiting.append(job)
            self.in_memory += 1
        self._give_turn(job.host, host)

    def add_first(self, job: Job, due: float) -> None:
        """Put a job before those that wait at its host, but do not start it before the time `due`."""
        host = self._host(job.host)
        heapq.heappush(host.later, (due, next(self._order), job))
        self.in_memory += 1
        self._give_turn(job.host, host)

    def add_redirected(self, job: Job, now: float) -> None:
        """Put a job that comes from elsewhere before those that wait, as long as there are not too many like it."""
        if len(self._host(job.host).later) < HOST_QUEUE:
            self.add_first(job, now)
        else:
            self.add(job)

    def welcome(self, name: str, limit: int, delay: float) -> None:
        """From now on at most `limit` jobs of a host at once, and `delay` seconds between two starts."""
        if host := self._hosts.get(name):
            host.limit, host.delay = limit, max(delay, self._delay)
            self._give_turn(name, host)

    def close_host(self, name: str) -> None:
        """Start nothing at a host until it is welcome again, nor forget it."""
        self._host(name).limit = 0

    def hold(self, name: str, until: float) -> None:
        """No start at a host before `until`."""
        host = self._host(name)
        host.hold = max(host.hold, until)

    def take(self, now: float) -> Job | None:
        """The next job that may start, or None; its host must be given back with `done`."""
        while self._turns and self._turns[0][0] <= now:
            turn, _, name = heapq.heappop(self._turns)
            host = self._hosts.get(name)
            if host is None or turn != host.turn:
                continue
            host.turn = math.inf
            if host.active < host.limit and host.due() <= now:
                job = self._pop(name, host, now)
                host.active += 1
                host.before, host.started = host.started, now
                self._give_turn(name, host, now)
                return job
            self._forget_or_give_turn(name, host, now)
        return None

    def done(self, name: str, now: float, *, asked: bool = True) -> None:
        """A job of host `name` that was taken is no longer under way; unless it `asked`, its start does not count."""
        host = self._hosts[name]
        host.active -= 1
        if not asked:
            host.started = host.before
        self._forget_or_give_turn(name, host, now)

    def next_turn(self) -> float:
        """When `take` may have a job again; infinite while all wait for others to be done."""
        return self._turns[0][0] if self._turns else math.inf

    def _host(self, name: str) -> Host:
        if name not in self._hosts:
            self._hosts[name] = Host(1, self._delay)
        return self._hosts[name]

    def _pop(self, name: str, host: Host, now: float) -> Job:
        self.in_memory -= 1
        if host.later and host.later[0][0] <= now:
            return heapq.heappop(host.later)[2]
        if not host.waiting:
            host.waiting = self._backlog.pull(name, HOST_QUEUE)
            host.stored = name in self._backlog
            self.in_memory += len(host.waiting)
        return host.waiting.pop(0)

    def _forget_or_give_turn(self, name: str, host: Host, now: float) -> None:
        # A host is remembered until it has rested, or its next job would come too early.
        if host.idle and host.rested() <= now:
            del self._hosts[name]
        else:
            self._give_turn(name, host, now)

    def _give_turn(self, name: str, host: Host, now: float = 0.0) -> None:
        if host.active >= host.limit:
            return
        turn = max(host.rested() if host.idle else host.due(), now)
        if turn < host.turn:
            host.turn = turn
            heapq.heappush(self._turns, (turn, next(self._order), name))
