"""Why an attempt gave no page: a rule and a value for everything that a request can meet."""

import contextlib
import email.utils
import socket
from collections.abc import Generator

import aiohttp

from dataprep.crawl.addresses import RefusedAddressError
from dataprep.crawl.connections import InterimFloodError

_LONGEST_VALUE = 300


class FetchError(Exception):
    """An attempt that gave no page.

    `transient`: a later run may succeed. `again`: this one should try again, after `retry_after`
    seconds at least. `busy`: the whole host wants to be left alone until then.
    """

    def __init__(
        self,
        rule: str,
        value: object,
        *,
        transient: bool = False,
        again: bool = False,
        busy: bool = False,
        retry_after: float = 0.0,
    ) -> None:
        self.rule = rule
        self.value = " ".join(str(value).split())[:_LONGEST_VALUE]
        super().__init__(f"{rule}: {self.value}")
        self.transient = transient or again
        self.again = again
        self.busy = busy
        self.retry_after = retry_after


@contextlib.contextmanager
def network_errors() -> Generator[None]:
    """Turn everything that a request can raise into a FetchError with its reason."""
    try:
        yield
    except aiohttp.ClientSSLError as error:
        raise FetchError("tls_error", error) from None
    except aiohttp.ClientConnectorError as error:
        raise _connect_error(error) from None
    except (aiohttp.InvalidURL, UnicodeError) as error:
        raise FetchError("malformed", error) from None
    except TimeoutError as error:
        raise FetchError("timeout", str(error) or "no whole answer in the total time", again=True) from None
    except InterimFloodError as error:
        raise FetchError("invalid_http", error) from None
    except aiohttp.ClientPayloadError as error:
        raise FetchError("truncated_body", error, again=True) from None
    except aiohttp.ClientResponseError as error:
        raise FetchError("invalid_http", error.message, again=True) from None
    except (aiohttp.ClientError, OSError) as error:
        raise FetchError("connection_error", str(error) or type(error).__name__, again=True) from None


def _connect_error(error: aiohttp.ClientConnectorError) -> FetchError:
    cause = error.os_error
    if isinstance(cause, RefusedAddressError):
        return FetchError("private_address", cause)
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        again = cause.errno == socket.EAI_AGAIN
        return FetchError("dns_error", cause.strerror or cause, transient=True, again=again)
    return FetchError("connection_error", cause.strerror or cause, again=True)


def retry_after(value: str, now: float) -> float:
    """Seconds to wait by a Retry-After header: a number, or a date (RFC 9110 section 10.2.3); 0 when unreadable."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - now, 0.0)
    except (ValueError, OverflowError):
        return 0.0
