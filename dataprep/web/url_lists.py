"""URL lists as people have them: text or JSON lines, compressed or not, in files or in folders one level deep.

Long lists are read in chunks, so that all workers have work: byte ranges of whole lines, read block by block.
A plain list has a chunk for every CHUNK_BYTES; a list that can only be read from its start, compressed or in UTF-16 or
UTF-32, is one chunk. Line numbers are those of the whole file.
"""

import html
import json
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from pipelines import store
from pipelines.documents import is_jsonl
from pipelines.errors import RejectedRowError, UserError, describe
from pipelines.identity import canonical_url
from pipelines.manifest import MANIFEST, why_not_read
from pipelines.terminal import counted
from pipelines.utf import file_encoding, reading_text

logger = logging.getLogger(__name__)

URL_KEY = "url"
_REFERENCES = re.compile("&(?:#[0-9]+|#[xX][0-9a-fA-F]+|lt|gt|quot|apos);")
_AMPERSANDS = re.compile("&(?:(?:amp|#0*38|#[xX]0*26);)+")
LIST_SUFFIXES = (".txt", ".urls", ".lst")
_NUMBERED_JSON = re.compile(r"\.jsonl?-[0-9]+")
"""One of several files that were one list: `reddit.urk.json-00.gz`."""
WHITE_SPACE = " \t\n\r\x0b\x0c"
"""ASCII's white space, which is stripped from both ends of a line."""
BYTE_ORDER_MARK = "\ufeff"
CHUNK_BYTES = 64 << 20
"""Size of the chunks of a plain list; the names of rejected files depend on it."""
BLOCK_BYTES = 4 << 20
"""Bytes that are read, judged and turned into columns at once."""
LONGEST_LINE = 16 << 20
"""Longest line in bytes; the longest submissions have less than 1 MiB."""
_SAVE = "save it as UTF-8 (iconv -f UTF-16 -t UTF-8, or UTF-32)"
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
    b"\xff\xfe\0\0": f"UTF-32 text: {_SAVE}",
    b"\0\0\xfe\xff": f"UTF-32 text: {_SAVE}",
    b"\xff\xfe": f"UTF-16 text: {_SAVE}",
    b"\xfe\xff": f"UTF-16 text: {_SAVE}",
}
_UTF_16 = re.compile(rb"(?:[\t\n\r -~]\0){4,}|(?:\0[\t\n\r -~]){4,}")
"""ASCII as UTF-16 without a byte order mark."""
_MARKUP = (b"<!doctype", b"<html", b"<?xml")
_TAR_MAGIC = b"ustar"
_TAR_MAGIC_AT = 257  # POSIX.1-1988, in the header of the first member
SNIFFED = 4096
_LONGEST_LOOKED_AT = 16 << 20
"""Bytes of a line that are looked at; the rest of a longer line is ignored."""
_SHOWN = 80


def url_lists(path: Path, url_key: str = URL_KEY) -> list[Path]:
    """Return the list files of `path`: the file itself, or those in a folder and its subfolders, in order of name.

    Of a folder, files that are no lists are left out with a warning. `url_key`: the key of the URL in JSON records.
    Raises UserError if there is no list.
    """
    if path.is_file():
        check_list(path, url_key)
        return [path]
    problems: dict[Path, UserError] = {}
    named_lists = _lists_in_folder(path, url_key)
    for file in named_lists:
        try:
            check_list(file, url_key)
        except UserError as error:
            problems[file] = error
            logger.warning("left out: %s", error)
    if len(problems) == len(named_lists):
        raise next(iter(problems.values()))
    return [file for file in named_lists if file not in problems]


def _lists_in_folder(path: Path, url_key: str) -> list[Path]:
    children = _named(path)
    # Of what cannot be read, only it is left out.
    entered = [child for child in children if child.is_dir() and not why_not_read(child) and not child.samefile(path)]
    groups = [_named(child) if child in entered else [child] for child in children]
    files = [file for group in groups for file in group if not file.is_dir() or why_not_read(file)]
    if unread := [(str(file.relative_to(path)), why) for file in files if (why := why_not_read(file))]:
        logger.warning("%s: not read, %s: %s", path, counted(len(unread), "files"), describe(unread))
    files = [file for file in files if not why_not_read(file)]
    chosen = [file for file in files if is_url_list(file, url_key)]
    if left := [str(file.relative_to(path)) for file in files if file not in chosen and file.name != MANIFEST]:
        logger.warning("%s: ignored, not URL lists by their names or first lines: %s", path, ", ".join(left))
    if not chosen:
        names = ", ".join(LIST_SUFFIXES)
        packed = ", ".join(store.COMPRESSED)
        raise UserError(f"{path}: holds no URL list ({names} or .jsonl, also {packed}); give such a file")
    return chosen


def _named(folder: Path) -> list[Path]:
    """Return what is in a folder in order of name, without what is hidden."""
    return sorted(child for child in folder.iterdir() if not child.name.startswith("."))


def is_url_list(path: Path, url_key: str = URL_KEY) -> bool:
    """Return whether the name of a file in a folder, compressed or not, is that of a list of URLs.

    A file without a suffix is a list if its first line is a URL or a record (`RS_2017-01.xz`); so a README is not.
    """
    suffixes = [suffix for suffix in path.suffixes if suffix not in store.COMPRESSED]
    if not suffixes:
        _, first = next(_lines(path), (0, b""))
        return first.startswith(b"{") or _problem(first, url_key, in_json=False) is None
    return path.name != MANIFEST and (suffixes[-1] in LIST_SUFFIXES or holds_json(path))


def holds_json(path: Path) -> bool:
    """Return whether a list, compressed or not, is JSON lines by its name."""
    return is_jsonl(path) or any(_NUMBERED_JSON.fullmatch(suffix) for suffix in path.suffixes[-2:])


def check_list(file: Path, url_key: str = URL_KEY) -> None:
    """Raise UserError for a file that is not a list: its first bytes are of another format, or no line is a URL.

    Only the lines up to the first URL are read. A file without lines is an empty list, which is allowed.
    """
    with reading_text(file) as opened:
        check_text(opened.read(SNIFFED), file)
    first_problem, lines = "", 0
    for number, line in _lines(file):
        lines += 1
        problem = _problem(line, url_key, in_json=holds_json(file))
        if problem is None:
            return
        first_problem = first_problem or f"line {number}: {problem}"
    if lines:
        raise UserError(
            f"{file}: none of its {lines} lines holds a URL; {first_problem}; give URLs such as "
            f"http://garden.test/page as lines of text, or JSON lines with a key {url_key!r} (--url-key names another)"
        )


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and text of each line that is neither blank nor a comment."""
    with reading_text(file) as opened:
        for number, (_, line) in enumerate(store.lines_of(opened, _LONGEST_LOOKED_AT), start=1):
            text = line.strip().removeprefix(BYTE_ORDER_MARK.encode())
            if text and not text.startswith(b"#"):
                yield number, text


def _problem(line: bytes, url_key: str, *, in_json: bool) -> str | None:
    """Return why a line holds no URL; None if it holds one."""
    try:
        url = read_url(line, url_key, in_json=in_json or line.startswith(b"{"))
    except UnreadableLineError as problem:
        return str(problem)
    # Of a submission to Reddit itself, only the path is given; the rules say so.
    known = canonical_url(url) or (line.startswith(b"{") and url.startswith("/"))
    return None if known else f"{url[:_SHOWN]!r} is not an http or https URL"


def check_text(start: bytes, file: Path, what: str = "a list of URLs") -> None:
    """Raise UserError if the first bytes of a file, which should be `what`, are not text in an encoding like UTF-8."""
    for magic, advice in _MAGIC.items():
        if start.startswith(magic):
            raise UserError(f"{file}: is not {what} but {advice}")
    if start.removeprefix(BYTE_ORDER_MARK.encode()).lstrip()[:16].lower().startswith(_MARKUP):
        raise UserError(f"{file}: is not {what} but an HTML or XML page: give one entry on each line")
    if start[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC):
        raise UserError(f"{file}: is not {what} but a tar archive: unpack it")
    if (zero := start[:SNIFFED].find(b"\0")) >= 0:
        line = start.count(b"\n", 0, zero) + 1
        if _UTF_16.match(start):
            raise UserError(f"{file}: is not {what} but UTF-16 text without a byte order mark: {_SAVE}")
        raise UserError(f"{file}: is not {what} but binary data (a zero byte in line {line}, at byte {zero})")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Whole lines of one list file."""

    file: Path
    number: int
    """Index among all chunks, in the order of the input."""
    list_number: int
    """Index of the list file."""
    start: int = 0
    stop: int | None = None
    """Offset after the last byte; None for the end of the file."""
    first_line: int = 1


def split_lists(files: Sequence[Path]) -> list[Chunk]:
    """Return the chunks of list files, in order."""
    chunks: list[Chunk] = []
    for list_number, file in enumerate(files):
        if file.suffix in store.COMPRESSED or file.stat().st_size <= CHUNK_BYTES or file_encoding(file):
            chunks.append(Chunk(file, len(chunks), list_number))
            continue
        for start, stop, first_line in line_ranges(file):
            chunks.append(Chunk(file, len(chunks), list_number, start, stop, first_line))
    return chunks


def first_lines(files: Sequence[Path], limit: int, folder: Path) -> list[Path]:
    """Return copies below `folder` of the lists, with the first `limit` of all their lines; empty ones beyond these.

    Blank lines and comments do not count.
    """
    copies: list[Path] = []
    for number, file in enumerate(files):
        name = file.name.removesuffix(file.suffix) if file.suffix in store.COMPRESSED else file.name
        copies.append(folder / f"{number:05d}" / name)
        with store.create(copies[-1]) as copy:
            for line in _plain_lines(file) if limit else ():
                copy.write(line.rstrip(b"\r\n") + b"\n")
                limit -= bool(line.strip() and not line.lstrip().startswith(b"#"))
                if not limit:
                    break
    return copies


def _plain_lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a list in UTF-8, whatever encoding it is in."""
    with reading_text(file) as opened:
        yield from opened


def line_ranges(file: Path) -> Iterator[tuple[int, int, int]]:
    """Yield start, stop (both byte offsets) and number of the first line of each chunk of a plain list."""
    start, line, size = 0, 1, file.stat().st_size
    with file.open("rb") as opened:
        while start < size:
            stop, lines = start, 0
            while stop < start + CHUNK_BYTES and (block := opened.read(min(BLOCK_BYTES, start + CHUNK_BYTES - stop))):
                stop, lines = stop + len(block), lines + block.count(b"\n")
            rest = opened.readline(LONGEST_LINE)
            if len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
                raise _too_long(file, line + lines)
            yield start, stop + len(rest), line
            start, line = stop + len(rest), line + lines + rest.count(b"\n")


def read_blocks(chunk: Chunk) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of a chunk: number of the first line, and whole lines.

    Raises UserError for data that are not text, or are damaged, and for a line that is too long.
    """
    line, rest = chunk.first_line, b""
    with reading_text(chunk.file) as file:
        if chunk.start:
            file.seek(chunk.start)
        left = None if chunk.stop is None else chunk.stop - chunk.start
        while block := file.read(BLOCK_BYTES if left is None else min(left, BLOCK_BYTES)):
            if line == 1 and not rest:
                check_text(block, chunk.file)
            left = None if left is None else left - len(block)
            lines, end, rest = (rest + block).rpartition(b"\n")
            if len(rest) > LONGEST_LINE:
                raise _too_long(chunk.file, line + lines.count(b"\n") + len(end))
            if end:
                yield line, lines
                line += lines.count(b"\n") + 1
    if rest:
        yield line, rest


def _too_long(file: Path, line: int) -> UserError:
    return UserError(f"{file}:{line}: is longer than {LONGEST_LINE >> 20} MiB; a list has one URL on each line")


class UnreadableLineError(RejectedRowError):
    """A line that holds no URL."""


def read_url(line: bytes, url_key: str = URL_KEY, *, in_json: bool) -> str:
    """Return the URL of a line as it is spelled there; raises UnreadableLineError."""
    return record_url(read_record(line), url_key) if in_json else decode(line)


def decode(line: bytes) -> str:
    """Return a line as text; raises UnreadableLineError."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UnreadableLineError("invalid_utf8", f"not valid UTF-8 at byte {error.start}") from None


def unescaped(url: str) -> str:
    """Undo HTML's escaping, as a browser does in a link: of `&` however often, of `<`, `>`, quotes, and by number.

    Reddit escapes `&`, `<` and `>` (see its `raw_json`), and lists that were taken from pages have what stood there. No
    page needs a parameter whose name begins with `amp;`, or a fragment such as `038;`. Named characters beyond these
    stay: `&copy=1` is a parameter. So do references to blanks and to what cannot be shown.
    """
    return _AMPERSANDS.sub("&", _REFERENCES.sub(_character, url)) if "&" in url else url


def _character(reference: re.Match[str]) -> str:
    character = html.unescape(reference[0])
    is_shown = len(character) == 1 and character.isprintable() and character not in " &\ufffd"
    return character if is_shown else reference[0]


def read_record(line: bytes | str) -> dict[str, Any]:
    """Return a line of JSON as an object; raises UnreadableLineError. `json` decides on what orjson refuses."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        record = _read_json(line if isinstance(line, str) else decode(line))
    return cast(dict[str, Any], record) if isinstance(record, dict) else {}


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableLineError("invalid_json", f"not valid JSON ({error})") from None


def record_url(record: dict[str, Any], url_key: str = URL_KEY) -> str:
    """Return the URL of a record, with lone surrogates escaped; raises UnreadableLineError."""
    url = record.get(url_key)
    if not isinstance(url, str):
        raise UnreadableLineError("no_url", f"has no text under the key {url_key!r}")
    return url if url.isascii() else url.encode("utf-8", "backslashreplace").decode()
