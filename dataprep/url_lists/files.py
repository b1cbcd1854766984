"""URL lists as people have them: text or JSON lines, compressed or not, or folders of such, one level deep."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from pipelines import store
from pipelines.documents import is_jsonl
from pipelines.errors import UserError
from pipelines.identity import canonical_url
from pipelines.manifest import MANIFEST

logger = logging.getLogger(__name__)

LIST_SUFFIXES = (".txt", ".urls", ".lst")
SPACE = " \t\n\r\x0b\x0c"
"""What surrounds a line without belonging to it: the white space of ASCII."""
BYTE_ORDER_MARK = "\ufeff"
_MAGIC = {
    b"\x1f\x8b": "gzip data: let its name end in .gz",
    b"\xfd7zXZ": "xz data: let its name end in .xz",
    b"\x28\xb5\x2f\xfd": "zstd data: let its name end in .zst",
    b"BZh": "bzip2 data: let its name end in .bz2",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"PAR1": "a Parquet table: give its URLs as lines",
    b"%PDF-": "a PDF document: give URLs as lines",
    b"WARC/": "a WARC archive: dataprep.extract reads its pages",
    b"filedesc://": "an ARC archive: dataprep.extract reads its pages",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
}
_MARKUP = (b"<!doctype", b"<html", b"<?xml")
_TAR_MAGIC = b"ustar"
_TAR_MAGIC_AT = 257  # POSIX.1-1988, in the header of the first member
_SNIFFED = 4096
_LONGEST_LOOKED_AT = 16 << 20
"""Bytes of a line; of a longer one the rest is not looked at."""
_SHOWN = 80


def url_lists(path: Path) -> list[Path]:
    """The list files that `path` stands for: itself, or those of a folder and of its folders, in order of name."""
    chosen = [path] if path.is_file() else _lists_in_folder(path)
    for file in chosen:
        check_list(file)
    return chosen


def _lists_in_folder(path: Path) -> list[Path]:
    here = sorted(child for child in path.iterdir() if not child.name.startswith("."))
    below = (sorted(child.iterdir()) if child.is_dir() else [child] for child in here)
    files = [file for group in below for file in group if file.is_file() and not file.name.startswith(".")]
    chosen = [file for file in files if is_url_list(file)]
    if left := [str(file.relative_to(path)) for file in files if file not in chosen and file.name != MANIFEST]:
        logger.warning("%s: no URL lists by name, or without a suffix and a URL, left out: %s", path, ", ".join(left))
    if not chosen:
        names = ", ".join(LIST_SUFFIXES)
        packed = ", ".join(store.COMPRESSED)
        raise UserError(f"{path}: holds no URL list ({names} or .jsonl, also {packed}); give such a file")
    return chosen


def is_url_list(path: Path) -> bool:
    """Whether a file of a folder is a list of URLs by its name, compressed or not.

    One without a suffix is a list when its first line is a URL or a record (`RS_2017-01.xz`), and a README is not.
    """
    suffixes = [suffix for suffix in path.suffixes if suffix not in store.COMPRESSED]
    if not suffixes:
        _, first = next(_lines(path), (0, b""))
        return first.startswith(b"{") or _problem(first, in_json=False) is None
    return path.name != MANIFEST and (suffixes[-1] in LIST_SUFFIXES or is_jsonl(path))


def check_list(file: Path) -> None:
    """Raise UserError for a file that is no list: other data by its first bytes, or lines of which none is a URL.

    A list is read as far as its first URL only; one without any line is empty, not wrong.
    """
    with store.reading(file) as opened:
        check_text(opened.read(_SNIFFED), file)
    first_problem, lines = "", 0
    for number, line in _lines(file):
        lines += 1
        problem = _problem(line, in_json=is_jsonl(file))
        if problem is None:
            return
        first_problem = first_problem or f"line {number}: {problem}"
    if lines:
        raise UserError(
            f"{file}: none of its {lines} lines holds a URL; {first_problem}; give URLs such as "
            "http://garden.test/page as lines of text, or JSON lines with a key 'url'"
        )


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Number and text of each line that is neither blank nor a comment."""
    for number, line in enumerate(store.read_lines(file, _LONGEST_LOOKED_AT), start=1):
        text = line.strip().removeprefix(BYTE_ORDER_MARK.encode())
        if text and not text.startswith(b"#"):
            yield number, text


def _problem(line: bytes, *, in_json: bool) -> str | None:
    """Why a line holds no URL at all; None when it holds one."""
    try:
        url = read_url(line, in_json=in_json or line.startswith(b"{"))
    except UnreadableLineError as problem:
        return str(problem)
    return None if canonical_url(url) else f"{url[:_SHOWN]!r} is no http or https URL"


def check_text(start: bytes, file: Path) -> None:
    """Raise UserError when the first bytes of a file are no text."""
    for magic, advice in _MAGIC.items():
        if start.startswith(magic):
            raise UserError(f"{file}: is no list of URLs but {advice}")
    if start.removeprefix(BYTE_ORDER_MARK.encode()).lstrip()[:16].lower().startswith(_MARKUP):
        raise UserError(f"{file}: is no list of URLs but an HTML or XML page: give URLs as lines")
    if start[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC):
        raise UserError(f"{file}: is no list of URLs but a tar archive: unpack it")
    if b"\0" in start[:_SNIFFED]:
        raise UserError(f"{file}: is no list of URLs but binary data (a zero byte in its first {_SNIFFED} bytes)")


class UnreadableLineError(ValueError):
    """A line that holds no URL at all; `rule` is its counted reason."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def read_url(line: bytes, *, in_json: bool) -> str:
    """The URL of a line, as it stands there; raises UnreadableLineError."""
    text = decode(line)
    return record_url(read_record(text)) if in_json else text


def decode(line: bytes) -> str:
    """A line as text; raises UnreadableLineError."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UnreadableLineError("invalid_utf8", f"not valid UTF-8 at byte {error.start}") from None


def read_record(text: str) -> dict[str, Any]:
    """A line of JSON as an object; raises UnreadableLineError."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableLineError("invalid_json", f"not valid JSON ({error})") from None
    return cast(dict[str, Any], record) if isinstance(record, dict) else {}


def record_url(record: dict[str, Any]) -> str:
    """The URL of a record, halves of surrogate pairs spelled out; raises UnreadableLineError."""
    url = record.get("url")
    if not isinstance(url, str):
        raise UnreadableLineError("no_url", "has no text under the key 'url'")
    return url.encode("utf-8", "backslashreplace").decode()
