"""Mode `prefilter`: resiliparse decides the very sure cases, an engine reads the rest.

resiliparse alone would lose good documents (22 of 3,000), but if one language is far nearer than every other, it agrees
with langdetect. Measured by `benchmarks/languages.py` on 37,600 real texts, excerpts and mixtures, in two halves that
share no document, nor a guide in two languages. The first half served to choose LEAD and FAR: see the table of --choose
(wrong for English at a lead of 30, 40, 50: 5, 3, 1 of 14,985). In the second half, 22,622 texts, 53 % are decided here.
Decisions on English equal those of langdetect on the whole text in every case, and decisions on each of 27 other
languages in at least 99.98 %. A sure verdict has probability 1, which langdetect does not always share: with a required
probability of 0.65, 0.9, 0.99 and 0.99999, decisions on English agree in 100 %, and three times in 99.97 %. This was
not a blind test: all four thresholds were first chosen when the halves still shared documents, two of them after a look
at both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dataprep.clean.language.engines import RESILIPARSE, ResiliparseEngine, nearest_of, nearest_two
from dataprep.clean.language.langdetect import first_characters
from dataprep.clean.language.language import Engine, Language

LEAST_CHARS = 100
"""The engine reads shorter texts."""
FARTHEST = 600
"""Largest distance of a sure verdict; above it, a text is short, repetitive or hardly language."""
LEAD = 50
"""How much nearer the nearest language must be than the second to be the verdict."""
LEAD_OF_OTHERS = 20
"""How much nearer an unwanted language must be than the second to be the verdict, if the wanted ones are FAR."""
FAR = 100
"""How much farther than the nearest language the wanted ones must be for the smaller lead to be enough."""
_LEFT_TO_ENGINE = ("ja", "ko", "zh")
"""langdetect counts all of Hangul, and all kana of each kind, as one letter, so a few Latin words can outweigh them."""


@dataclass(frozen=True, slots=True)
class Prefilter:
    """Sure verdicts on texts of languages that both resiliparse and an engine know."""

    engine: Engine
    languages: Sequence[str]
    """The wanted languages, as the engine writes them; none if all are."""
    _sure: frozenset[str] = field(init=False)
    _wanted: list[str] = field(init=False)

    def __post_init__(self) -> None:
        known = set(ResiliparseEngine().known_languages())
        sure = known & set(self.engine.known_languages()) - set(_LEFT_TO_ENGINE)
        object.__setattr__(self, "_sure", frozenset(sure))
        names = [code.partition("-")[0] for code in self.languages]  # zh-cn is zh
        object.__setattr__(self, "_wanted", names if known.issuperset(names) else [])

    def detect(self, text: str) -> Language:
        """Return the verdict of resiliparse if it is sure, with probability 1, else that of the engine."""
        code = self._sure_code(text)
        return Language(code, 1.0, RESILIPARSE) if code else self.engine.detect(text)

    def _sure_code(self, text: str) -> str | None:
        text = first_characters(text)
        nearest = nearest_two(text) if len(text) >= LEAST_CHARS else []
        if len(nearest) < 2:
            return None
        (code, distance), (_, second) = nearest
        if code not in self._sure or distance > FARTHEST or second - distance < LEAD_OF_OTHERS:
            return None
        return code if second - distance >= LEAD or self._is_unwanted(text, code, distance) else None

    def _is_unwanted(self, text: str, code: str, distance: int) -> bool:
        if not self._wanted or code in self._wanted:
            return False
        return nearest_of(text, self._wanted) - distance >= FAR
