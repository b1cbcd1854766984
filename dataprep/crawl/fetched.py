"""What became of one URL: as the crawler makes it, as it is kept, and as it goes from one to the other."""

import dataclasses
import hashlib
import json
from typing import Any, Self

PAGE = ""
"""The `rule` of a URL that gave a page."""
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
"""HTTP statuses whose Location is followed."""
NOT_IN_ARCHIVE = "not_in_archive"
"""The `rule` of a URL that the archive to be replayed does not have."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known of one URL beside the bytes that were sent."""

    url: str
    """As it stands in the list."""
    rule: str = PAGE
    """Why there is no page (http_status, robots_denied, private_address, ...), or PAGE."""
    value: str = ""
    """What the rule saw: a status, an address, an error."""
    transient: bool = False
    """The failure may be gone tomorrow: a later run asks again."""
    attempts: int = 0
    """Tries of this URL, the first included, be it refused before its request; a chain of redirects is one."""
    started: str = ""
    """UTC time of the last attempt, to the second: 2026-01-31T12:00:00Z."""
    elapsed_ms: int = 0
    """Milliseconds that the last attempt took."""
    final_url: str = ""
    """The URL that answered, after redirects."""
    redirects: tuple[str, ...] = ()
    """`<status> <url>` of each redirect on the way."""
    note: str = ""
    """What was done differently than the list says."""
    status: int | None = None
    """HTTP status of the last response."""
    address: str = ""
    """IP address that answered."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fetched(Answer):
    """The outcome of one URL with everything that was said, fresh from the crawler."""

    request_head: str = ""
    """Request line and headers of the last request, with CRLF."""
    response_head: str = ""
    """Status line and headers of the response, with CRLF."""
    body: bytes = b""
    """The page, decoded from its transfer and content encoding; empty where a rule applies."""

    def outcome(self) -> "Outcome":
        """The same without what was said: its size and digest stand for the page."""
        shared = {name: getattr(self, name) for name in _SHARED}
        if self.rule != PAGE:
            return Outcome(**shared)
        return Outcome(**shared, bytes=len(self.body), sha256=hashlib.sha256(self.body).hexdigest())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Answer):
    """A row of the fetch log: all of it goes through JSON and back unchanged."""

    bytes: int = 0
    """Size of the decoded page."""
    sha256: str = ""
    """Digest of the decoded page, in hexadecimal; empty without a page."""

    def to_json(self) -> str:
        """As it stands in the fetch store."""
        return json.dumps({name: getattr(self, name) for name in _SHARED + _OWN})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The reverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        values["redirects"] = tuple(values["redirects"])
        return cls(**values)


_SHARED = tuple(field.name for field in dataclasses.fields(Answer))
_OWN = ("bytes", "sha256")


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """An outcome, and the WARC records of its page ready for a segment."""

    outcome: Outcome
    members: bytes = b""
    """Finished gzip members (request, response, metadata); empty without a page."""
