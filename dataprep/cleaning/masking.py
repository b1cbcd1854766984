"""Masks personal data that has a form: e-mail addresses, IP addresses, phone-like numbers.

`mask(text, kinds) -> (text, count of each kind)`. The placeholders are those of Dolma, which OLMo's tokenizer
holds as tokens of their own, so a masked text stays as it is when masked again. Time is linear in the text:
every pattern starts at a boundary and is bounded in length.

- email: the local part as in practice (ASCII letters, digits, `._%+&'-`; at most 64 characters), a domain whose
  last label has letters only, or an address in brackets.
- ip: IPv4 and IPv6 that `ipaddress` accepts, and only public ones, as in datatrove's default
  (`only_remove_public_ips`): private and reserved addresses identify nobody. Not IPv4 after words such as
  `version`, nor four single digits, which number versions and sections; IPv6 only from 2000::/3, all that is
  given out, for C++ has names such as `dead::beef`.
- phone: numbers of North America with separators (area code and exchange from 2 to 9), and international ones
  with `+`, of 8 to 15 digits (ITU-T E.164). Digits without separators are left: they are more often the numbers
  of things, and so is what follows words such as ISBN. National formats of other countries are not found. The
  library phonenumbers (9.0.43, region US) found in 23,500 documents the same numbers and four that are none, at
  a fifth of the speed and with 48 MB to install, so it is not used.

Sources: huggingface/datatrove, src/datatrove/pipeline/formatters/pii.py; allenai/dolma,
python/dolma/taggers/pii.py (no phone numbers or addresses near isbn, doi and #).
"""

import ipaddress
import re
from collections.abc import Callable, Collection

from dataprep.cleaning.config import Masked

PLACEHOLDERS: dict[Masked, str] = {
    "email": "|||EMAIL_ADDRESS|||",
    "ip": "|||IP_ADDRESS|||",
    "phone": "|||PHONE_NUMBER|||",
}

_OCTETS = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LOCAL_PART = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z0-9_](?:[A-Za-z0-9._%+&'-]{0,62}[A-Za-z0-9_+-])?\Z")
# No digit with x and a dot: logo@2x.png is a picture.
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
_GIVEN_OUT = ipaddress.ip_network("2000::/3")
_LOCAL_CHARACTERS = 64
"""Longest local part of an address (RFC 5321, 4.5.3.1.1)."""
_WORD_CHARACTERS = 20
"""How far before a number the word that tells what it is may begin."""
_BEFORE_A_VERSION = re.compile(
    r"(?i)\b(?:ver|version|release|build|firmware|kernel|section|chapter|rev|revision)[.:# ]{0,3}$"
)
_BEFORE_A_THING = re.compile(
    r"(?i)(?:\b(?:isbn|issn|doi|upc|ean|sku|order|invoice|item|model|serial|part|id|ref|case|ticket)"
    r"(?: (?:no|number|id|code)\b)?|#)[-.:# ]{0,3}$"
)


def mask(text: str, kinds: Collection[Masked]) -> tuple[str, dict[str, int]]:
    """`text` with placeholders, and how many places of each of `kinds` were masked."""
    counts: dict[str, int] = {}
    for kind, replace in _MASKERS.items():
        if kind in kinds:
            text, counts[kind] = replace(text)
    return text, counts


def _mask_emails(text: str) -> tuple[str, int]:
    """From each `@` with a domain back to where the local part begins."""
    pieces: list[str] = []
    kept_to = 0
    for domain in _AT_DOMAIN.finditer(text):
        local = _LOCAL_PART.search(text, max(kept_to, domain.start() - _LOCAL_CHARACTERS), domain.start())
        if local:
            pieces.append(text[kept_to : local.start()])
            kept_to = domain.end()
    return PLACEHOLDERS["email"].join([*pieces, text[kept_to:]]), len(pieces)


def _mask_addresses(text: str) -> tuple[str, int]:
    return _replace(text, _IP, _is_public_address, PLACEHOLDERS["ip"])


def _mask_phones(text: str) -> tuple[str, int]:
    return _replace(text, _PHONE, lambda match: not _follows(_BEFORE_A_THING, match), PLACEHOLDERS["phone"])


_MASKERS: dict[Masked, Callable[[str], tuple[str, int]]] = {
    "email": _mask_emails,
    "ip": _mask_addresses,
    "phone": _mask_phones,
}


def _replace(
    text: str, pattern: re.Pattern[str], is_one: Callable[[re.Match[str]], bool], placeholder: str
) -> tuple[str, int]:
    """Put the placeholder for each match that is one of its kind."""
    pieces: list[str] = []
    kept_to = 0
    for match in pattern.finditer(text):
        if is_one(match):
            pieces.append(text[kept_to : match.start()])
            kept_to = match.end()
    return placeholder.join([*pieces, text[kept_to:]]), len(pieces)


def _is_public_address(match: re.Match[str]) -> bool:
    try:
        address = ipaddress.ip_address(match.group())
    except ValueError:
        return False
    if not address.is_global:
        return False
    if address.version == 6:
        return address in _GIVEN_OUT
    return len(match.group()) > len("1.2.3.4") and not _follows(_BEFORE_A_VERSION, match)


def _follows(words: re.Pattern[str], match: re.Match[str]) -> bool:
    start = match.start()
    return words.search(match.string[max(0, start - _WORD_CHARACTERS) : start]) is not None
