"""What became of one URL: the record that the crawler makes and that the archive and the log are made of."""

import dataclasses

PAGE = ""
"""The `rule` of a URL that gave a page."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The outcome of one URL, and the response when there is a page to keep."""

    url: str
    """As it stands in the list."""
    rule: str = PAGE
    """Why there is no page (http_status, robots_denied, private_address, ...), or PAGE."""
    value: str = ""
    """What the rule saw: a status, an address, an error."""
    transient: bool = False
    """The failure may be gone tomorrow: a later run asks again."""
    attempts: int = 0
    """Requests for this URL, the first included; a chain of redirects is one."""
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
    request_head: str = ""
    """Request line and headers of the last request, with CRLF."""
    response_head: str = ""
    """Status line and headers of the response, with CRLF."""
    body: bytes = b""
    """The page, decoded from its transfer and content encoding; empty where a rule applies."""
