"""langdetect by its own classes: the library's verdict, which our evaluation must equal bit for bit.

The library loads its profiles in the order of the file system, and sums of equal numbers in another order differ in
the last bit; here the order is that of names. Its own loading takes 0.2 s of a process, most of it for n-grams that no
text asks for, so its table is filled as its detector asks.
"""

import functools
from collections.abc import Sequence
from typing import Any

from langdetect.detector import Detector
from langdetect.detector_factory import DetectorFactory
from langdetect.lang_detect_exception import LangDetectException

from dataprep.clean.language.langdetect_profiles import read_profiles


class NgramTable(dict[str, Sequence[float]]):
    """`DetectorFactory.word_lang_prob_map` as `add_profile` fills it: n-gram -> its share in each language."""

    def __init__(self, profiles: Sequence[dict[str, Any]]) -> None:
        super().__init__(dict.fromkeys((ngram for profile in profiles for ngram in profile["freq"]), ()))
        self._profiles = profiles

    def __getitem__(self, ngram: str) -> Sequence[float]:
        shares = super().__getitem__(ngram)
        if not shares:
            length = len(ngram) - 1
            shares = [profile["freq"].get(ngram, 0) / profile["n_words"][length] for profile in self._profiles]
            self[ngram] = shares
        return shares


@functools.cache
def _factory() -> DetectorFactory:
    factory = DetectorFactory()
    factory.langlist = [profile["name"] for profile in read_profiles()]
    factory.word_lang_prob_map = NgramTable(read_profiles())
    return factory


def library_detector(text: str, seed: int = 0) -> Detector:
    """Return a detector of the library with the text appended."""
    detector = _factory().create()
    detector.seed = seed
    detector.append(text)
    return detector


def library_verdict(text: str, seed: int = 0) -> tuple[str, float] | None:
    """Return the library's first language and its probability; None if it raises or has none."""
    try:
        best = library_detector(text, seed).get_probabilities()
    except LangDetectException:  # "No features in text."
        return None
    return (best[0].lang, best[0].prob) if best else None
