"""The edits of `clean`, in their fixed order: repair, Megatron's cleanings, removal of C4's lines, masking.

text -> the edited text and the names of the edits that changed it. Every edit is optional; the order is fixed.

Masking replaces personal data that has a recognizable form. The placeholders are those of Dolma, which OLMo's tokenizer
has as single tokens, so masking a masked text changes nothing. Time is linear in the text: every pattern starts at a
boundary and is bounded in length.

- email: a local part as used in practice (ASCII letters, digits, `._%+&'-`; at most 64 characters), and a domain whose
  last label has only letters, or an address in brackets.
- ip: IPv4 and IPv6 that `ipaddress` accepts, and only public addresses, as by default in datatrove
  (`only_remove_public_ips`): private and reserved addresses identify nobody. Not IPv4 after words such as `version`,
  nor four single digits, which number versions and sections; IPv6 only from 2000::/3, the only allocated range, because
  C++ has names such as `dead::beef`.
- phone: numbers of North America with separators (area code and exchange from 2 to 9), and international ones with `+`,
  of 8 to 15 digits (ITU-T E.164). Digits without separators stay: they more often number things, and so do those after
  words such as ISBN. National formats of other countries are not recognized. In 23,500 documents the library
  phonenumbers (9.0.43, region US) found the same numbers and four false ones, at a fifth of the speed and with 48 MB to
  install, so it is not used.

Sources: huggingface/datatrove, src/datatrove/pipeline/formatters/pii.py; allenai/dolma, python/dolma/taggers/pii.py (no
phone numbers or addresses near isbn, doi and #).
"""

import dataclasses
import ipaddress
import re
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dataprep.clean.config import CleanConfig, Masked
from dataprep.clean.rules import megatron
from dataprep.clean.rules.c4 import Cut, remove_lines
from dataprep.clean.waterfall import EDIT
from dataprep.text.repair import UNREPAIRED, Repair
from pipelines import oracle
from pipelines.documents import Row
from pipelines.manifest import Counts

FTFY = "ftfy"
FTFY_FIRST, FTFY_ONE_IN = 4, 500
"""Documents that ftfy itself repairs too: the first of a shard, and one in so many."""
REPAIRS = "repairs"
MASKED = typing.get_args(Masked)
_MASKED_COLUMNS = {kind: f"masked_{kind}" for kind in MASKED}
_NOTHING_MASKED = dict.fromkeys(_MASKED_COLUMNS.values(), 0)
_NO_REPAIRS = {UNREPAIRED, "gutenberg", "general_cleaning", "stories", "realnews", "c4_lines", "masked"}
"""Changes that are not fixes of ftfy's."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A text after all edits."""

    text: str
    uncut: str
    """The same text without C4's removal of lines."""
    changes: tuple[str, ...]
    """Names of the edits that changed it; the repair has one name per fix."""
    masked: Mapping[str, int]
    """Kind of personal data -> number of maskings."""
    cut: Cut
    """The result of C4's removal of lines, with its counts."""


def edit_fields(config: CleanConfig) -> list[pa.Field]:
    """Return the columns that record the edits; those of masking only if it is on, or for annotations."""
    kinds = MASKED if config.mask or config.annotate else ()
    return [
        pa.field(REPAIRS, pa.list_(pa.string())),
        *(pa.field(_MASKED_COLUMNS[kind], pa.int32()) for kind in kinds),
    ]


def edit_columns(edited: Edited) -> dict[str, Any]:
    """Return the values of the columns that record the edits."""
    masked = {_MASKED_COLUMNS[kind]: number for kind, number in edited.masked.items()}
    return {REPAIRS: list(edited.changes), **_NOTHING_MASKED, **masked}


def count_edits(columns: Mapping[str, Any], counts: Counts) -> None:
    """Count the documents that each edit changed, those that ftfy repaired, and the maskings."""
    changes: Sequence[str] = columns[REPAIRS]
    for change in changes:
        counts.total(f"{EDIT}{change}", 1)
    counts.total("repaired", int(not _NO_REPAIRS.issuperset(changes)))
    for name in _NOTHING_MASKED:
        if number := columns.get(name):
            counts.total(name, number)


def count_lines(edited: Edited, counts: Counts) -> None:
    """Count the lines that C4 removed, for each reason, and the citations: `c4_lines_javascript`, `c4_citations`.

    A run from annotations lacks these counts, because no column holds them.
    """
    for reason, number in edited.cut.counts.items():
        counts.total("c4_citations" if reason == "citations" else f"c4_lines_{reason}", number)


class Edits:
    """The edits that a configuration switches on."""

    def __init__(self, config: CleanConfig) -> None:
        self._repair = (
            Repair(uncurl_quotes=config.uncurl_quotes, **dataclasses.asdict(config.ftfy)) if config.repair else None
        )
        self._cleanings = list(_megatron_edits(config))
        self._lines = config.c4.lines
        self._mask = config.mask
        self._sample = oracle.Sample(first=FTFY_FIRST, one_in=FTFY_ONE_IN)

    def apply(self, text: str) -> Edited:
        """Apply all edits to `text`."""
        changes: list[str] = []
        if self._repair:
            repaired = self._repair.apply(text)
            text, changes = repaired.text, list(repaired.changes)
        for name, edit in self._cleanings:
            edited = edit(text)
            changes += [name] if edited != text else []
            text = edited
        uncut = text
        cut = remove_lines(text, self._lines)
        changes += ["c4_lines"] if cut.text != uncut else []
        return self._masked(cut, uncut, changes)

    def check(self, row: Row, counts: Counts) -> None:
        """Compare the repair of a sampled document with ftfy's own. Raises UserError if they differ.

        A text that stays as it is because ftfy would take minutes is not compared.
        """
        if self._repair and self._sample.takes(row["doc_id"]):
            text = row["text"][: oracle.MAX_CHARACTERS]
            repaired = self._repair.apply(text)
            if UNREPAIRED not in repaired.changes:
                name = oracle.name_of(row["doc_id"], row["url"])
                equal = repaired.text == self._repair.by_ftfy(text)
                oracle.compare(counts, FTFY, equal=equal, row=name, what="the repaired text")

    def _masked(self, cut: Cut, uncut: str, changes: list[str]) -> Edited:
        text = cut.text
        if not self._mask:
            return Edited(text, uncut, tuple(changes), {}, cut)
        masked, counts = mask(text, self._mask)
        return Edited(
            masked,
            masked if uncut == text else mask(uncut, self._mask)[0],
            (*changes, *(["masked"] if masked != text else [])),
            counts,
            cut,
        )


def _megatron_edits(config: CleanConfig) -> Iterator[tuple[str, Callable[[str], str]]]:
    """Yield Megatron's cleanings. That of books comes first, because it needs the lines that general_cleaning joins."""
    if config.gutenberg:
        yield "gutenberg", megatron.gutenberg
    if config.general_cleaning and not (config.compat and config.repair):  # Megatron returns after ftfy
        yield "general_cleaning", megatron.general_cleaning
    if config.stories:
        yield "stories", megatron.stories
    if config.realnews:
        yield "realnews", megatron.realnews


PLACEHOLDERS: dict[Masked, str] = {
    "email": "|||EMAIL_ADDRESS|||",
    "ip": "|||IP_ADDRESS|||",
    "phone": "|||PHONE_NUMBER|||",
}

_OCTETS = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LOCAL_PART = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z0-9_](?:[A-Za-z0-9._%+&'-]{0,62}[A-Za-z0-9_+-])?\Z")
# Not a digit with x and a dot: logo@2x.png is an image.
_AT_DOMAIN = re.compile(
    rf"@(?:(?![0-9]x\.)(?:{_LABEL}\.){{1,8}}(?:xn--[A-Za-z0-9-]{{2,59}}|[A-Za-z]{{2,24}})"
    rf"(?![A-Za-z0-9_]|-{{1,2}}[A-Za-z0-9])|\[{_OCTETS}\])"
)
_IP = re.compile(
    rf"(?<![\w.])(?<!\w-){_OCTETS}(?!\w|\.[0-9]|-\w)|(?<![\w:.])[23][0-9A-Fa-f]{{3}}:[0-9A-Fa-f]{{1,4}}(?::[0-9A-Fa-f]{{0,4}}){{1,6}}(?![\w:])"
)
_PHONE = re.compile(
    r"(?<![\w.+/=-])(?:"
    r"(?:\+?1[-. ]?)?(?:\([2-9][0-9]{2}\)[-. ]?[2-9][0-9]{2}[-. ]|[2-9][0-9]{2}([-. ])[2-9][0-9]{2}\1)[0-9]{4}"
    r"|\+[2-9](?:[-. ()]{0,2}[0-9]){7,14}"
    r")(?!\w|[-./][0-9])"
)
_ALLOCATED = ipaddress.ip_network("2000::/3")
_LOCAL_CHARACTERS = 64
"""Longest local part of an address (RFC 5321, 4.5.3.1.1)."""
_WORD_CHARACTERS = 20
"""How far before a number the word that identifies it may begin."""
_BEFORE_A_VERSION = re.compile(
    r"(?i)\b(?:ver|version|release|build|firmware|kernel|section|chapter|rev|revision)[.:# ]{0,3}$"
)
_BEFORE_A_THING = re.compile(
    r"(?i)(?:\b(?:isbn|issn|doi|upc|ean|sku|order|invoice|item|model|serial|part|id|ref|case|ticket)"
    r"(?: (?:no|number|id|code)\b)?|#)[-.:# ]{0,3}$"
)


def mask(text: str, kinds: Collection[Masked]) -> tuple[str, dict[str, int]]:
    """Return `text` with placeholders, and the number of maskings of each of `kinds`."""
    counts: dict[str, int] = {}
    for kind, replace in _MASKERS.items():
        if kind in kinds:
            text, counts[kind] = replace(text)
    return text, counts


def _mask_emails(text: str) -> tuple[str, int]:
    """Search back from each `@` with a domain to where the local part begins."""
    parts: list[str] = []
    kept_to = 0
    for domain in _AT_DOMAIN.finditer(text):
        local = _LOCAL_PART.search(text, max(kept_to, domain.start() - _LOCAL_CHARACTERS), domain.start())
        if local:
            parts.append(text[kept_to : local.start()])
            kept_to = domain.end()
    return PLACEHOLDERS["email"].join([*parts, text[kept_to:]]), len(parts)


def _mask_addresses(text: str) -> tuple[str, int]:
    return _replace(text, _IP, PLACEHOLDERS["ip"], _is_public_address)


def _mask_phones(text: str) -> tuple[str, int]:
    return _replace(text, _PHONE, PLACEHOLDERS["phone"], lambda match: not _follows(_BEFORE_A_THING, match))


_MASKERS: dict[Masked, Callable[[str], tuple[str, int]]] = {
    "email": _mask_emails,
    "ip": _mask_addresses,
    "phone": _mask_phones,
}


def _replace(
    text: str, pattern: re.Pattern[str], placeholder: str, is_personal: Callable[[re.Match[str]], bool]
) -> tuple[str, int]:
    """Put the placeholder for each match that is personal data; return the text and the number of replacements."""
    parts: list[str] = []
    kept_to = 0
    for match in pattern.finditer(text):
        if is_personal(match):
            parts.append(text[kept_to : match.start()])
            kept_to = match.end()
    return placeholder.join([*parts, text[kept_to:]]), len(parts)


def _is_public_address(match: re.Match[str]) -> bool:
    try:
        address = ipaddress.ip_address(match.group())
    except ValueError:
        return False
    if not address.is_global:
        return False
    if address.version == 6:
        return address in _ALLOCATED
    return len(match.group()) > len("1.2.3.4") and not _follows(_BEFORE_A_VERSION, match)


def _follows(words: re.Pattern[str], match: re.Match[str]) -> bool:
    start = match.start()
    return words.search(match.string[max(0, start - _WORD_CHARACTERS) : start]) is not None
