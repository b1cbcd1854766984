"""What telling the language of a text means: a verdict, and the protocol that every engine follows."""

from dataclasses import dataclass
from typing import Protocol

UNDETERMINED = "und"
"""The code where an engine has no answer (ISO 639-2: undetermined)."""


@dataclass(frozen=True, slots=True)
class Language:
    """The most probable language of a text."""

    code: str
    """As the engine writes it, ISO 639-1 mostly; `und` where it has no answer."""
    probability: float
    """The engine's own, 0 to 1; 1 where the prefilter decided, which only does so when it is sure."""
    engine: str
    """Who decided: langdetect, resiliparse, fasttext or lingua."""


class Detector(Protocol):
    """A way to tell languages; the verdict depends on the text alone."""

    def detect(self, text: str) -> Language:
        """The most probable language of `text`."""
        ...


class Engine(Detector, Protocol):
    """What finds languages by itself; a mode says how much of a text it reads."""

    def known_languages(self) -> list[str]:
        """The codes that it can give, sorted."""
        ...
