"""The rules that keep a URL out, in order: domain, extension, too short, malformed.

Pure: a line in, a verdict out. (The last rule, `duplicate`, needs the whole list: see `dataprep.urls`.)
The lists are data files, `lists/domains-<category>.txt` and `lists/extensions-<category>.txt`:
one entry per line, `#` starts a comment. A domain entry stands for that host and everything below
it, and never for other endings: `apple.com` says nothing about `apple.org`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dataprep.url_lists.domains import registered_domain
from pipelines import store
from pipelines.errors import UserError
from pipelines.identity import Address, canonical_url, split_url

LISTS = Path(__file__).parents[1] / "lists"
DOMAIN_BLACKLIST = "domain_blacklist"
EXTENSION_BLACKLIST = "extension_blacklist"
TOO_SHORT = "too_short"
MALFORMED = "malformed"
DUPLICATE = "duplicate"


@dataclass(frozen=True, slots=True)
class Blacklists:
    """Domains (hosts) and extensions (with their dot), each with its category."""

    domains: dict[str, str]
    extensions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say of one line: its canonical URL, or the rule that it breaks and the value seen."""

    canonical: str = ""
    rule: str = ""
    value: str = ""


def list_files(folder: Path) -> list[Path]:
    """The blacklists of a folder, in order of name; UserError when it has none."""
    files = sorted([*folder.glob("domains-*.txt"), *folder.glob("extensions-*.txt")])
    if not files:
        raise UserError(f"{folder}: holds no blacklist (domains-<category>.txt, extensions-<category>.txt)")
    return files


def load_blacklists(files: Iterable[Path]) -> Blacklists:
    """Read blacklists; an entry that stands in two categories belongs to the first."""
    lists = Blacklists({}, {})
    for file in files:
        kind, _, category = file.stem.partition("-")
        table = lists.domains if kind == "domains" else lists.extensions
        for entry in _entries(file):
            table.setdefault(entry, category)
    return lists


def _entries(file: Path) -> Iterator[str]:
    for line in store.read_lines(file):
        entry = line.decode("utf-8", "replace").partition("#")[0].strip().lower()
        if entry:
            yield entry


def judge(url: str, lists: Blacklists, longest_short: int) -> Verdict:
    """Apply the rules to one line of a list, in their order.

    >>> judge("http://a.imgur.com/x", load_blacklists(list_files(LISTS)), 8).value
    'imgur.com (images)'
    """
    address = split_url(url)
    if address and (entry := blacklisted_domain(address.host, lists)):
        return Verdict(rule=DOMAIN_BLACKLIST, value=f"{entry} ({lists.domains[entry]})")
    extension = path_extension(address.path if address else url.partition("#")[0].partition("?")[0])
    if extension in lists.extensions:
        return Verdict(rule=EXTENSION_BLACKLIST, value=f"{extension} ({lists.extensions[extension]})")
    if len(url) <= longest_short:
        return Verdict(rule=TOO_SHORT, value=f"{len(url)} characters")
    if problem := _malformed(url, address):
        return Verdict(rule=MALFORMED, value=problem)
    return Verdict(canonical=canonical_url(url) or "")


def blacklisted_domain(host: str, lists: Blacklists) -> str | None:
    """The entry that covers `host`: the host itself or a parent, up to its registered domain."""
    domain = registered_domain(host)
    while host not in lists.domains:
        if host == domain or "." not in host:
            return None
        host = host.partition(".")[2]
    return host


def path_extension(path: str) -> str:
    """`/a/Report.PDF;v=1` -> `.pdf`; empty where the last segment has none."""
    name = path.rpartition("/")[2].partition(";")[0]
    stem, dot, extension = name.rpartition(".")
    return f".{extension.lower()}" if dot and stem else ""


def _malformed(url: str, address: Address | None) -> str:
    """Why a line is no URL of a web page, or nothing."""
    if address is None:
        return "not an http or https URL with a valid host"
    if "." not in address.host and ":" not in address.host:
        return f"host {address.host!r} is no public name"
    if any(character.isspace() for character in url.strip()):
        return "white space inside"
    return ""
