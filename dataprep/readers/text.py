"""Files of text: plain text and HTML (one document each, alone or as a member of an archive), and JSON lines.

Text is UTF-8, or else in the encoding its bytes suggest (`dataprep.text.charset`); line ends become line feeds. The
file's name stands in for the URL. An HTML file is a page as a crawler or `wget --mirror` stores it: its path below the
folder is unique, leads back to the file, and in a mirror is the real URL without the scheme. The address in the page
itself (rel=canonical, og:url) is often missing, or that of the site's front page.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from dataprep.readers.records import Broken, Page, Record, Text, original_name
from pipelines import store
from pipelines.compression import DAMAGE, raise_unless_damage
from pipelines.jsonl import BrokenLineError, read_jsonl
from pipelines.metadata import METADATA
from pipelines.utf import check_utf8, other_encoding

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
HTML_SUFFIXES = (".html", ".htm", ".xhtml")

_OPENWEBTEXT_NAME = re.compile(r"\d{7}-[0-9a-f]{32,64}\.txt")
_SCAN_BYTES = 1 << 20
_BLANK_LINES = re.compile(r"\n{3,}")


def plain_suffix(name: str) -> str:
    """Return the suffix of a file's name in lower case, without that of its compression: `a.TXT.gz` -> `.txt`."""
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in store.COMPRESSED else path.suffix


def is_plain_file(name: str) -> bool:
    """Return whether a file is a single text or page, by its name."""
    return plain_suffix(name) in TEXT_SUFFIXES + HTML_SUFFIXES


def read_plain_file(file: Path, name: str, max_bytes: int) -> Record:
    """Return the document in one file; `name` identifies it, such as its path in the corpus."""
    body = read_body(file, name, max_bytes)
    return body if isinstance(body, Broken) else document_of(name, body, max_bytes)


def read_html_file(file: Path, name: str, max_bytes: int) -> Record:
    """Return the page in one file, decompressed by its last suffix; `name` stands in for its URL.

    The charset is the one the page declares. A file without a suffix of HTML (`index.php`) is judged by its first
    bytes.
    """
    body = read_body(file, name, max_bytes)
    if isinstance(body, Broken):
        return body
    if len(body) > max_bytes:
        return Broken(name, "too_large", f"more than {max_bytes} bytes")
    return Page(name, body, "text/html" if plain_suffix(name) in HTML_SUFFIXES else None)


def read_json_lines(
    file: Path, text_key: str, url_key: str, span: tuple[int, int | None] = (0, None), lines_before: int = 0
) -> Iterator[Record]:
    """Yield the document in every line of a JSONL file, compressed or not; raise UserError if no line has one.

    `text_key` and `url_key` name the document's text and URL. Of a plain file, `span` gives the lines that begin in a
    part of it, after `lines_before` others. A file in UTF-16 or UTF-32 raises UserError at its start and has no lines.
    """
    if not span[0]:
        check_utf8(file)
    elif other_encoding(file):
        return
    for number, row in read_jsonl(file, text_key, url_key, *span):
        place = f"{file.name}:{lines_before + number}"
        if isinstance(row, BrokenLineError):
            yield Broken(place, row.rule, str(row))
        elif not row["text"].strip():
            yield Broken(row["url"] or place, "empty_text", f"{len(row['text'])} blank characters")
        else:
            source = row["source"] if row["source"] != file.name else original_name(file.name)
            yield Text(row["url"], row["text"], source, row.get(METADATA))


def line_starts(file: Path, split_bytes: int) -> list[tuple[int, int]]:
    """Return the offsets at which the parts of a plain file begin, and how many lines begin before each."""
    starts, newlines = [(0, 0)], 0
    size = file.stat().st_size
    with file.open("rb") as opened:
        for start in range(split_bytes, size, split_bytes):
            # A newline right before the part ends a line, but the next line begins in the part.
            while (left := start - 1 - opened.tell()) > 0:
                newlines += opened.read(min(left, _SCAN_BYTES)).count(b"\n")
            starts.append((start, newlines + 1))
    return starts


def read_body(file: Path, name: str, max_bytes: int) -> bytes | Broken:
    """Return the bytes of a file, decompressed by its last suffix; of a larger file, the first `max_bytes` + 1."""
    try:
        with store.open_read(file) as opened:
            return opened.read(max_bytes + 1)
    except DAMAGE as error:
        raise_unless_damage(error)
        return Broken(name, "damaged_file", str(error))


def document_of(name: str, body: bytes, max_bytes: int) -> Record:
    """Return the document in a file's bytes; its kind follows from the file's name."""
    if len(body) > max_bytes:
        return Broken(name, "too_large", f"more than {max_bytes} bytes")
    if plain_suffix(name) in HTML_SUFFIXES:
        return Page(name, body, "text/html")
    text = _plain_text(name, body)
    if "\0" in text:
        return Broken(name, "not_text", f"a zero byte at {body.index(0)}")
    return Text(name, text) if text.strip() else Broken(name, "empty_text", f"file of {len(body)} bytes")


def _plain_text(name: str, body: bytes) -> str:
    from dataprep.text.charset import decode_text

    text = decode_text(body).replace("\r\n", "\n").replace("\r", "\n")
    if _OPENWEBTEXT_NAME.fullmatch(PurePosixPath(name).name):
        # OpenWebText's own files: normalized as in the Hub's data set, so that both sources give the same documents.
        return _BLANK_LINES.sub("\n\n", text).strip()
    return text
