"""Identity: the canonical form of a URL and the id of a document.

Both are part of every published file, so a change here is a change of format.
"""

import re
import urllib.parse

import xxhash

_DEFAULT_PORTS = {"http": 80, "https": 443}
# Parameters that name a campaign or a click, never a page (Google Analytics, Meta, Microsoft, Mailchimp, HubSpot).
_TRACKING = re.compile(r"^(utm_\w+|gclid|dclid|fbclid|msclkid|yclid|mc_cid|mc_eid|_hsenc|_hsmi|igshid)$", re.IGNORECASE)
_UNRESERVED = re.compile(r"%([0-9A-Fa-f]{2})")
_SAFE = "!$&'()*+,;=:@/?~-._%"


def canonical_url(url: str) -> str | None:
    """The one spelling of `url` used everywhere, or None when it is not an http(s) URL.

    Lower-case scheme and host (IDNA), no default port, no fragment, no credentials, no tracking
    parameters, percent-encoding normalised (RFC 3986 section 6.2.2), `/` for an empty path.
    """
    try:
        parts = urllib.parse.urlsplit(url.strip())
        port = parts.port
        host = (parts.hostname or "").rstrip(".")
        if ":" not in host:
            host = host.encode("idna").decode() if not host.isascii() else host
    except (ValueError, UnicodeError):
        return None
    if parts.scheme.lower() not in _DEFAULT_PORTS or not host:
        return None
    host = f"[{host}]" if ":" in host else host.lower()
    scheme = parts.scheme.lower()
    netloc = host if port in (None, _DEFAULT_PORTS[scheme]) else f"{host}:{port}"
    query = "&".join(p for p in parts.query.split("&") if p and not _TRACKING.match(p.partition("=")[0]))
    return urllib.parse.urlunsplit((scheme, netloc, _percent(_dots(parts.path) or "/"), _percent(query), ""))


def _dots(path: str) -> str:
    # RFC 3986 section 5.2.4: `.` and `..` segments.
    kept: list[str] = []
    segments = path.split("/")
    for segment in segments[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", "..") and kept and kept[-1] != "":
        kept.append("")
    return "/" + "/".join(kept) if path else ""


def _percent(text: str) -> str:
    def normal(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        keep_plain = character.isascii() and (character.isalnum() or character in "-._~")
        return character if keep_plain else match[0].upper()

    text = _UNRESERVED.sub(normal, re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", text))
    return urllib.parse.quote(text, safe=_SAFE)


def document_id(url: str, text: str) -> bytes:
    """16 bytes: xxh3_128 of the canonical URL (or `url` as it is), NUL, text."""
    canonical = canonical_url(url) or url
    return xxhash.xxh3_128_digest(f"{canonical}\0{text}".encode("utf-8", "surrogatepass"))
