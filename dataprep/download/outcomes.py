"""The outcome of one URL: as the crawler produces it, as the fetch store keeps it, and packed between the two."""

import dataclasses
import hashlib
import json
from typing import Any, Self

PAGE = ""
"""The `rule` of a URL whose outcome is a page."""
REDIRECT_STATUSES = (301, 302, 303, 307, 308)
"""HTTP statuses whose Location is followed."""
NOT_IN_ARCHIVE = "not_in_archive"
"""The `rule` of a URL that is missing from the replayed archive."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What is known about one URL, apart from the bytes that were sent."""

    url: str
    """The URL as it is listed."""
    rule: str = PAGE
    """Why there is no page (http_status, robots_denied, private_address, ...), or PAGE."""
    value: str = ""
    """The value that the rule saw: a status, an address, an error."""
    transient: bool = False
    """Whether the failure may be temporary: then a later run fetches the URL again."""
    attempts: int = 0
    """Number of attempts, including one refused before its request; a chain of redirects is one attempt."""
    started: str = ""
    """UTC time of the last attempt, to the second: 2026-01-31T12:00:00Z."""
    elapsed_ms: int = 0
    """Duration of the last attempt in milliseconds."""
    final_url: str = ""
    """The URL that answered, after redirects."""
    redirects: tuple[str, ...] = ()
    """`<status> <url>` of each redirect on the way."""
    note: str = ""
    """How the request differed from what the list says."""
    status: int | None = None
    """HTTP status of the last response."""
    address: str = ""
    """IP address that answered."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fetched(Answer):
    """The outcome of one URL with the whole exchange, fresh from the crawler."""

    request_head: str = ""
    """Request line and headers of the last request, with CRLF."""
    response_head: str = ""
    """Status line and headers of the response, with CRLF."""
    body: bytes = b""
    """The page, without transfer and content encodings; empty if a rule applies."""

    def outcome(self) -> "Outcome":
        """Return the outcome alone, with size and digest of the page instead of the exchange."""
        shared = {name: getattr(self, name) for name in _SHARED}
        if self.rule != PAGE:
            return Outcome(**shared)
        return Outcome(**shared, bytes=len(self.body), sha256=hashlib.sha256(self.body).hexdigest())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Answer):
    """A row of the fetch log; it survives a round trip through JSON unchanged."""

    bytes: int = 0
    """Size of the decoded page."""
    sha256: str = ""
    """Digest of the decoded page, in hexadecimal; empty without a page."""

    def to_json(self) -> str:
        """Return the outcome as the fetch store keeps it."""
        return json.dumps({name: getattr(self, name) for name in _SHARED + _OF_THE_PAGE})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        values["redirects"] = tuple(values["redirects"])
        return cls(**values)


_SHARED = tuple(field.name for field in dataclasses.fields(Answer))
_OF_THE_PAGE = ("bytes", "sha256")


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """An outcome, and the WARC records of its page ready for a segment."""

    outcome: Outcome
    members: bytes = b""
    """Finished gzip members (request, response, metadata); empty without a page."""
