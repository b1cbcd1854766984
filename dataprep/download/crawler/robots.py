"""robots.txt, read by the rules of RFC 9309 and cached for a day.

A 4xx answer (except 429) allows everything; a server error or an unreachable origin forbids everything; only the
first 500 KiB count. `HostPolicy` fetches it, with redirects and retries.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass

from protego import Protego

ROBOTS_BYTES = 500 * 1024
LONGEST_CRAWL_DELAY = 60.0
"""Seconds; a longer Crawl-delay is cut to this."""
KEPT_SECONDS = 24 * 3600.0
"""Longest use of a cached robots.txt (RFC 9309, section 2.4)."""
_KEPT_ORIGINS = 10_000
_KEPT_BYTES = 64 << 20
"""Size of the cached robots.txt as sent; parsed, they take about ten times as much memory."""
_USER_AGENT = re.compile(r"\s*user(?:-|\s*)agent\s*[:\s]([^#]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RobotsReply:
    """An origin's answer to the request for its robots.txt: a status and a body, or an error instead."""

    status: int = 0
    body: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one origin for one crawler; without parsed `rules`, everything is allowed unless `unreachable`."""

    rules: Protego | None = None
    agent: str = ""
    delay: float = 0.0
    """The origin's Crawl-delay: seconds between two requests."""
    unreachable: str = ""
    """Why the rules are unknown; if it is set, nothing may be fetched."""

    def allow(self, url: str) -> bool:
        """Return whether `url` may be fetched."""
        return self.rules is None or bool(self.rules.can_fetch(url, self.agent))


def read_robots(reply: RobotsReply, user_agent: str) -> Rules:
    """Read the rules from a reply, for the crawler named in `user_agent` before the first slash."""
    if reply.error:
        return Rules(unreachable=reply.error)
    if 200 <= reply.status < 300:
        return _parse(reply.body[:ROBOTS_BYTES].decode("utf-8-sig", "replace"), user_agent)
    if 400 <= reply.status < 500 and reply.status != 429:
        return Rules()
    return Rules(unreachable=f"robots.txt answers {reply.status}")


def _parse(text: str, user_agent: str) -> Rules:
    # RFC 9309, section 2.2.1: match the product token alone. The whole header may contain names of other crawlers.
    agent = user_agent.partition("/")[0].strip().lower()
    rules = Protego.parse(merge_other_groups(text, agent))
    return Rules(rules, agent, min(float(rules.crawl_delay(agent) or 0.0), LONGEST_CRAWL_DELAY))


def merge_other_groups(text: str, agent: str) -> str:
    """Return a robots.txt in which all crawlers except `agent` and `*` have one name, and names have no version.

    Protego stores each rule once for each name in its group; for a file of many names and many rules, that takes
    gigabytes.
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
    """The rules of the most recently used origins, for a day; limited in number and size."""

    def __init__(self) -> None:
        self._origins: OrderedDict[str, tuple[Rules, float, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._origins)

    def find(self, origin: str, now: float) -> Rules | None:
        """Return the rules of `scheme://host[:port]`, if they are cached and fresh."""
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
        """Cache rules that were parsed from `size` bytes."""
        self._drop(origin)
        self._origins[origin] = (rules, now, size)
        self._bytes += size
        while len(self._origins) > _KEPT_ORIGINS or (self._bytes > _KEPT_BYTES and len(self._origins) > 1):
            self._drop(next(iter(self._origins)))

    def _drop(self, origin: str) -> None:
        if origin in self._origins:
            self._bytes -= self._origins.pop(origin)[2]
