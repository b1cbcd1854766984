"""Identity: the canonical form of a URL and the id of a document.

Both are part of every published file, so a change here changes the format. The canonical form is the
address that a browser would request (WHATWG URL, RFC 3986 section 6.2.2), without what does not identify a page:

- scheme and host in lower case, host in IDNA form without a trailing dot, IPv4 in dotted form
- no default port, no credentials, `/` for an empty path, `.` and `..` segments resolved
- no fragment, except one that begins with `!` and goes on: there, scripts show another page for each fragment
- `%41` is `A`, `%2f` is `%2F`, a stray `%` is `%25`, everything outside RFC 3986's characters is escaped
- no tracking parameters (`TRACKING_NAMES`) and no empty ones; the others keep their order
- scheme, `www.`, a trailing slash and the case of the path are kept: they may distinguish pages
"""

import encodings.idna
import functools
import ipaddress
import re
import urllib.parse
from typing import NamedTuple

import pyarrow as pa
import xxhash

from pipelines.columns import column
from pipelines.native.hashes import DIGEST_BYTES, pair_digests

_DEFAULT_PORTS = {"http": 80, "https": 443}
TRACKING_NAMES = "|".join(
    (
        "utm_\\w+|_ga|_gl|gclid|gclsrc|dclid|gbraid|wbraid|srsltid",  # Google
        "fbclid|igshid|igsh|msclkid|yclid|_openstat|twclid|ttclid|li_fat_id",  # Meta, Microsoft, Yandex, X, TikTok, ...
        "mtm_\\w+|pk_campaign|pk_kwd|pk_source|pk_medium|pk_content|piwik_campaign|piwik_kwd",  # Matomo
        "mc_cid|mc_eid|_hsenc|_hsmi|hsctatracking|mkt_tok|oly_anon_id|oly_enc_id|vero_id",  # mailings
    )
)
"""Parameters that name a campaign or a click, never a page."""
_DROPPED = re.compile(rf"(?:^|&)(?:(?:{TRACKING_NAMES})(?:[=&]|\Z)|&|\Z)", re.IGNORECASE)
_TRACKING = re.compile(TRACKING_NAMES, re.IGNORECASE)
_SAFE = "!$&'()*+,;=:@/?~-._%"
# A URL that urlsplit would split in the same way: ASCII, a plain host, no credentials, nothing to quote.
_PLAIN = re.compile(
    r"([Hh][Tt][Tt][Pp][Ss]?)://([A-Za-z0-9._-]{1,254})(?::([0-9]{0,5}))?(/[\w!$&'()*+,;=:@/~.%-]*)?"
    r"(?:\?([\w!$&'()*+,;=:@/?~.%-]*))?(?:#(![\w!$&'()*+,;=:@/?~.%-]*|(?!!)[!-~]*))?",
    re.ASCII,
)
# A URL that is its own canonical form if its host is and no segment of its path begins with a dot.
_CANONICAL = re.compile(r"https?://([a-z0-9._-]{1,254})/[\w!$&'()*+,;=:@/~.-]*", re.ASCII)
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_LABEL = "[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"0x[0-9a-f]*|[0-9]+")
_DOTS = re.compile("[.\u3002\uff0e\uff61]")
# WHATWG URL, "basic URL parser" steps 1-3: these never belong to a URL.
_OUTER = "".join(map(chr, range(0x21)))
_INNER = str.maketrans("", "", "\t\r\n")


class Address(NamedTuple):
    """Where a URL points: scheme and host in lower case, the port, path and query in normal form."""

    scheme: str
    host: str
    """A name in IDNA form, dotted IPv4, or IPv6 without brackets."""
    port: int
    path: str
    query: str
    fragment: str = ""
    """With its `!`, if it names a page; empty for all others."""

    @property
    def origin(self) -> str:
        """`scheme://host[:port]`, without a default port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    @property
    def url(self) -> str:
        """The address as a URL."""
        query = f"?{self.query}" if self.query else ""
        fragment = f"#{self.fragment}" if self.fragment else ""
        return f"{self.origin}{self.path}{query}{fragment}"


def canonical_url(url: str) -> str | None:
    """Return the one spelling of `url` used everywhere, or None if it is not an http(s) URL.

    Lower-case scheme and host (IDNA), no default port, no fragment (unless it begins with `!`), no
    credentials, no tracking parameters, percent-encoding normalised (RFC 3986 section 6.2.2), `/` for
    an empty path; an IPv4 address in any notation (decimal, hexadecimal, octal, short) becomes a dotted one.

    >>> canonical_url("HTTPS://User@Garden.Test:443/a/../b%7E?utm_source=x&q=1#top")
    'https://garden.test/b~?q=1'
    """
    plain = _CANONICAL.fullmatch(url)
    if plain and "/." not in url and _known_host(plain[1]) == plain[1]:
        return url
    address = split_url(url)
    return without_tracking(address).url if address else None


def without_tracking(address: Address) -> Address:
    """Return the address without the parameters that do not identify a page."""
    if not address.query or not _DROPPED.search(address.query):
        return address
    kept = [p for p in address.query.split("&") if p and not _TRACKING.fullmatch(p.partition("=")[0])]
    return address._replace(query="&".join(kept))


def split_url(url: str) -> Address | None:
    """Return the parts of an http(s) URL in normal form (all parameters kept), or None if it is not one."""
    plain = _PLAIN.fullmatch(url)
    if not plain:
        return _split_any(url)
    scheme, host, port, path, query, fragment = plain.groups("")
    fragment = _escapes(fragment) if fragment.startswith("!") else ""
    port_number = int(port) if port else None
    return _normal(scheme.lower(), _known_host(host), port_number, _escapes(path), _escapes(query), fragment)


def _split_any(url: str) -> Address | None:
    # Splits any other spelling, ten times more slowly.
    try:
        parts = urllib.parse.urlsplit(url.strip(_OUTER).translate(_INNER))
        port = parts.port
        host = normal_host(urllib.parse.unquote(parts.hostname or "", errors="strict"))
    except ValueError:
        return None
    # Browsers read a backslash before the path as a slash: a URL with two possible hosts is refused.
    if parts.scheme not in _DEFAULT_PORTS or "\\" in parts.netloc:
        return None
    fragment = _quoted(parts.fragment) if parts.fragment.startswith("!") else ""
    return _normal(parts.scheme, host, port, _quoted(parts.path), _quoted(parts.query), fragment)


def _normal(scheme: str, host: str | None, port: int | None, path: str, query: str, fragment: str) -> Address | None:
    if host is None or port == 0 or (port or 0) > 65535:
        return None
    if "/." in path:
        path = _remove_dots(path)
    fragment = fragment if len(fragment) > 1 else ""
    return Address(scheme, host, port or _DEFAULT_PORTS[scheme], path or "/", query, fragment)


def normal_host(host: str) -> str | None:
    """Return a host in the form of `Address.host`, or None if it is not a valid host."""
    if ":" in host:
        return _ipv6(host)
    try:
        name = host if host.isascii() else ".".join(map(_idna, _DOTS.split(host)))
    except UnicodeError:
        return None
    name = name.lower().removesuffix(".")
    if _NUMBER.fullmatch(name.rpartition(".")[2]):
        return _ipv4(name.split("."))
    return name if len(name) <= 253 and _NAME.fullmatch(name) else None


_known_host = functools.lru_cache(maxsize=65_536)(normal_host)


def _idna(label: str) -> str:
    # IDNA 2008 and all browsers keep ß as a letter; the standard library's IDNA 2003 turns it into ss.
    if "ß" not in label:
        return label.encode("idna").decode()
    return f"xn--{'ß'.join(map(encodings.idna.nameprep, label.split('ß'))).encode('punycode').decode()}"


def _ipv6(host: str) -> str | None:
    if "%" in host:  # a zone: an interface of one machine
        return None
    try:
        return str(ipaddress.IPv6Address(host))
    except ValueError:
        return None


def _ipv4(labels: list[str]) -> str | None:
    """Parse IPv4 as WHATWG does: up to four numbers, each decimal, octal or hexadecimal; the last fills the rest."""
    if len(labels) > 4 or not all(_NUMBER.fullmatch(label) for label in labels):
        return None
    try:
        *first, last = [_number(label) for label in labels]
    except ValueError:
        return None
    if any(number > 255 for number in first) or last >= 256 ** (4 - len(first)):
        return None
    value = last + sum(number << (24 - 8 * position) for position, number in enumerate(first))
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
    return "/" + "/".join(kept)


def _quoted(text: str) -> str:
    return urllib.parse.quote(_escapes(text), safe=_SAFE, errors="surrogatepass")


def _escapes(text: str) -> str:
    if "%" not in text:
        return text
    return _ESCAPE.sub(_normal_escape, _STRAY_PERCENT.sub("%25", text))


def _normal_escape(match: re.Match[str]) -> str:
    character = chr(int(match[1], 16))
    keep_plain = character.isascii() and (character.isalnum() or character in "-._~")
    return character if keep_plain else match[0].upper()


def document_id(url: str, text: str) -> bytes:
    """Return 16 bytes: xxh3_128 of the canonical URL (or of `url` if it has none), NUL and the text."""
    canonical = canonical_url(url) or url
    return xxhash.xxh3_128_digest("\0".join((canonical, text)).encode("utf-8", "surrogatepass"))


def document_ids(urls: pa.StringArray, texts: pa.StringArray) -> pa.FixedSizeBinaryArray:
    """Return `document_id` of each row; neither column has nulls."""
    given = urls.to_pylist()
    canonical = [url and (canonical_url(url) or url) for url in given]
    ids = pair_digests(urls if canonical == given else column(canonical, pa.string()), texts)
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(DIGEST_BYTES), len(ids), [None, pa.py_buffer(ids)])
