"""Identity: the canonical form of a URL and the id of a document.

Both are part of every published file, so a change here is a change of format.
"""

import ipaddress
import re
import urllib.parse
from dataclasses import dataclass

import xxhash

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Parameters that name a campaign or a click, never a page (Google Analytics, Meta, Microsoft, Mailchimp, HubSpot).
_TRACKING = re.compile(r"^(utm_\w+|gclid|dclid|fbclid|msclkid|yclid|mc_cid|mc_eid|_hsenc|_hsmi|igshid)$", re.IGNORECASE)
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_SAFE = "!$&'()*+,;=:@/?~-._%"
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
# WHATWG URL, "basic URL parser" steps 1-3: these never belong to a URL.
_OUTER = "".join(map(chr, range(0x21)))
_INNER = str.maketrans("", "", "\t\r\n")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a URL points: scheme and host in lower case, the port, path and query in normal form."""

    scheme: str
    host: str
    """A name in IDNA form, dotted IPv4, or IPv6 without brackets."""
    port: int
    path: str
    query: str

    @property
    def origin(self) -> str:
        """`scheme://host[:port]`, without a default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def url(self) -> str:
        """The address as a URL again."""
        return self.origin + self.path + (f"?{self.query}" if self.query else "")


def canonical_url(url: str) -> str | None:
    """The one spelling of `url` used everywhere, or None when it is not an http(s) URL.

    Lower-case scheme and host (IDNA), no default port, no fragment, no credentials, no tracking
    parameters, percent-encoding normalised (RFC 3986 section 6.2.2), `/` for an empty path; an IPv4
    address in any notation (decimal, hexadecimal, octal, short) becomes a dotted one.

    >>> canonical_url("HTTPS://User@Garden.Test:443/a/../b%7E?utm_source=x&q=1#top")
    'https://garden.test/b~?q=1'
    """
    address = split_url(url)
    if address is None:
        return None
    query = "&".join(p for p in address.query.split("&") if p and not _TRACKING.match(p.partition("=")[0]))
    return Address(address.scheme, address.host, address.port, address.path, query).url


def split_url(url: str) -> Address | None:
    """The parts of an http(s) URL in normal form (all parameters kept), or None when it is not one."""
    try:
        parts = urllib.parse.urlsplit(url.strip(_OUTER).translate(_INNER))
        port = parts.port
        host = normal_host(urllib.parse.unquote(parts.hostname or "", errors="strict"))
    except ValueError:
        return None
    # A backslash before the path reads as a slash in browsers: two readings of one host are refused.
    if parts.scheme not in _DEFAULT_PORTS or host is None or port == 0 or "\\" in parts.netloc:
        return None
    path = _remove_dots(_normal_escapes(parts.path)) or "/"
    return Address(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme], path, _normal_escapes(parts.query))


def normal_host(host: str) -> str | None:
    """A host in the form of `Address.host`, or None when no host is spelled like that."""
    if ":" in host:
        return _ipv6(host)
    try:
        name = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return None
    name = name.lower().removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        return _ipv4(labels)
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return None
    return name


def _ipv6(host: str) -> str | None:
    if "%" in host:  # a zone: an interface of one machine
        return None
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        return None


def _ipv4(labels: list[str]) -> str | None:
    """WHATWG's IPv4 parser: up to four numbers, each decimal, octal or hexadecimal; the last fills the rest."""
    if len(labels) > 4 or not all(_NUMBER.fullmatch(label) for label in labels):
        return None
    try:
        *first, last = [_number(label) for label in labels]
    except ValueError:
        return None
    if any(number > 255 for number in first) or last >= 256 ** (4 - len(first)):
        return None
    value = last + sum(number << (24 - 8 * place) for place, number in enumerate(first))
    return str(ipaddress.IPv4Address(value))


def _number(label: str) -> int:
    if label.startswith("0x"):
        return int(label[2:] or "0", 16)
    return int(label, 8) if label.startswith("0") and len(label) > 1 else int(label)


def _remove_dots(path: str) -> str:
    # RFC 3986 section 5.2.4: `.` and `..` segments.
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept) if path else ""


def _normal_escapes(text: str) -> str:
    def normal(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        keep_plain = character.isascii() and (character.isalnum() or character in "-._~")
        return character if keep_plain else match[0].upper()

    text = _ESCAPE.sub(normal, re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", text))
    return urllib.parse.quote(text, safe=_SAFE, errors="surrogatepass")


def document_id(url: str, text: str) -> bytes:
    """16 bytes: xxh3_128 of the canonical URL (or `url` as it is), NUL, text."""
    canonical = canonical_url(url) or url
    return xxhash.xxh3_128_digest(f"{canonical}\0{text}".encode("utf-8", "surrogatepass"))
