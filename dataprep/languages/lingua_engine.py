"""Engine `lingua`: pemistahl's lingua, strong on short texts, 75 languages.

Needs the extra: pip install "millrace[lingua]" (the package lingua-language-detector, 100 to 170 MB). Its
models are read when a text first needs them.
"""

import importlib
from typing import Any

from dataprep.languages.language import UNDETERMINED, Language
from pipelines.errors import ConfigError

NAME = "lingua"
_DIGITS = 4


class LinguaDetector:
    """All of lingua's languages, at its high accuracy."""

    def __init__(self) -> None:
        self._detector = _lingua().LanguageDetectorBuilder.from_all_languages().build()

    def detect(self, text: str) -> Language:
        """The language of the highest confidence, of equal ones the first by code; `und` when all are 0.

        lingua adds up in an order of the moment, so the last of its 16 digits vary: four are kept.
        """
        text = text.encode("utf-8", "replace").decode()
        values = self._detector.compute_language_confidence_values(text)
        rounded = [(round(value.value, _DIGITS), value.language) for value in values]
        best = max(confidence for confidence, _ in rounded)
        if not best:
            return Language(UNDETERMINED, 0.0, NAME)
        return Language(min(_code(language) for confidence, language in rounded if confidence == best), best, NAME)

    def known_languages(self) -> list[str]:
        """The ISO 639-1 codes of lingua's languages."""
        return sorted(_code(language) for language in _lingua().Language.all())


def _code(language: Any) -> str:
    return str(language.iso_code_639_1.name).lower()


def _lingua() -> Any:
    try:
        return importlib.import_module("lingua")
    except ImportError:
        raise ConfigError('the language engine lingua is not installed; run: pip install "millrace[lingua]"') from None
