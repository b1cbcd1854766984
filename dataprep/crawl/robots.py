"""robots.txt, kept for a day, read as RFC 9309 says.

A 4xx answer (but 429) allows everything; a server error or an origin that cannot be reached forbids
everything; the first 500 KiB count. How it is fetched, with redirects and retries: `manners`.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass

from protego import Protego

from dataprep.crawl.jobs import RobotsReply

ROBOTS_BYTES = 500 * 1024
LONGEST_CRAWL_DELAY = 60.0
"""Seconds; a longer Crawl-delay counts as this much."""
KEPT_SECONDS = 24 * 3600.0
"""RFC 9309 section 2.4: not used for longer."""
_KEPT_ORIGINS = 10_000
_KEPT_BYTES = 64 << 20
"""Of robots.txt as sent; parsed they take some ten times as much."""
_USER_AGENT = re.compile(r"\s*user(?:-|\s*)agent\s*[:\s]([^#]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one origin for one crawler: parsed ones, or (without) everything is allowed or nothing known."""

    rules: Protego | None = None
    agent: str = ""
    delay: float = 0.0
    """Seconds between two requests that the origin asks for."""
    unreachable: str = ""
    """Why nothing is known; then nothing may be fetched."""

    def allow(self, url: str) -> bool:
        """Whether `url` may be fetched."""
        return self.rules is None or bool(self.rules.can_fetch(url, self.agent))


def read_robots(reply: RobotsReply, user_agent: str) -> Rules:
    """The rules that follow from a reply, for the crawler that `user_agent` names before its first slash."""
    if reply.error:
        return Rules(unreachable=reply.error)
    if 200 <= reply.status < 300:
        return _parse(reply.body[:ROBOTS_BYTES].decode("utf-8-sig", "replace"), user_agent)
    if 400 <= reply.status < 500 and reply.status != 429:
        return Rules()
    return Rules(unreachable=f"robots.txt answers {reply.status}")


def _parse(text: str, user_agent: str) -> Rules:
    # RFC 9309 section 2.2.1: the product token alone. The whole header holds words that are names of others.
    agent = user_agent.partition("/")[0].strip().lower()
    rules = Protego.parse(own_groups(text, agent))
    return Rules(rules, agent, min(float(rules.crawl_delay(agent) or 0.0), LONGEST_CRAWL_DELAY))


def own_groups(text: str, agent: str) -> str:
    """A robots.txt in which all crawlers but `agent` and `*` have become one, and a name has no version.

    Protego keeps each rule once for each name of its group, which a file of many names and many rules
    turns into gigabytes.
    """
    lines: list[str] = []
    for line in text.splitlines():
        match = _USER_AGENT.match(line)
        if match is None:
            lines.append(line)
            continue
        name = match[1].partition("/")[0].strip().lower()
        group = f"User-agent: {name if name.replace('*', '') in agent else '-'}"
        if not lines or lines[-1] != group:
            lines.append(group)
    return "\n".join(lines)


class RobotsCache:
    """The rules of the origins met last: so many, of so many bytes, for a day."""

    def __init__(self) -> None:
        self._origins: OrderedDict[str, tuple[Rules, float, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._origins)

    def find(self, origin: str, now: float) -> Rules | None:
        """The rules of `scheme://host[:port]`, if they are known and fresh."""
        entry = self._origins.get(origin)
        if entry is None:
            return None
        rules, learned, _ = entry
        if now - learned > KEPT_SECONDS:
            self._drop(origin)
            return None
        self._origins.move_to_end(origin)
        return rules

    def keep(self, origin: str, rules: Rules, size: int, now: float) -> None:
        """Remember rules that were made of `size` bytes."""
        self._drop(origin)
        self._origins[origin] = (rules, now, size)
        self._bytes += size
        while len(self._origins) > _KEPT_ORIGINS or (self._bytes > _KEPT_BYTES and len(self._origins) > 1):
            self._drop(next(iter(self._origins)))

    def _drop(self, origin: str) -> None:
        if origin in self._origins:
            self._bytes -= self._origins.pop(origin)[2]
