"""Tell whether a body is HTML, by its declared type and its first bytes (WHATWG MIME sniffing, section 7.1)."""

import re

HTML_TYPES = ("text/html", "application/xhtml+xml")
# Servers that do not know the type send these; the first bytes decide.
UNSURE_TYPES = ("", "text/plain", "text/xml", "application/xml", "application/octet-stream", "unknown/unknown")
# The comments are in an atomic group: backtracking into them would take 2^comments steps.
_HTML_START = re.compile(
    rb"^(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?\s*(?:<\?xml[^>]*>\s*)?(?>(?:<!--.*?-->\s*)*)"
    rb"<(?:!doctype html|html|head|script|iframe|h1|div|font|table|a|style|title|b|body|br|p)[\s>]",
    re.IGNORECASE | re.DOTALL,
)
_BINARY = {
    b"%PDF-": "PDF",
    b"%!PS": "PostScript",
    b"\x89PNG": "PNG",
    b"GIF8": "GIF",
    b"\xff\xd8\xff": "JPEG",
    b"PK\x03\x04": "ZIP",
    b"\x1f\x8b": "gzip",
    b"Rar!": "RAR",
    b"RIFF": "RIFF",
    b"\x00\x00\x01\x00": "icon",
    b"OggS": "Ogg",
    b"ID3": "MP3",
}
_SNIFF_BYTES = 1024


def media_type(content_type: str | None) -> str:
    """Return the media type of a Content-Type: `Text/HTML; charset=x` -> `text/html`; empty if there is none."""
    return (content_type or "").partition(";")[0].strip().lower()


def may_be_html(content_type: str | None) -> bool:
    """Return whether a body of this declared type is worth reading."""
    return media_type(content_type) in HTML_TYPES + UNSURE_TYPES


def why_not_html(content_type: str | None, body: bytes) -> str:
    """Return what a body is instead of HTML; empty if it is HTML (or has no bytes but declares HTML)."""
    declared = media_type(content_type)
    if not may_be_html(content_type):
        return declared
    start = body[:_SNIFF_BYTES]
    for magic, name in _BINARY.items():
        if start.startswith(magic):
            return f"{name} declared as {declared or 'nothing'}"
    if declared in HTML_TYPES:
        return ""
    # UTF-16 has a NUL beside every ASCII character.
    return "" if _HTML_START.match(start.replace(b"\0", b"")) else declared or "no type declared"
