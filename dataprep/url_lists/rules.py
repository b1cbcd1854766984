"""The rules that keep a URL out, in order: domain, page, extension, too short, malformed.

Pure: a line in, a verdict out. (The last rule, `duplicate`, needs the whole list: see `dataprep.url_lists.merging`.)
A domain entry stands for that host and everything below it, and never for other endings: `apple.com`
says nothing about `apple.org`. A page entry stands for its path and everything below it.
"""

import functools
import re
from typing import NamedTuple

from dataprep.crawl.addresses import is_public, parse_address
from dataprep.url_lists.blacklists import Blacklists, page_key
from dataprep.url_lists.domains import registered_domain
from pipelines.identity import Address, split_url, without_tracking

DOMAIN_BLACKLIST = "domain_blacklist"
URL_BLACKLIST = "url_blacklist"
EXTENSION_BLACKLIST = "extension_blacklist"
TOO_SHORT = "too_short"
MALFORMED = "malformed"
_NO_URL = "not an http or https URL with a valid host"
# RFC 6761, 6762, 7686, 9476, ICANN's names that are never delegated, and what routers call their network.
_PRIVATE_ENDINGS = frozenset(
    (
        *("alt", "corp", "home", "internal", "intranet", "invalid", "lan"),
        *("local", "localdomain", "localhost", "mail", "onion", "private"),
    )
)
_PAGE_ENDS = re.compile("[/?&;]|$")
CACHED_HOSTS = 65_536


class Verdict(NamedTuple):
    """What the rules say of one line: its canonical URL, or the rule that it breaks and the value seen."""

    canonical: str = ""
    rule: str = ""
    value: str = ""


class HostFacts(NamedTuple):
    """What the rules say of all URLs of a host."""

    blacklisted: Verdict | None
    """The verdict when a domain entry covers it."""
    has_pages: bool
    problem: str
    """Why it is no public host; empty where it may be one."""


NOTHING_SAID = HostFacts(None, has_pages=False, problem="")


class Judge:
    """Applies the rules to one URL after the other; what concerns hosts is kept for the next URL."""

    def __init__(self, lists: Blacklists, longest_short: int) -> None:
        self.longest_short = longest_short
        self._lists = lists
        self.facts = functools.lru_cache(CACHED_HOSTS)(self.look_up)

    def __call__(self, url: str) -> Verdict:
        """The verdict on one line of a list."""
        address = split_url(url)
        if address is None:
            return self._no_url(url)
        facts = self.facts(address.host)
        if facts.blacklisted:
            return facts.blacklisted
        if facts.has_pages and (entry := blacklisted_page(address, self._lists)):
            return Verdict(rule=URL_BLACKLIST, value=f"{entry} ({self._lists.pages.get(entry)})")
        if broken := self.extension(path_extension(address.path)):
            return broken
        if len(url) <= self.longest_short:
            return Verdict(rule=TOO_SHORT, value=f"{len(url)} characters")
        if facts.problem:
            return Verdict(rule=MALFORMED, value=facts.problem)
        if len(url.split(None, 1)) > 1:
            return Verdict(rule=MALFORMED, value="white space inside")
        return Verdict(without_tracking(address).url)

    def extension(self, extension: str) -> Verdict | None:
        """The verdict on all URLs with this extension, if it is blacklisted."""
        category = self._lists.extensions.get(extension)
        return Verdict(rule=EXTENSION_BLACKLIST, value=f"{extension} ({category})") if category else None

    def look_up(self, host: str) -> HostFacts:
        """What `facts` remembers of a host in canonical form."""
        entry = blacklisted_domain(host, self._lists)
        has_pages = self._lists.page_hosts.get(host.removeprefix("www.")) is not None
        problem = host_problem(host)
        if not (entry or has_pages or problem):
            return NOTHING_SAID
        value = f"{entry} ({self._lists.domains.get(entry)})" if entry else ""
        return HostFacts(Verdict(rule=DOMAIN_BLACKLIST, value=value) if entry else None, has_pages, problem)

    def _no_url(self, url: str) -> Verdict:
        if broken := self.extension(path_extension(url.partition("#")[0].partition("?")[0])):
            return broken
        if len(url) <= self.longest_short:
            return Verdict(rule=TOO_SHORT, value=f"{len(url)} characters")
        return Verdict(rule=MALFORMED, value=_NO_URL)


def blacklisted_domain(host: str, lists: Blacklists) -> str | None:
    """The entry that covers `host`: the host itself or a parent, up to its registered domain."""
    entry = host
    while lists.domains.get(entry) is None:
        entry = entry.partition(".")[2]
        if not entry:
            return None
    return entry if entry == host or len(entry) >= len(registered_domain(host)) else None


def blacklisted_page(address: Address, lists: Blacklists) -> str | None:
    """The entry that covers a page: itself, or a path above it."""
    key = page_key(address)
    for end in _PAGE_ENDS.finditer(key):
        entry = key[: end.start()]
        if lists.pages.get(entry):
            return entry
    return None


def host_problem(host: str) -> str:
    """Why a host is not one of the public web, or nothing: what a crawler must never be sent to.

    The names that exist, and the addresses that they have, are the downloader's to check.
    """
    # A host whose last label is a number is an address, and no other name ends with a digit and is one.
    if (host[-1].isdigit() or ":" in host) and (address := parse_address(host)):
        return "" if is_public(address) else f"address {host} is not public"
    if "." not in host or host.rpartition(".")[2] in _PRIVATE_ENDINGS:
        return f"host {host!r} is no public name"
    return ""


def path_extension(path: str) -> str:
    """`/a/Report.PDF;v=1` -> `.pdf`; empty where the last segment has none."""
    name = path.rpartition("/")[2].partition(";")[0]
    stem, dot, extension = name.rpartition(".")
    return f".{extension.lower()}" if dot and stem else ""
