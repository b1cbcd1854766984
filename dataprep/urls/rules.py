"""The rules that reject a URL, in order: self-post of Reddit, domain, page, extension, too short, malformed.

Pure: a line in, a verdict out. (The last rule, `duplicate`, needs the whole list: see `dataprep.urls.sort`.)
A domain entry covers that host and everything below it, but no other endings: `apple.com` says nothing about
`apple.org`. A page entry covers its path and everything below it.

`Judge` takes one URL at a time. `FastPath` gives the same verdicts ten times faster, on whole columns of URLs that are
their own canonical form, or lack only the slash after the host, or have a fragment or a `?` too many: a regular
expression splits the URLs, and each host and each extension is judged once. It leaves all others to the judge.
"""

import functools
import re
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow.compute import ExtractRegexOptions, MatchSubstringOptions, StructFieldOptions, call_function

from dataprep.urls.blacklists import Blacklists, page_key
from dataprep.urls.reddit import SELF_POST
from dataprep.urls.sort import SCHEMES
from dataprep.web.domains import is_public, parse_address, registered_domain
from pipelines.identity import TRACKING_NAMES, Address, normal_host, split_url, without_tracking

DOMAIN_BLACKLIST = "domain_blacklist"
URL_BLACKLIST = "url_blacklist"
EXTENSION_BLACKLIST = "extension_blacklist"
TOO_SHORT = "too_short"
MALFORMED = "malformed"
# Reddit's lists give a text post, which links to no other page, by its path.
_SELF_POST = re.compile(r"/(?:(?:r|u|user)/[\w-]+/)?comments/\w+")
_NOT_A_URL = "not an http or https URL with a valid host"
# RFC 6761, 6762, 7686, 9476, the names that ICANN never delegates, and names that routers give their network.
_PRIVATE_ENDINGS = frozenset(
    (
        *("alt", "corp", "home", "internal", "intranet", "invalid", "lan"),
        *("local", "localdomain", "localhost", "mail", "onion", "private"),
    )
)
_PAGE_ENDS = re.compile("[/?&;#]|$")
CACHED_HOSTS = 65_536
_FAST_PATH_HOSTS = 262_144
"""Hosts cached by `FastPath`, about 50 MB; a month of Reddit's links names a few hundred thousand hosts."""
_CHARACTERS = r"0-9A-Za-z_!$&'()*+,;=:@~-"
# An escape that the canonical form keeps as it is: of no unreserved character (RFC 3986 section 2.3), in upper case.
_KEPT_ESCAPE = r"%(?:[01][0-9A-F]|2[0-9A-CF]|3[A-F]|40|5[B-E]|60|7[B-DF]|[89A-F][0-9A-F])"
# Nothing to lowercase, decode or resolve: no segment with a leading dot, no fragment that names a page. RE2 matches it
# in one pass, twelve times faster than otherwise, as long as no character can begin two parts and groups are few.
_PLAIN_URL = (
    r"^https?://(?P<host>[a-z0-9._-]{1,254})"
    rf"(?P<path>(?:/(?:(?:[{_CHARACTERS}]|{_KEPT_ESCAPE})(?:[.{_CHARACTERS}]|{_KEPT_ESCAPE})*)?)*)"
    rf"(?:\?(?P<query>(?:[/?.{_CHARACTERS}]|{_KEPT_ESCAPE})*))?"
    r"""(?:#(?:["-~][!-~]*)?)?\z"""
)
_DROPPED = rf"(?:^|&)(?:(?:{TRACKING_NAMES})(?:[=&]|\z)|&|\z)"
# What `unescaped` may change.
_ESCAPED = "&(?:#[0-9]+|#[xX][0-9a-fA-F]+|amp|lt|gt|quot|apos);"
# What `path_extension` returns, in the spelling of the path.
_EXTENSION = r"/[^/;]+(?P<extension>\.[^./;]*)(?:;[^/]*)?\z"
Rows = np.ndarray[Any, np.dtype[np.bool_]]


class Verdict(NamedTuple):
    """The verdict on one line: its canonical URL, or the rule that it breaks and the value seen."""

    canonical: str = ""
    rule: str = ""
    value: str = ""


class HostFacts(NamedTuple):
    """What the rules say about every URL of a host."""

    blacklisted: Verdict | None
    """The verdict if a domain entry covers the host."""
    has_pages: bool
    """Whether the blacklists have entries for pages of the host."""
    problem: str
    """Why it is not a public host; empty if it may be one."""


NO_FACTS = HostFacts(None, has_pages=False, problem="")


class Judge:
    """Applies the rules to one URL after another, and caches what they say about hosts."""

    def __init__(self, lists: Blacklists, longest_short: int) -> None:
        self.longest_short = longest_short
        self._lists = lists
        self.facts = functools.lru_cache(CACHED_HOSTS)(self.look_up)

    def __call__(self, url: str) -> Verdict:
        """Return the verdict on one line of a list."""
        address = split_url(url)
        if address is None:
            return self._reject_non_url(url)
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
        """Return the verdict on all URLs with this extension; None unless it is blacklisted."""
        category = self._lists.extensions.get(extension)
        return Verdict(rule=EXTENSION_BLACKLIST, value=f"{extension} ({category})") if category else None

    def look_up(self, host: str) -> HostFacts:
        """Return the facts about a host in canonical form; `facts` is the same, cached."""
        entry = blacklisted_domain(host, self._lists)
        has_pages = self._lists.page_hosts.get(host.removeprefix("www.")) is not None
        problem = host_problem(host)
        if not (entry or has_pages or problem):
            return NO_FACTS
        value = f"{entry} ({self._lists.domains.get(entry)})" if entry else ""
        return HostFacts(Verdict(rule=DOMAIN_BLACKLIST, value=value) if entry else None, has_pages, problem)

    def _reject_non_url(self, url: str) -> Verdict:
        if _SELF_POST.match(url):
            return Verdict(rule=SELF_POST, value="relative URL")
        if broken := self.extension(path_extension(url.partition("#")[0].partition("?")[0])):
            return broken
        if len(url) <= self.longest_short:
            return Verdict(rule=TOO_SHORT, value=f"{len(url)} characters")
        return Verdict(rule=MALFORMED, value=_NOT_A_URL)


def blacklisted_domain(host: str, lists: Blacklists) -> str | None:
    """Return the entry that covers `host`: the host itself or a parent, up to its registered domain."""
    entry = host
    while lists.domains.get(entry) is None:
        entry = entry.partition(".")[2]
        if not entry:
            return None
    return entry if entry == host or len(entry) >= len(registered_domain(host)) else None


def blacklisted_page(address: Address, lists: Blacklists) -> str | None:
    """Return the entry that covers a page: the page itself, or a path above it."""
    key = page_key(address)
    for end in _PAGE_ENDS.finditer(key):
        entry = key[: end.start()]
        if lists.pages.get(entry):
            return entry
    return None


def host_problem(host: str) -> str:
    """Return why a crawler must not be sent to a host, since it is not on the public web; empty if it may be.

    Whether a name exists, and which addresses it has, is checked by the downloader.
    """
    # Only a host that ends with a digit can be an IPv4 address, and only one with a colon an IPv6 address.
    if (host[-1].isdigit() or ":" in host) and (address := parse_address(host)):
        return "" if is_public(address) else f"address {host} is not public"
    if "." not in host or host.rpartition(".")[2] in _PRIVATE_ENDINGS:
        return f"host {host!r} is no public name"
    return ""


def path_extension(path: str) -> str:
    """Return the extension of a path: `/a/Report.PDF;v=1` -> `.pdf`; empty if its last segment has none."""
    name = path.rpartition("/")[2].partition(";")[0]
    stem, dot, extension = name.rpartition(".")
    return f".{extension.lower()}" if dot and stem else ""


class FastVerdicts(NamedTuple):
    """The verdicts of the fast path on a column of URLs; it has none on the URLs that are in neither field."""

    canonical: pa.Array
    """The canonical form of the URLs that have a verdict; all others as they are."""
    passed: Rows
    """Mask of the URLs that break no rule."""
    broken: list[tuple[int, Verdict]]
    """Row and verdict of URLs that break a rule."""


class FastPath:
    """Applies the rules of a judge to columns of URLs."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._facts = functools.lru_cache(_FAST_PATH_HOSTS)(self._look_up)

    def __call__(self, urls: pa.Array) -> FastVerdicts:
        """Return the verdicts on the URLs whose canonical form is found without reading them one by one."""
        parts = call_function("extract_regex", [urls], ExtractRegexOptions(_PLAIN_URL))
        host, path, query = (call_function("struct_field", [parts], StructFieldOptions([i])) for i in range(3))
        long = call_function("utf8_length", [urls]).to_numpy() > self._judge.longest_short
        drops = call_function("match_substring_regex", [query], MatchSubstringOptions(_DROPPED, ignore_case=True))
        has_query = _true(call_function("not_equal", [query, _text("")]))
        escaped = _true(call_function("match_substring_regex", [urls], MatchSubstringOptions(_ESCAPED)))
        known = long & _true(host.is_valid()) & ~(has_query & _true(drops)) & ~escaped
        clean, verdicts = self._judge_hosts(host, known)
        verdicts |= self._judge_extensions(path, clean)
        clean[list(verdicts)] = False
        return FastVerdicts(_whole(urls, host, path, query, known), clean, sorted(verdicts.items()))

    def _judge_hosts(self, host: pa.Array, known: Rows) -> tuple[Rows, dict[int, Verdict]]:
        """Return a mask of the rows whose host has no facts against it, and the verdicts by host."""
        encoded = host.dictionary_encode()
        facts = [self._facts(name) for name in encoded.dictionary.to_pylist()]
        codes = encoded.indices.fill_null(len(facts)).to_numpy(zero_copy_only=False)
        # The last entry is for lines without a host.
        clean = np.array([*(fact is NO_FACTS for fact in facts), False])
        blacklisted = np.array([*(fact is not None and fact.blacklisted is not None for fact in facts), False])
        verdicts: dict[int, Verdict] = {}
        for row in np.flatnonzero(known & blacklisted[codes]).tolist():
            fact = facts[codes[row]]
            if fact and fact.blacklisted:
                verdicts[row] = fact.blacklisted
        return known & clean[codes], verdicts

    def _look_up(self, host: str) -> HostFacts | None:
        return self._judge.look_up(host) if normal_host(host) == host else None

    def _judge_extensions(self, path: pa.Array, clean: Rows) -> dict[int, Verdict]:
        with_dot = call_function("match_substring", [path], MatchSubstringOptions("."))
        rows = np.flatnonzero(clean & _true(with_dot))
        matches = call_function("extract_regex", [path.take(pa.array(rows))], ExtractRegexOptions(_EXTENSION))
        encoded = call_function("struct_field", [matches], StructFieldOptions([0])).dictionary_encode()
        by_code = [self._judge.extension(extension.lower()) for extension in encoded.dictionary.to_pylist()]
        codes = encoded.indices.to_pylist()
        verdicts = ((row, by_code[code]) for row, code in zip(rows.tolist(), codes, strict=True) if code is not None)
        return {row: verdict for row, verdict in verdicts if verdict}


def _whole(urls: pa.Array, host: pa.Array, path: pa.Array, query: pa.Array, known: Rows) -> pa.Array:
    """Return the URLs; of those that are `known`, the ones that are not just their parts are put together from them."""
    secure = _true(call_function("starts_with", [urls], MatchSubstringOptions("https:")))
    sizes = [call_function("binary_length", [part]).fill_null(0).to_numpy() for part in (urls, host, path, query)]
    size, host_size, path_size, query_size = sizes
    whole = (size == 7 + secure + host_size + path_size + query_size + (query_size > 0)) & (path_size > 0)
    changed = known & ~whole
    rows = pa.array(np.flatnonzero(changed))
    if not len(rows):
        return urls
    schemes = pa.array(SCHEMES, pa.large_string()).take(pa.array(1 + secure[changed]))
    roots = call_function("binary_join_element_wise", [schemes, host.take(rows), path.take(rows), _text("")])
    slashes = pa.array(["/", ""], pa.large_string()).take(pa.array((path_size[changed] > 0).astype(int)))
    marks = pa.array(["", "?"], pa.large_string()).take(pa.array((query_size[changed] > 0).astype(int)))
    joined = call_function("binary_join_element_wise", [roots, slashes, marks, query.take(rows), _text("")])
    return call_function("replace_with_mask", [urls, pa.array(changed), joined])


def _text(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _true(values: pa.Array) -> Rows:
    """Return a mask of the rows that are true; null counts as false."""
    return values.fill_null(False).to_numpy(zero_copy_only=False)
