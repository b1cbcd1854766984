"""Blacklists in the formats that people publish, compiled once into tables that all workers map into memory.

Formats, told apart by file name and line: our own `domains-<category>.txt` and `extensions-<category>.txt`; plain
lists of domains; hosts files (`0.0.0.0 ads.test`); UT1's folders (`<category>/domains`, `<category>/urls`) and its
.tar.gz. `#` starts a comment (`/#!page` does not); lists may be compressed. `*.garden.test` and `.garden.test` mean
`garden.test`; an entry with a path (`garden.test/~user`) covers the pages below it. Of equal entries the first one
counts.

A table holds millions of entries, once in memory for all workers: its rows are sorted by the 64-bit xxh3 of their
text, and a lookup also compares the text, so it is exact.
"""

import contextlib
import io
import logging
import re
import tarfile
from array import array
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from dataprep.urls.config import Compat
from dataprep.web.domains import second_level_label
from dataprep.web.url_lists import SNIFFED, check_text
from pipelines import store
from pipelines.command import Part
from pipelines.compression import DAMAGE
from pipelines.errors import UserError
from pipelines.identity import Address, normal_host, split_url
from pipelines.manifest import Counts
from pipelines.utf import as_utf8, reading_text, text_lines

logger = logging.getLogger(__name__)

LISTS = Path(__file__).parents[1] / "lists"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_LIST_SUFFIXES = (".txt", ".list", ".hosts", ".domains")
_UT1_NAMES = ("domains", "urls")
# What hosts files call this machine, or no machine.
_NO_SITES = re.compile(r"localhost(\.localdomain)?|0\.0\.0\.0")
_PARTS = ("domains", "extensions", "page_hosts", "pages")
_COMMENT = re.compile(r"(?<!\S)#|#(?!!)")
_ADDRESS = re.compile(r"[0-9.]+|[0-9a-f.]*:[0-9a-f:.]*(%\w+)?")
_MOST_WRONG = 10
"""A list is in another format if more than one line in this many is not an entry."""
_SMALL_TABLE = 20_000
_READ_BYTES = 1 << 20
_CHUNK_ROWS = 100_000

Entry = tuple[Literal["domain", "extension", "page"], str]


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


class EntryCollector:
    """Collects entries as columns (about 50 bytes each) and writes them as a table; the first of equal texts wins."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._chunks: list[pa.Array] = []
        self._hashes = array("Q")
        self._categories: dict[str, int] = {}
        self._codes = array("i")

    def add(self, text: str, category: str) -> None:
        """Add an entry."""
        self._texts.append(text)
        self._hashes.append(_hash(text))
        self._codes.append(self._categories.setdefault(category, len(self._categories)))
        if len(self._texts) == _CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        self._chunks.append(pa.array(self._texts, pa.large_string()))
        self._texts = []

    def write(self, file: Path) -> None:
        """Sort the entries and write them as one batch, which can be memory-mapped."""
        self._flush()
        hashes = np.frombuffer(self._hashes, np.uint64)
        order = np.argsort(hashes, kind="stable")
        hashes, texts = hashes[order], pa.chunked_array(self._chunks).combine_chunks().take(pa.array(order))
        first = np.ones(len(order), bool)
        if len(order) > 1:
            same_text = pc.call_function("equal", [texts.slice(1), texts.slice(0, len(texts) - 1)]).to_numpy(
                zero_copy_only=False
            )
            first[1:] = (hashes[1:] != hashes[:-1]) | ~same_text
        codes = np.frombuffer(self._codes, np.int32)[order][first]
        categories = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(self._categories, pa.string()))
        columns = [pa.array(hashes[first]), texts.filter(pa.array(first)), categories]
        batch = pa.record_batch(columns, names=["hash", "text", "category"])
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)


class EntryTable:
    """A read-only table text -> category, written by an EntryCollector and memory-mapped."""

    def __init__(self, file: Path) -> None:
        batch = pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0)
        self._hashes = np.asarray(batch.column("hash"))
        self._texts = batch.column("text")
        self._categories = batch.column("category")

    def __len__(self) -> int:
        return len(self._hashes)

    def get(self, text: str) -> str | None:
        """Return the category of an entry; None if there is no such entry."""
        if not len(self._hashes):
            return None
        wanted = np.uint64(_hash(text))
        row = int(self._hashes.searchsorted(wanted))
        while row < len(self._hashes) and self._hashes[row] == wanted:
            if self._texts[row].as_py() == text:
                return self._categories[row].as_py()
            row += 1
        return None

    def items(self) -> Iterator[tuple[str, str]]:
        """Yield all entries with their categories."""
        return zip(self._texts.to_pylist(), self._categories.to_pylist(), strict=True)


@dataclass(frozen=True, slots=True)
class Blacklists:
    """Entries with their categories: domains (hosts), extensions (with their dot), pages (`host/path`)."""

    domains: Mapping[str, str] | EntryTable
    extensions: Mapping[str, str]
    pages: Mapping[str, str] | EntryTable = field(default_factory=dict[str, str])
    page_hosts: Mapping[str, str] | EntryTable = field(default_factory=dict[str, str])
    """Hosts for which `pages` has entries."""


def list_files(path: Path) -> list[Path]:
    """Return the blacklists of `path`, a file or a folder, in order of name; raises UserError if there are none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"{path}: no such blacklist; check the path")
    files = sorted(file for file in path.glob("*") if not file.name.startswith("."))
    files += sorted(file for name in _UT1_NAMES for depth in ("*", "*/*") for file in path.glob(f"{depth}/{name}*"))
    files = [file for file in files if file.is_file()]
    chosen = [file for file in files if _is_list(file)]
    if left := [str(file.relative_to(path)) for file in files if file not in chosen]:
        logger.warning("%s: ignored, not blacklists by their names: %s", path, ", ".join(left))
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
    """Read blacklists into dictionaries; meant for lists of a few thousand entries."""
    lists: dict[str, dict[str, str]] = {name: {} for name in _PARTS}
    for (kind, entry), category in read_entries(files):
        lists[f"{kind}s"].setdefault(entry, category)
        if kind == "page":
            lists["page_hosts"].setdefault(entry.partition("/")[0], category)
    return Blacklists(**lists)


def compile_blacklists(part: Part, folder: Path, compat: Compat) -> Counts:
    """Write the tables that `open_blacklists` maps; with compat megatron, domains become second-level labels."""
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
    """Map the tables of `compile_blacklists`, which are told apart by their file names."""
    domains, extensions, page_hosts, pages = (EntryTable(file) for file in sorted(files))
    return Blacklists(
        _dict_if_small(domains), dict(extensions.items()), _dict_if_small(pages), _dict_if_small(page_hosts)
    )


def _dict_if_small(table: EntryTable) -> Mapping[str, str] | EntryTable:
    """Turn a small table into a dictionary, which answers ten times faster."""
    return dict(table.items()) if len(table) <= _SMALL_TABLE else table


def read_entries(files: Iterable[Path], *, labels: bool = False) -> Iterator[tuple[Entry, str]]:
    """Yield the entries of lists with their categories, in order; with `labels`, a domain may be a label (`imgur`).

    Raises UserError if more than a tenth of a list's lines are not entries. Warns if fewer are, or a single one is.
    """
    for file in files:
        for source, category, is_extensions, lines in _lists_in(file):
            right, wrong, first_wrong = 0, 0, ""
            for number, line in enumerate(lines, start=1):
                text = _COMMENT.split(line.decode("utf-8-sig", "replace"), 1)[0].strip().lower()
                entries = _extensions(text) if is_extensions else list(_domains(text, labels=labels))
                right += bool(entries)
                if text and not entries and not _is_housekeeping(text):
                    wrong += 1
                    first_wrong = first_wrong or f"line {number}: {text[:60]!r}"
                yield from ((entry, category) for entry in entries)
            _report_wrong(source, is_extensions, right, wrong, first_wrong)


def _report_wrong(source: str, is_extensions: bool, right: int, wrong: int, first_wrong: str) -> None:
    """Raise UserError for a list in another format; warn of a single wrong line, which lists of any length may have."""
    filled = right + wrong
    if (wrong and not right) or (wrong > 1 and wrong * _MOST_WRONG > filled):
        kind = "an extension such as .pdf" if is_extensions else "a domain, a hosts-file line or a page"
        number = f"none of its {wrong} lines is" if not right else f"{wrong} of its {filled} lines are not"
        raise UserError(f"{source}: {number} {kind}; {first_wrong}; give one in each line")
    if wrong:
        logger.warning("%s: lines that are not entries: %d, the first is %s", source, wrong, first_wrong)


def _lists_in(file: Path) -> Iterator[tuple[str, str, bool, Iterator[bytes]]]:
    """Yield, for each list in a file, its name for messages, its category, whether it has extensions, and its lines."""
    if file.name.endswith(ARCHIVES):
        yield from _lists_in_archive(file)
        return
    with reading_text(file) as opened:
        check_text(opened.read(SNIFFED), file, "a blacklist")
    bare = _bare(file)
    kind, dash, category = bare.stem.partition("-")
    if dash and kind in ("domains", "extensions"):
        yield str(file), category, kind == "extensions", text_lines(file)
    else:
        yield str(file), bare.parent.name if bare.name in _UT1_NAMES else bare.stem, False, text_lines(file)


def _lists_in_archive(file: Path) -> Iterator[tuple[str, str, bool, Iterator[bytes]]]:
    has_lists = False
    with _reading_archive(file), tarfile.open(file, "r:*") as archive:
        for member in archive:
            path = Path(member.name)
            if member.isfile() and path.name in _UT1_NAMES and (opened := archive.extractfile(member)):
                has_lists = True
                yield f"{file}:{member.name}", path.parent.name, False, _lines_of_member(file, opened)
        while archive.fileobj and archive.fileobj.read(_READ_BYTES):
            pass  # read to the end, where the checksum is
    if not has_lists:
        raise UserError(f"{file}: holds no <category>/domains or <category>/urls as UT1's archive does")


def _lines_of_member(file: Path, member: IO[bytes]) -> Iterator[bytes]:
    with _reading_archive(file):
        yield from as_utf8(cast(io.BufferedReader, member))


@contextlib.contextmanager
def _reading_archive(file: Path) -> Generator[None]:
    """Raise UserError if an archive cannot be read as one, or is damaged."""
    try:
        yield
    except (tarfile.TarError, *DAMAGE) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(f"{file}: not a readable tar archive ({reason}); fetch it again") from None


def _extensions(text: str) -> list[Entry]:
    return [("extension", text)] if text.startswith(".") and len(text) > 1 and " " not in text else []


def _domains(text: str, *, labels: bool) -> Iterator[Entry]:
    """Yield the entries of a line: a domain or page, or the names after the address in a hosts file."""
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
    """Return whether a line of a hosts file names this machine only (`127.0.0.1 localhost`, `::1 ip6-loopback`)."""
    first, *names = text.split()
    return bool(names) and _is_address(first) and all("." not in name or _NO_SITES.fullmatch(name) for name in names)


def _is_address(word: str) -> bool:
    return _ADDRESS.fullmatch(word) is not None


def page_key(address: Address) -> str:
    """Return the key of an address among pages: without scheme, `www.` and trailing slash."""
    query = f"?{address.query}" if address.query else ""
    fragment = f"#{address.fragment}" if address.fragment else ""
    return (address.host.removeprefix("www.") + address.path + query + fragment).rstrip("/")
