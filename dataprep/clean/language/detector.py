"""The choice of a language detector: an engine, and a mode that decides which texts the engine reads.

Engines: `langdetect` (the default), `resiliparse`, `fasttext` (with the path of a model file) and `lingua`; the last
two need an extra. Modes, for every engine: `exact` reads the whole text, `prefilter` leaves the very sure cases to
resiliparse. Verdicts depend on the text alone.
"""

from pathlib import Path

from dataprep.clean.language.language import Detector, Engine
from pipelines.errors import ConfigError, did_you_mean

ENGINES = ("langdetect", "resiliparse", "fasttext", "lingua")
MODES = ("exact", "prefilter")


def make_detector(
    *, engine: str, mode: str, model: Path | None = None, seed: int = 0, languages: tuple[str, ...] = ()
) -> Detector:
    """Return the detector for `engine` and `mode`; `languages` are the wanted ones, none if all are.

    Raises ConfigError for an unknown engine or mode, a missing extra or a missing model file, and UserError for a file
    that is not a model.
    """
    if mode not in MODES:
        raise ConfigError(
            f"language_mode: expected one of {', '.join(MODES)}, got {mode!r}.{did_you_mean(mode, MODES)}"
        )
    detector = _engine(engine, model, seed)
    if mode == "prefilter":
        from dataprep.clean.language.shortcuts import Prefilter

        return Prefilter(detector, languages)
    return detector


def known_languages(engine: str, model: Path | None = None) -> list[str]:
    """Return the codes that an engine can give, sorted; raises the errors of `make_detector`."""
    return _engine(engine, model, seed=0).known_languages()


def _engine(name: str, model: Path | None, seed: int) -> Engine:
    """Make an engine; the libraries are imported only here, and langdetect reads its profiles at the first text."""
    if name not in ENGINES:
        raise ConfigError(
            f"language_engine: expected one of {', '.join(ENGINES)}, got {name!r}.{did_you_mean(name, ENGINES)}"
        )
    from dataprep.clean.language import engines

    if name == "langdetect":
        return engines.LangdetectEngine(seed)
    if name == "resiliparse":
        return engines.ResiliparseEngine()
    return engines.FasttextEngine(model) if name == "fasttext" else engines.LinguaEngine()
