"""Blacklists as people publish them, compiled once into tables that all workers map into memory.

Formats, told apart by name and line: our own `domains-<category>.txt` and `extensions-<category>.txt`; plain
lists of domains; hosts files (`0.0.0.0 ads.test`); UT1's folders (`<category>/domains`, `<category>/urls`) and its
.tar.gz. `#` starts a comment; lists may be compressed. `*.garden.test` and `.garden.test` are `garden.test`, an
entry with a path (`garden.test/~user`) stands for the pages below it. Of equal entries the first one counts.
"""

import contextlib
import logging
import lzma
import re
import tarfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from dataprep.url_lists.domains import second_level_label
from dataprep.url_lists.entry_table import EntryCollector, EntryTable
from pipelines import store
from pipelines.command import Part
from pipelines.errors import UserError
from pipelines.identity import Address, normal_host, split_url
from pipelines.manifest import Counts

logger = logging.getLogger(__name__)

LISTS = Path(__file__).parents[1] / "lists"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_LIST_SUFFIXES = (".txt", ".list", ".hosts", ".domains")
_UT1_NAMES = ("domains", "urls")
# What hosts files call this machine, and nothing at all.
_NO_SITES = re.compile(r"localhost(\.localdomain)?|0\.0\.0\.0")
_PARTS = ("domains", "extensions", "page_hosts", "pages")
_ADDRESS = re.compile(r"[0-9.]+|[0-9a-f.]*:[0-9a-f:.]*(%\w+)?")
_MOST_WRONG = 10
"""A list of which more than one line in so many is no entry is of another format."""
_SMALL_TABLE = 20_000
_READ_BYTES = 1 << 20

Compat = Literal["none", "megatron"]
Entry = tuple[Literal["domain", "extension", "page"], str]


@dataclass(frozen=True, slots=True)
class Blacklists:
    """Entries with their categories: domains (hosts), extensions (with their dot), pages (`host/path`)."""

    domains: Mapping[str, str] | EntryTable
    extensions: Mapping[str, str]
    pages: Mapping[str, str] | EntryTable = field(default_factory=dict[str, str])
    page_hosts: Mapping[str, str] | EntryTable = field(default_factory=dict[str, str])
    """Hosts that `pages` has entries of."""


def list_files(path: Path) -> list[Path]:
    """The blacklists that `path` stands for, in order of name; UserError when there are none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"{path}: no such blacklist; check the path")
    files = sorted(file for file in path.glob("*") if not file.name.startswith("."))
    files += sorted(file for name in _UT1_NAMES for depth in ("*", "*/*") for file in path.glob(f"{depth}/{name}*"))
    files = [file for file in files if file.is_file()]
    chosen = [file for file in files if _is_list(file)]
    if left := [str(file.relative_to(path)) for file in files if file not in chosen]:
        logger.warning("%s: no blacklists by their names, left out: %s", path, ", ".join(left))
    if not chosen:
        raise UserError(
            f"{path}: holds no blacklist (domains-<category>.txt, extensions-<category>.txt, lists of domains, hosts "
            "files, or UT1's <category>/domains and <category>/urls)"
        )
    return chosen


def _is_list(file: Path) -> bool:
    bare = _bare(file)
    return file.name.endswith(ARCHIVES) or bare.suffix in _LIST_SUFFIXES or bare.name in ("hosts", *_UT1_NAMES)


def _bare(file: Path) -> Path:
    return file.with_suffix("") if file.suffix in store.COMPRESSED else file


def load_blacklists(files: Iterable[Path]) -> Blacklists:
    """Read blacklists into dictionaries: for lists of some thousand entries."""
    lists: dict[str, dict[str, str]] = {name: {} for name in _PARTS}
    for (kind, entry), category in read_entries(files):
        lists[f"{kind}s"].setdefault(entry, category)
        if kind == "page":
            lists["page_hosts"].setdefault(entry.partition("/")[0], category)
    return Blacklists(**lists)


def compile_blacklists(part: Part, folder: Path, compat: Compat) -> Counts:
    """Write the tables that `open_blacklists` maps. With compat megatron, domains become second-level labels."""
    tables = {name: EntryCollector() for name in _PARTS}
    for (kind, entry), category in read_entries(part.files, labels=compat == "megatron"):
        if kind == "domain" and compat == "megatron":
            if label := second_level_label(entry):
                tables["domains"].add(label, category)
            continue
        tables[f"{kind}s"].add(entry, category)
        if kind == "page":
            tables["page_hosts"].add(entry.partition("/")[0], category)
    for name, table in tables.items():
        table.write(folder / f"{name}.ipc")
    return Counts()


def open_blacklists(files: Iterable[Path]) -> Blacklists:
    """The tables of `compile_blacklists`, by their file names."""
    domains, extensions, page_hosts, pages = (EntryTable(file) for file in sorted(files))
    return Blacklists(_quick(domains), dict(extensions.items()), _quick(pages), _quick(page_hosts))


def _quick(table: EntryTable) -> Mapping[str, str] | EntryTable:
    """A small table as a dictionary, which answers ten times faster."""
    return dict(table.items()) if len(table) <= _SMALL_TABLE else table


def read_entries(files: Iterable[Path], *, labels: bool = False) -> Iterator[tuple[Entry, str]]:
    """(entry, category) of lists, in order. With `labels`, a domain may be a bare label (`imgur`).

    Raises UserError for a list of which more than a tenth of the lines are no entries; fewer, or a single one, are
    a warning.
    """
    for file in files:
        for place, category, is_extensions, lines in _lists_in(file):
            right, wrong, first_wrong = 0, 0, ""
            for number, line in enumerate(lines, start=1):
                text = line.decode("utf-8", "replace").partition("#")[0].strip().lower()
                entries = _extensions(text) if is_extensions else list(_domains(text, labels=labels))
                right += bool(entries)
                if text and not entries and not _is_housekeeping(text):
                    wrong += 1
                    first_wrong = first_wrong or f"line {number}: {text[:60]!r}"
                yield from ((entry, category) for entry in entries)
            _report_wrong(place, is_extensions, right, wrong, first_wrong)


def _report_wrong(place: str, is_extensions: bool, right: int, wrong: int, first_wrong: str) -> None:
    """UserError for a list of another format; a single line, as happens in lists of any length, is a warning."""
    filled = right + wrong
    if (wrong and not right) or (wrong > 1 and wrong * _MOST_WRONG > filled):
        kind = "an extension such as .pdf" if is_extensions else "a domain, a hosts-file line or a page"
        number = f"none of its {wrong} lines is" if not right else f"{wrong} of its {filled} lines are not"
        raise UserError(f"{place}: {number} {kind}; {first_wrong}; give one in each line")
    if wrong:
        logger.warning("%s: %d lines are no entries, the first is %s", place, wrong, first_wrong)


def _lists_in(file: Path) -> Iterator[tuple[str, str, bool, Iterator[bytes]]]:
    """(place for messages, category, is of extensions, lines) of each list in a file."""
    if file.name.endswith(ARCHIVES):
        yield from _lists_in_archive(file)
        return
    bare = _bare(file)
    kind, dash, category = bare.stem.partition("-")
    if dash and kind in ("domains", "extensions"):
        yield str(file), category, kind == "extensions", store.read_lines(file)
    else:
        yield str(file), bare.parent.name if bare.name in _UT1_NAMES else bare.stem, False, store.read_lines(file)


def _lists_in_archive(file: Path) -> Iterator[tuple[str, str, bool, Iterator[bytes]]]:
    found = False
    with _reading_archive(file), tarfile.open(file, "r:*") as archive:
        for member in archive:
            path = Path(member.name)
            if member.isfile() and path.name in _UT1_NAMES and (opened := archive.extractfile(member)):
                found = True
                yield f"{file}:{member.name}", path.parent.name, False, _lines_of_member(file, opened)
        while archive.fileobj and archive.fileobj.read(_READ_BYTES):
            pass  # a checksum stands at the end
    if not found:
        raise UserError(f"{file}: holds no <category>/domains or <category>/urls as UT1's archive does")


def _lines_of_member(file: Path, member: IO[bytes]) -> Iterator[bytes]:
    with _reading_archive(file):
        yield from member


@contextlib.contextmanager
def _reading_archive(file: Path) -> Generator[None]:
    """UserError when an archive turns out to be none, or damaged."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"{file}: not a readable tar archive ({reason}); fetch it again") from None


def _extensions(text: str) -> list[Entry]:
    return [("extension", text)] if text.startswith(".") and len(text) > 1 and " " not in text else []


def _domains(text: str, *, labels: bool) -> Iterator[Entry]:
    """The entries of a line: a domain or page, or the names after the address of a hosts file."""
    words = text.split()
    if len(words) > 1 and _is_address(words[0]):
        words = words[1:]
    elif len(words) > 1:
        return
    for word in words:
        host = None if "/" in word else normal_host(word.removeprefix("*").removeprefix("."))
        if host and ("." in host or ":" in host or labels):
            if not _NO_SITES.fullmatch(host):
                yield "domain", host
        elif not host and (address := split_url(word if "://" in word else f"http://{word}")):
            key = page_key(address)
            yield ("page", key) if "/" in key else ("domain", address.host)


def _is_housekeeping(text: str) -> bool:
    """Whether a line of a hosts file names this machine only (`127.0.0.1 localhost`, `::1 ip6-loopback`)."""
    first, *names = text.split()
    return bool(names) and _is_address(first) and all("." not in name or _NO_SITES.fullmatch(name) for name in names)


def _is_address(word: str) -> bool:
    return _ADDRESS.fullmatch(word) is not None


def page_key(address: Address) -> str:
    """How an address is looked up among pages: no scheme, no `www.`, no last slash."""
    query = f"?{address.query}" if address.query else ""
    return (address.host.removeprefix("www.") + address.path + query).rstrip("/")
