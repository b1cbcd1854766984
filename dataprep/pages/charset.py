"""The text of an HTML page from its bytes: byte order mark, header, meta tag, then the bytes themselves.

Labels mean what browsers make of them (WHATWG Encoding): `iso-8859-1` is windows-1252, `gb2312` is
gb18030. Equal bytes and header give equal text.
"""

import codecs
import re

from charset_normalizer import from_bytes

_META = re.compile(rb"<meta\s[^>]*?charset\s*=[\s\"']*([\w.:-]+)", re.IGNORECASE)
_XML = re.compile(rb"^\s*<\?xml\s[^>]*?encoding\s*=\s*[\"']([\w.:-]+)", re.IGNORECASE)
_META_BYTES = 4096
_SAMPLE_BYTES = 1 << 16
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
# Python's names on the left, what browsers use on the right.
_BROWSER = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "big5": "big5hkscs",
    "utf-16": "utf-16-le",
}
_ALLOWED = re.compile(
    r"utf-8|utf-16-[lb]e|cp125\d|cp866|cp874|cp932|cp949|iso8859-\d+|koi8-[ru]|mac-roman|mac-cyrillic|"
    r"gb18030|big5hkscs|euc_jp|iso2022_jp"
)


def decode_html(body: bytes, header_charset: str | None) -> str:
    """The text of a page; bytes that fit nothing become U+FFFD.

    Valid UTF-8 that is not plain ASCII is UTF-8 whatever is declared: other encodings do not look
    like that by chance.
    """
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    declared = [name for name in map(codec_name, (header_charset, *declared_in(body))) if name]
    candidates = declared if body.isascii() else ["utf-8", *declared]
    for name in candidates:
        try:
            return body.decode(name)
        except UnicodeDecodeError:
            continue
    return body.decode(_most_fitting(body, declared), "replace")


def declared_in(body: bytes) -> list[str | None]:
    """What the page says of itself, in an XML declaration and in a meta tag."""
    start = body[:_META_BYTES]
    found = [_XML.match(start), _META.search(start)]
    names = [match[1].decode("ascii") if match else None for match in found]
    # A page whose meta tag can be read as ASCII is not UTF-16, whatever the tag says.
    return ["utf-8" if name and name.lower().startswith("utf-16") else name for name in names]


def codec_name(label: str | None) -> str | None:
    """Python's codec for an encoding label, as browsers read it; None for an unknown label."""
    plain = (label or "").strip(" \t\"';").lower()
    # Browsers also know x-sjis, windows-874, iso-8859-8-i and the like.
    for spelling in (plain, plain.removeprefix("x-"), plain.replace("windows-", "cp"), plain.removesuffix("-i")):
        try:
            name = codecs.lookup(spelling).name
        except (LookupError, ValueError):
            continue
        name = _BROWSER.get(name, name)
        return name if _ALLOWED.fullmatch(name) else None
    return None


def _most_fitting(body: bytes, declared: list[str]) -> str:
    """The encoding of bytes that fit nothing declared: nearly what is declared, else by their statistics."""
    sample = body[:_SAMPLE_BYTES]
    foreign = sum(byte > 127 for byte in sample)
    for name in (*declared, "utf-8"):
        # A few stray bytes in an otherwise well-formed page, or the few codes that cp125x leaves open.
        if sample.decode(name, "replace").count("\ufffd") * 10 < foreign:
            return name
    best = from_bytes(sample).best()
    return codec_name(best.encoding if best else None) or "cp1252"
