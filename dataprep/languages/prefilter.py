"""Mode `prefilter`: resiliparse decides the extremely sure cases, an engine reads the rest.

resiliparse alone would lose good documents (22 of 3,000), but where one language is nearer by far than every
other it agrees with langdetect. Measured by `benchmarks/languages.py` on 37,600 real texts, pieces and mixtures in
two halves that share no document, nor a guide in two languages. First half, LEAD and FAR: the table of --choose
(wrong for English at a lead of 30, 40, 50: 5, 3, 1 of 14,985). Second half, 22,622 texts, 53 % of them decided here:
English is kept and dropped as by langdetect on the whole text in every case, and each of 27 other languages wanted
in turn in at least 99.98 %. A sure verdict has probability 1, which langdetect does not always share: for English
with a probability of at least 0.65, 0.9, 0.99 and 0.99999 they agree on 100 %, and 99.97 % thrice. No blind test:
all four thresholds were first chosen when the halves still shared documents, two of them after a look at both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dataprep.languages.langdetect_text import first_characters
from dataprep.languages.language import Engine, Language
from dataprep.languages.resiliparse_engine import NAME, ResiliparseDetector, nearest_of, nearest_two

LEAST_CHARS = 100
"""Shorter texts are read by the engine."""
FARTHEST = 600
"""Largest distance of a sure verdict: above, a text is short, repetitive or hardly language."""
LEAD = 50
"""By how much the nearest language must lead before the second to be the verdict."""
LEAD_OF_OTHERS = 20
FAR = 100
"""A text whose nearest language leads by less is no text of a wanted language, if those are as far behind."""
_LEFT_TO_ENGINE = ("ja", "ko", "zh")
"""langdetect sees one letter in all of Hangul and in each kana, so a few Latin words can outweigh them."""


@dataclass(frozen=True, slots=True)
class Prefilter:
    """Sure verdicts on texts of languages that both resiliparse and an engine know."""

    engine: Engine
    languages: Sequence[str]
    """Those wanted, as the engine writes them; none when all are."""
    _sure: frozenset[str] = field(init=False)
    _wanted: list[str] = field(init=False)

    def __post_init__(self) -> None:
        known = set(ResiliparseDetector().known_languages())
        sure = known & set(self.engine.known_languages()) - set(_LEFT_TO_ENGINE)
        object.__setattr__(self, "_sure", frozenset(sure))
        names = [code.partition("-")[0] for code in self.languages]  # zh-cn is zh
        object.__setattr__(self, "_wanted", names if known.issuperset(names) else [])

    def detect(self, text: str) -> Language:
        """The verdict of resiliparse if sure, with probability 1, else the engine's."""
        code = self._sure_code(text)
        return Language(code, 1.0, NAME) if code else self.engine.detect(text)

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
