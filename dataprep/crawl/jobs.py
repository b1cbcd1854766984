"""A URL on its way through the crawl: which host it asks next, and what it has met so far."""

import json
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RobotsReply:
    """What an origin said when asked for its robots.txt: a status and a body, or the error in place of them."""

    status: int = 0
    body: bytes = b""
    error: str = ""


@dataclass(slots=True)
class Walk:
    """The request for robots.txt that a job makes before its own: it may wait, fail and be redirected too."""

    origin: str
    """`scheme://host[:port]` whose rules are wanted."""
    home: str
    """The host of that origin, which starts nothing else meanwhile."""
    page: str
    """What the job goes on to request."""
    hops: int = 0
    attempts: int = 0
    reply: RobotsReply | None = None
    """The end of the walk; the job is then on its way home."""


@dataclass(slots=True)
class Job:
    """One URL of the list."""

    url: str
    """As it is listed."""
    host: str
    """Where `target` leads: the host whose turn it waits for."""
    target: str
    """The next request: the URL itself, where it was redirected to, or a robots.txt (see `walk`)."""
    attempts: int = 0
    redirects: list[str] = field(default_factory=list[str])
    """`<status> <url>` of each redirect so far."""
    note: str = ""
    walk: Walk | None = None

    def to_json(self) -> bytes:
        """As it is set aside on disk; a job on a walk is not."""
        assert self.walk is None
        return json.dumps([self.url, self.host, self.target, self.attempts, self.redirects, self.note]).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Job":
        """The reverse of `to_json`."""
        return cls(*json.loads(data))
