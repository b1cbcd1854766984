"""The frontier: which URL may be fetched next, so that each host is treated politely and none waits for another.

Pure: no network, no clock (the caller says what time it is). Per host, URLs wait in order; a URL may
carry a time before which it is not due (a retry); a host has a limit of URLs under way at once and
a least time between two starts. Hosts take turns.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True)
class Job:
    """One URL to fetch, and how often it has been tried."""

    url: str
    host: str
    attempts: int = 0


@dataclass(slots=True)
class Host:
    """The queue of one host and its manners."""

    limit: int
    delay: float
    waiting: deque[Job] = field(default_factory=deque[Job])
    later: list[tuple[float, int, Job]] = field(default_factory=list[tuple[float, int, Job]])
    """Heap of (due, order, job)."""
    active: int = 0
    started: float = -math.inf
    """Time of its last start."""
    hold: float = 0.0
    """No start before this time, whatever the delay."""
    turn: float = math.inf
    """Time of its entry in the frontier's heap; infinite when it has none."""

    def due(self) -> float:
        """When its next job may start, its limit aside; infinite without jobs."""
        ready = max(self.hold, self.started + self.delay)
        if self.waiting:
            return ready
        return max(ready, self.later[0][0]) if self.later else math.inf

    def pop(self, now: float) -> Job:
        """Its next job: a retry that is due goes first."""
        if self.later and self.later[0][0] <= now:
            return heapq.heappop(self.later)[2]
        return self.waiting.popleft()


class Frontier:
    """All URLs that are still to fetch.

    A host starts with one URL at a time, until `welcome` says what its robots.txt allows.
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._hosts: dict[str, Host] = {}
        self._turns: list[tuple[float, int, str]] = []
        self._order = count()

    def add(self, job: Job, due: float = 0.0) -> None:
        """Put a job in its host's queue; it is not started before the time `due`."""
        host = self._hosts.setdefault(job.host, Host(1, self._delay))
        if due:
            heapq.heappush(host.later, (due, next(self._order), job))
        else:
            host.waiting.append(job)
        self._give_turn(job.host, host)

    def welcome(self, name: str, limit: int, delay: float) -> None:
        """From now on at most `limit` jobs of a host at once, and `delay` seconds between two starts."""
        if host := self._hosts.get(name):
            host.limit, host.delay = limit, max(delay, self._delay)
            self._give_turn(name, host)

    def hold(self, name: str, until: float) -> None:
        """No start at a host before `until`."""
        if host := self._hosts.get(name):
            host.hold = max(host.hold, until)

    def take(self, now: float) -> Job | None:
        """The next job that may start, or None; each must be given back with `done`."""
        while self._turns and self._turns[0][0] <= now:
            turn, _, name = heapq.heappop(self._turns)
            host = self._hosts.get(name)
            if host is None or turn != host.turn:
                continue
            host.turn = math.inf
            if host.active < host.limit and host.due() <= now:
                job = host.pop(now)
                host.active += 1
                host.started = now
                self._give_turn(name, host, now)
                return job
            self._give_turn(name, host, now)
        return None

    def done(self, job: Job) -> None:
        """A job that was taken is no longer under way."""
        host = self._hosts[job.host]
        host.active -= 1
        if host.active == 0 and host.due() == math.inf:
            del self._hosts[job.host]
        else:
            self._give_turn(job.host, host)

    def next_turn(self) -> float:
        """When `take` may have a job again; infinite while all wait for others to be done."""
        return self._turns[0][0] if self._turns else math.inf

    def _give_turn(self, name: str, host: Host, now: float = 0.0) -> None:
        if host.active >= host.limit:
            return
        turn = max(host.due(), now)
        if turn < host.turn:
            host.turn = turn
            heapq.heappush(self._turns, (turn, next(self._order), name))
