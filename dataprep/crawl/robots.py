"""robots.txt, fetched once per origin and kept for the run, read as RFC 9309 says.

A 4xx answer (but 429) allows everything; a server error or an origin that cannot be reached
forbids everything for now; redirects are followed; the first 500 KiB count.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from protego import Protego

ROBOTS_BYTES = 500 * 1024
LONGEST_CRAWL_DELAY = 60.0
"""Seconds; a longer Crawl-delay counts as this much."""
_KEPT_ORIGINS = 10_000


@dataclass(frozen=True, slots=True)
class RobotsReply:
    """What an origin said: a status and a body, or the error in place of them."""

    status: int = 0
    body: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of one origin: parsed ones, or (without) everything is allowed or nothing known."""

    rules: Protego | None = None
    unreachable: str = ""
    """Why nothing is known; then nothing may be fetched."""

    def allow(self, url: str, user_agent: str) -> bool:
        """Whether `url` may be fetched."""
        return self.rules is None or bool(self.rules.can_fetch(url, user_agent))

    def delay(self, user_agent: str) -> float:
        """Seconds between two requests that the origin asks for."""
        wanted = self.rules.crawl_delay(user_agent) if self.rules else None
        return min(float(wanted or 0.0), LONGEST_CRAWL_DELAY)


def read_robots(reply: RobotsReply) -> Rules:
    """The rules that follow from a reply."""
    if reply.error:
        return Rules(unreachable=reply.error)
    if 200 <= reply.status < 300:
        return Rules(Protego.parse(reply.body[:ROBOTS_BYTES].decode("utf-8-sig", "replace")))
    if 400 <= reply.status < 500 and reply.status != 429:
        return Rules()
    return Rules(unreachable=f"robots.txt answers {reply.status}")


class Robots:
    """The rules of every origin met so far; an origin is asked once, however many URLs wait for it."""

    def __init__(self, fetch: Callable[[str], Awaitable[RobotsReply]]) -> None:
        self._fetch = fetch
        self._origins: OrderedDict[str, asyncio.Task[Rules]] = OrderedDict()

    async def rules(self, origin: str) -> Rules:
        """The rules of `scheme://host[:port]`."""
        if origin not in self._origins:
            self._origins[origin] = asyncio.ensure_future(self._load(origin))
            if len(self._origins) > _KEPT_ORIGINS:
                self._origins.popitem(last=False)
        # Shielded: one URL that gives up waiting must not take the answer from the others.
        return await asyncio.shield(self._origins[origin])

    async def _load(self, origin: str) -> Rules:
        return read_robots(await self._fetch(f"{origin}/robots.txt"))
