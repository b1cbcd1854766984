"""The engines that detect languages: langdetect, resiliparse, fasttext and lingua."""

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from resiliparse.parse.lang import (  # pyright: ignore[reportMissingModuleSource]
    detect_fast,
    supported_langs,
)

from dataprep.clean.language.langdetect import most_probable
from dataprep.clean.language.langdetect_profiles import profile_files
from dataprep.clean.language.language import UNDETERMINED, Language
from pipelines.errors import ConfigError, UserError

LANGDETECT, RESILIPARSE, FASTTEXT, LINGUA = "langdetect", "resiliparse", "fasttext", "lingua"
_FARTHEST = 1000
"""Largest distance that resiliparse gives as an answer."""
_ANY_DISTANCE = 1 << 30
_LABEL = "__label__"
_DIGITS = 4
"""Digits kept of lingua's confidences."""


@dataclass(frozen=True, slots=True)
class LangdetectEngine:
    """langdetect's verdict, seeded anew for each text, at a fraction of the library's cost.

    The profiles are read at the first text.
    """

    seed: int

    def detect(self, text: str) -> Language:
        """Return the verdict of the library's `Detector` with this seed; `und` with probability 0 if it has none."""
        return Language(*(most_probable(text, self.seed) or (UNDETERMINED, 0.0)), LANGDETECT)

    def known_languages(self) -> list[str]:
        """Return the codes of the installed profiles."""
        return sorted(file.name for file in profile_files())


class ResiliparseEngine:
    """resiliparse alone: some hundred times faster than langdetect, less often right on short or related texts.

    Each text becomes 256 counts of hashed n-grams, compared with those of 101 languages (`resiliparse.parse.lang`): the
    distance is about 200 to 500 for a real text of its language, and an answer from 1,000 on is "usually false".
    """

    def detect(self, text: str) -> Language:
        """Return the nearest language; its probability falls from 1 at distance 0 to 0 at distance 1,000."""
        code, distance = detect_fast(text, _FARTHEST)
        if code == "unknown":
            return Language(UNDETERMINED, 0.0, RESILIPARSE)
        return Language(code, 1 - distance / _FARTHEST, RESILIPARSE)

    def known_languages(self) -> list[str]:
        """Return the codes that resiliparse can give."""
        return sorted(supported_langs())


def nearest_two(text: str) -> list[tuple[str, int]]:
    """Return the two nearest languages by resiliparse with their distances; fewer if the text has too few features."""
    return cast(list[tuple[str, int]], detect_fast(text, _ANY_DISTANCE, 2))


def nearest_of(text: str, codes: list[str]) -> int:
    """Return the smallest distance by resiliparse to one of the languages `codes`."""
    return detect_fast(text, _ANY_DISTANCE, 1, codes)[1]


class FasttextEngine:
    """A supervised fastText model by path, such as lid.176.bin, lid.176.ftz or GlotLID.

    Needs the extra: pip install fasttext-predict. fastText: Joulin et al. 2016 (arXiv 1607.01759), read by the
    package fasttext-predict. A code is what follows `__label__` in the model's label: `en` in lid.176, `eng_Latn` in
    GlotLID. Creating the engine reads the model; it raises ConfigError without one, and UserError if the file is not a
    model.
    """

    def __init__(self, model: Path | None) -> None:
        if model is None:
            raise ConfigError("language_model: the engine fasttext needs a model file, such as lid.176.bin")
        self._model = _load_fasttext(model)

    def detect(self, text: str) -> Language:
        """Return the first label for the whole text as one line; `und` for a text of white space alone."""
        line = " ".join(text.encode("utf-8", "replace").decode().split())
        if not line:
            return Language(UNDETERMINED, 0.0, FASTTEXT)
        labels, probabilities = self._model.predict(line)
        # Its softmax is in float32 and can be a little above 1.
        return Language(labels[0].removeprefix(_LABEL), min(1.0, float(probabilities[0])), FASTTEXT)

    def known_languages(self) -> list[str]:
        """Return the codes of all labels of the model."""
        labels, _ = self._model.predict(" ", k=-1, threshold=-1.0)
        return sorted(label.removeprefix(_LABEL) for label in labels)


def _load_fasttext(model: Path) -> Any:
    fasttext = _import_extra("fasttext")
    try:
        return fasttext.load_model(str(model))
    except (ValueError, MemoryError) as error:
        raise UserError(f"{model}: not a fastText model ({error}); lid.176.bin and lid.176.ftz are") from None


class LinguaEngine:
    """pemistahl's lingua with all its 75 languages, at its high accuracy; strong on short texts.

    Needs the extra: pip install lingua-language-detector (100 to 170 MB). Its models
    are read when a text first needs them.
    """

    def __init__(self) -> None:
        self._detector = _import_extra("lingua").LanguageDetectorBuilder.from_all_languages().build()

    def detect(self, text: str) -> Language:
        """Return the language of the highest confidence, the first by code among equal ones; `und` if all are 0.

        lingua's order of summation varies, and with it the last of its 16 digits: four are kept.
        """
        text = text.encode("utf-8", "replace").decode()
        values = self._detector.compute_language_confidence_values(text)
        rounded = [(round(value.value, _DIGITS), value.language) for value in values]
        best = max(confidence for confidence, _ in rounded)
        if not best:
            return Language(UNDETERMINED, 0.0, LINGUA)
        codes = (_lingua_code(language) for confidence, language in rounded if confidence == best)
        return Language(min(codes), best, LINGUA)

    def known_languages(self) -> list[str]:
        """Return the ISO 639-1 codes of lingua's languages."""
        return sorted(_lingua_code(language) for language in _import_extra("lingua").Language.all())


def _lingua_code(language: Any) -> str:
    return str(language.iso_code_639_1.name).lower()


PACKAGES = {"fasttext": "fasttext-predict", "lingua": "lingua-language-detector"}
"""Names by which pip knows the modules."""


def _import_extra(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        package = PACKAGES[name]
        raise ConfigError(f"the language engine {name} is not installed; run: pip install {package}") from None
