"""Telling languages: `make_detector` gives the engine and the mode that a stage asks for.

Engines: `langdetect` (the default), `resiliparse`, `fasttext` (a model file by path) and `lingua`, the last two
by extra. Modes, of any engine: `exact` reads the whole text, `sampled` three windows of it, `prefilter`
leaves the extremely sure cases to resiliparse. Verdicts depend on the text alone.
"""

from pathlib import Path

from dataprep.languages.audit import is_audited
from dataprep.languages.language import UNDETERMINED, Detector, Engine, Language
from pipelines.errors import ConfigError, did_you_mean

__all__ = ["UNDETERMINED", "Detector", "Engine", "Language", "is_audited", "known_languages", "make_detector"]

ENGINES = ("langdetect", "resiliparse", "fasttext", "lingua")
MODES = ("exact", "sampled", "prefilter")


def make_detector(
    *, engine: str, mode: str, model: Path | None = None, seed: int = 0, languages: tuple[str, ...] = ()
) -> Detector:
    """The detector for `engine` and `mode`; `languages` are those wanted, none when all are.

    Raises ConfigError for a name that is none, an extra that is missing or an engine without its model, and
    UserError for a model that is none.
    """
    if mode not in MODES:
        raise ConfigError(
            f"language_mode: expected one of {', '.join(MODES)}, got {mode!r}.{did_you_mean(mode, MODES)}"
        )
    found = _engine(engine, model, seed)
    if mode == "sampled":
        from dataprep.languages.windows import SampledDetector

        return SampledDetector(found)
    if mode == "prefilter":
        from dataprep.languages.prefilter import Prefilter

        return Prefilter(found, languages)
    return found


def known_languages(engine: str, model: Path | None = None) -> list[str]:
    """The codes that an engine can give, sorted; raises as `make_detector`."""
    return _engine(engine, model, seed=0).known_languages()


def _engine(name: str, model: Path | None, seed: int) -> Engine:
    """Engines are imported only when they are asked for, and langdetect reads its profiles only for a text."""
    if name == "langdetect":
        from dataprep.languages.langdetect_engine import LangdetectDetector

        return LangdetectDetector(seed)
    if name == "resiliparse":
        from dataprep.languages.resiliparse_engine import ResiliparseDetector

        return ResiliparseDetector()
    if name == "fasttext":
        from dataprep.languages.fasttext_engine import FasttextDetector

        return FasttextDetector(model)
    if name == "lingua":
        from dataprep.languages.lingua_engine import LinguaDetector

        return LinguaDetector()
    raise ConfigError(
        f"language_engine: expected one of {', '.join(ENGINES)}, got {name!r}.{did_you_mean(name, ENGINES)}"
    )
