"""Plain text and HTML files, one document each, alone or as members of an archive.

Text is UTF-8 or what its bytes look like (`dataprep.pages.charset`); line ends become line feeds. The
name of the file stands where other sources have a URL.
"""

import lzma
import re
import zlib
from pathlib import Path, PurePosixPath

from dataprep.sources.records import Broken, Page, Record, Text
from pipelines import store

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
HTML_SUFFIXES = (".html", ".htm", ".xhtml")
DAMAGE = (EOFError, zlib.error, lzma.LZMAError, OSError)
"""What cut or damaged compressed data raises, whatever the format."""

_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_OPENWEBTEXT_NAME = re.compile(r"\d{7}-[0-9a-f]{32,64}\.txt")
_BLANK_LINES = re.compile(r"\n{3,}")


def plain_suffix(name: str) -> str:
    """The suffix of a file's name in lower case, without that of its compression: `a.TXT.gz` -> `.txt`."""
    path = PurePosixPath(name.lower())
    return PurePosixPath(path.stem).suffix if path.suffix in store.COMPRESSED else path.suffix


def is_plain_file(name: str) -> bool:
    """Whether a file is one text or one page, by its name."""
    return plain_suffix(name) in TEXT_SUFFIXES + HTML_SUFFIXES


def read_plain_file(file: Path, name: str, max_bytes: int) -> Record:
    """The document in one file; `name` is what to call it, such as its path in the corpus."""
    body = read_body(file, name, max_bytes)
    return body if isinstance(body, Broken) else document_of(name, body, max_bytes)


def read_body(file: Path, name: str, max_bytes: int) -> bytes | Broken:
    """The bytes of a file, decompressed by its last suffix; one more than `max_bytes` where there are more."""
    try:
        with store.open_read(file) as opened:
            return opened.read(max_bytes + 1)
    except DAMAGE as error:
        raise_unless_damage(error)
        return Broken(name, "damaged_file", str(error))


def raise_unless_damage(error: Exception) -> None:
    """Let an error of the machine through (a full disk, a failed read): it has a number, damage has none."""
    if isinstance(error, OSError) and error.errno:
        raise error


def document_of(name: str, body: bytes, max_bytes: int) -> Record:
    """The document that the bytes of a file are, by the file's name."""
    if len(body) > max_bytes:
        return Broken(name, "too_large", f"more than {max_bytes} bytes")
    if plain_suffix(name) in HTML_SUFFIXES:
        return Page(name, body, "text/html")
    if b"\0" in body and not body.startswith(_UTF16_MARKS):
        return Broken(name, "not_text", f"a zero byte at {body.index(0)}")
    text = _plain_text(name, body)
    return Text(name, text) if text.strip() else Broken(name, "empty_text", f"file of {len(body)} bytes")


def _plain_text(name: str, body: bytes) -> str:
    from dataprep.pages.charset import decode_text

    text = decode_text(body).replace("\r\n", "\n").replace("\r", "\n")
    if _OPENWEBTEXT_NAME.fullmatch(PurePosixPath(name).name):
        # OpenWebText's own files: as the Hub's data set makes them, so that both roads give the same documents.
        return _BLANK_LINES.sub("\n\n", text).strip()
    return text
