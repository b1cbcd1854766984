"""Langdetect by its own classes: what our evaluation must equal."""

from pathlib import Path

from langdetect.detector import Detector
from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
from langdetect.lang_detect_exception import LangDetectException

_FACTORY = DetectorFactory()


def library_detector(text: str, seed: int = 0) -> Detector:
    """A detector of the library with the text appended; profiles in order of name."""
    if not _FACTORY.langlist:
        files = sorted(Path(PROFILES_DIRECTORY).iterdir(), key=lambda file: file.name)
        _FACTORY.load_json_profile([file.read_text("utf-8") for file in files])
    _FACTORY.seed = seed
    detector = _FACTORY.create()
    detector.append(text)
    return detector


def library_verdict(text: str, seed: int = 0) -> tuple[str, float] | None:
    """Its first language and probability; None where it raises or has none."""
    try:
        best = library_detector(text, seed).get_probabilities()
    except LangDetectException:  # "No features in text."
        return None
    return (best[0].lang, best[0].prob) if best else None
