"""The language of a text: a verdict, the protocol of detectors and engines, names, and the sample that is audited."""

from dataclasses import dataclass
from typing import Protocol

from pipelines.oracle import is_chosen

UNDETERMINED = "und"
"""The code if an engine has no answer (ISO 639-2: undetermined)."""


@dataclass(frozen=True, slots=True)
class Language:
    """The most probable language of a text."""

    code: str
    """As the engine writes it, mostly ISO 639-1; `und` if it has no answer."""
    probability: float
    """The engine's probability, 0 to 1; 1 where the prefilter decided, which it does only in sure cases."""
    engine: str
    """The engine that decided: langdetect, resiliparse, fasttext or lingua."""


class Detector(Protocol):
    """A way to detect languages; the verdict depends on the text alone."""

    def detect(self, text: str) -> Language:
        """Return the most probable language of `text`."""
        ...


class Engine(Detector, Protocol):
    """A library that detects languages; a mode decides which texts it reads."""

    def known_languages(self) -> list[str]:
        """Return the codes that it can give, sorted."""
        ...


_NAMES = """
af afrikaans, ar arabic, bg bulgarian, bn bengali, ca catalan, cs czech, cy welsh, da danish, de german, el greek,
en english, es spanish, et estonian, fa persian, fi finnish, fr french, gu gujarati, he hebrew, hi hindi, hr croatian,
hu hungarian, id indonesian, it italian, ja japanese, kn kannada, ko korean, lt lithuanian, lv latvian, mk macedonian,
ml malayalam, mr marathi, ne nepali, nl dutch, no norwegian, pa punjabi, pl polish, pt portuguese, ro romanian,
ru russian, sk slovak, sl slovenian, so somali, sq albanian, sv swedish, sw swahili, ta tamil, te telugu, th thai,
tl tagalog, tr turkish, uk ukrainian, ur urdu, vi vietnamese, zh-cn chinese
"""
CODES = {english: code for code, english in (pair.split() for pair in _NAMES.split(","))}
"""English names of langdetect's languages -> ISO 639-1 codes, for suggestions to users who give a name as a code."""


def code_of(name: str) -> str:
    """Return the code of a language by its English name in any case, or `name` itself if that is unknown."""
    return CODES.get(name.casefold(), name)


ONE_IN = 100
"""One document in this many is audited."""


def is_audited(doc_id: bytes | None) -> bool:
    """Return whether a document belongs to the audit sample, by a hash of its id; never without an id."""
    return is_chosen(doc_id, ONE_IN)
