"""The frontier: decides which job may start next, so that each host is treated politely and none waits for another.

Pure except for its backlog: it uses no network and no clock (the caller passes the time). Hosts take turns. A host
has a limit on running jobs, a minimum time between two starts, and a hold; a job may have a time before which it is
not due (a retry). Only the next few jobs of each host are in memory and the others in the backlog, so neither a huge
host nor a slow one fills the memory.
"""

import heapq
import json
import math
import os
import struct
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from dataprep.download.crawler.robots import RobotsReply

HOST_QUEUE = 16
"""Most jobs of one host in memory."""
_HEADER = struct.Struct("<QI")  # where the record below starts, bytes of this job
_BOTTOM = 2**64 - 1
_GUESS = 512
"""Bytes of a record to read at first; most are shorter."""


@dataclass(slots=True)
class RobotsFetch:
    """The fetch of a robots.txt that a job makes before its own request; it too may wait, fail and be redirected.

    Further files of the origin, if any are wanted, follow one after the other.
    """

    origin: str
    """`scheme://host[:port]` whose rules are wanted."""
    origin_host: str
    """The host of that origin; nothing else starts there until the fetch is done."""
    page: str
    """The URL that the job requests afterwards."""
    hops: int = 0
    attempts: int = 0
    reply: RobotsReply | None = None
    """The result; once it is set, the job is on its way back to `origin_host`."""
    replies: list[RobotsReply] = field(default_factory=list[RobotsReply])
    """The results that were brought back."""


@dataclass(slots=True)
class UrlJob:
    """One URL of the list on its way through the crawl: which host it asks next, and what has happened so far."""

    url: str
    """The URL as it is listed."""
    host: str
    """The host of `target`, whose turn the job waits for."""
    target: str
    """The next URL to request: the URL itself, a redirect's target, or a robots.txt (see `robots_fetch`)."""
    attempts: int = 0
    redirects: list[str] = field(default_factory=list[str])
    """`<status> <url>` of each redirect so far."""
    note: str = ""
    robots_fetch: RobotsFetch | None = None

    def to_json(self) -> bytes:
        """Return the job as the backlog stores it; a job in the middle of a robots fetch never goes there."""
        assert self.robots_fetch is None
        return json.dumps([self.url, self.host, self.target, self.attempts, self.redirects, self.note]).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "UrlJob":
        """Read what `to_json` wrote."""
        return cls(*json.loads(data))


class Backlog:
    """Jobs for which memory has no room, on disk: a stack for each host, all in one file.

    A record holds the offset of the one below it, so memory holds two numbers per host and nothing per job. The file
    is created with the first job, and only grows, by one short record for each job.
    """

    def __init__(self, file: Path) -> None:
        self._path = file
        self._tops: dict[str, tuple[int, int]] = {}
        """Host -> offset of its topmost record, and number of its records."""
        self._descriptor = -1
        self._end = 0
        self._written = 0
        self._buffer = bytearray()
        self._jobs = 0

    def __len__(self) -> int:
        return self._jobs

    def __contains__(self, host: str) -> bool:
        return host in self._tops

    def push(self, job: UrlJob) -> None:
        """Store a job."""
        data = job.to_json()
        below, number = self._tops.get(job.host, (_BOTTOM, 0))
        self._tops[job.host] = (self._end, number + 1)
        self._buffer += _HEADER.pack(below, len(data)) + data
        self._end += _HEADER.size + len(data)
        self._jobs += 1
        if len(self._buffer) > 1 << 16:
            self._flush()

    def pull(self, host: str, most: int) -> list[UrlJob]:
        """Remove and return up to `most` jobs of a host, the latest first."""
        if host not in self._tops:
            return []
        self._flush()
        jobs: list[UrlJob] = []
        top, number = self._tops.pop(host)
        while number and len(jobs) < most:
            data = os.pread(self._descriptor, _GUESS, top)
            below, size = _HEADER.unpack_from(data)
            if len(data) < _HEADER.size + size:
                data = os.pread(self._descriptor, _HEADER.size + size, top)
            jobs.append(UrlJob.from_json(data[_HEADER.size : _HEADER.size + size]))
            top, number = below, number - 1
        if number:
            self._tops[host] = (top, number)
        self._jobs -= len(jobs)
        return jobs

    def close(self) -> None:
        """Close the file; it is deleted with its folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _flush(self) -> None:
        if self._descriptor < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        rest = memoryview(self._buffer)
        while rest:
            sent = os.pwrite(self._descriptor, rest, self._written)
            self._written += sent
            rest = rest[sent:]
        self._buffer = bytearray()


@dataclass(slots=True)
class Host:
    """The queue of one host and its limits."""

    limit: int
    delay: float
    waiting: list[UrlJob] = field(default_factory=list[UrlJob])
    later: list[tuple[float, int, UrlJob]] = field(default_factory=list[tuple[float, int, UrlJob]])
    """Heap of (due, order, job): retries, and jobs redirected from other hosts."""
    stored: bool = False
    """Whether more of its jobs are in the backlog."""
    active: int = 0
    started: float = -math.inf
    """Time of its last start."""
    before: float = -math.inf
    """Time of the start before that."""
    hold: float = 0.0
    """Time before which nothing starts, whatever the delay."""
    turn: float = math.inf
    """Time of its entry in the frontier's heap; infinite if it has none."""

    def rested(self) -> float:
        """Return the time from which it may be requested again."""
        return max(self.hold, self.started + self.delay)

    def due(self) -> float:
        """Return the time at which its next job may start, if its limit allows; infinite without jobs."""
        # A host with many pending retries is given no new jobs, which would probably fail and join them.
        if (self.waiting or self.stored) and len(self.later) < HOST_QUEUE:
            return self.rested()
        return max(self.rested(), self.later[0][0]) if self.later else math.inf

    @property
    def idle(self) -> bool:
        """Whether no job waits and none is running; a closed host is not idle."""
        return not (self.waiting or self.later or self.stored or self.active) and self.limit > 0


class Frontier:
    """All jobs that were added and are not done.

    A host starts with one job at a time, until `set_policy` sets what its robots.txt allows.
    """

    def __init__(self, delay: float, backlog: Backlog) -> None:
        self.in_memory = 0
        """Number of waiting jobs that are not in the backlog."""
        self._delay = delay
        self._backlog = backlog
        self._hosts: dict[str, Host] = {}
        self._turns: list[tuple[float, int, str]] = []
        self._order = count()

    def __len__(self) -> int:
        """Return the number of waiting jobs, in memory and in the backlog."""
        return self.in_memory + len(self._backlog)

    def add(self, job: UrlJob) -> None:
        """Put a job at the end of its host's queue."""
        host = self._host(job.host)
        if host.stored or len(host.waiting) >= HOST_QUEUE:
            self._backlog.push(job)
            host.stored = True
        else:
            host.waiting.append(job)
            self.in_memory += 1
        self._give_turn(job.host, host)

    def add_first(self, job: UrlJob, due: float) -> None:
        """Put a job before the others of its host, but do not start it before the time `due`."""
        host = self._host(job.host)
        heapq.heappush(host.later, (due, next(self._order), job))
        self.in_memory += 1
        self._give_turn(job.host, host)

    def add_redirected(self, job: UrlJob, now: float) -> None:
        """Put a job from another host before the others of its host, unless there are too many like it."""
        if len(self._host(job.host).later) < HOST_QUEUE:
            self.add_first(job, now)
        else:
            self.add(job)

    def set_policy(self, name: str, limit: int, delay: float) -> None:
        """Set how many jobs of a host may run at once, and the seconds between two starts."""
        if host := self._hosts.get(name):
            host.limit, host.delay = limit, max(delay, self._delay)
            self._give_turn(name, host)

    def close_host(self, name: str) -> None:
        """Start nothing at a host, and do not forget it, until its policy is set again."""
        self._host(name).limit = 0

    def hold(self, name: str, until: float) -> None:
        """Start nothing at a host before `until`."""
        host = self._host(name)
        host.hold = max(host.hold, until)

    def take(self, now: float) -> UrlJob | None:
        """Return the next job that may start, or None; `done` must be called for its host afterwards."""
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
        """End a job taken from host `name`; unless it made a request (`asked`), its start does not count."""
        host = self._hosts[name]
        host.active -= 1
        if not asked:
            host.started = host.before
        self._forget_or_give_turn(name, host, now)

    def next_turn(self) -> float:
        """Return the time at which `take` may have a job again; infinite while all wait for others to end."""
        return self._turns[0][0] if self._turns else math.inf

    def _host(self, name: str) -> Host:
        if name not in self._hosts:
            self._hosts[name] = Host(1, self._delay)
        return self._hosts[name]

    def _pop(self, name: str, host: Host, now: float) -> UrlJob:
        self.in_memory -= 1
        if host.later and host.later[0][0] <= now:
            return heapq.heappop(host.later)[2]
        if not host.waiting:
            host.waiting = self._backlog.pull(name, HOST_QUEUE)
            host.stored = name in self._backlog
            self.in_memory += len(host.waiting)
        return host.waiting.pop(0)

    def _forget_or_give_turn(self, name: str, host: Host, now: float) -> None:
        # A host is remembered until its delay has passed; forgotten earlier, its next job would start too early.
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
