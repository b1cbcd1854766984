"""Lingua, where the extra is installed."""

import importlib.util

import pytest

from dataprep.languages.detection import known_languages, make_detector
from pipelines.errors import ConfigError

INSTALLED = importlib.util.find_spec("lingua") is not None
needs_lingua = pytest.mark.skipif(not INSTALLED, reason='needs pip install "millrace[lingua]"')


@needs_lingua
def test_short_texts_are_told_and_the_codes_are_iso_639_1() -> None:
    detector = make_detector(engine="lingua", mode="exact")
    texts = ("Der Fluss dreht das Rad der Mühle.", "The river turns the wheel.", "La rivière tourne la roue.")
    assert [detector.detect(text).code for text in texts] == ["de", "en", "fr"]
    assert {"de", "en", "zh"} <= set(known_languages("lingua"))


@needs_lingua
def test_probabilities_are_the_same_every_time() -> None:
    detector = make_detector(engine="lingua", mode="exact")
    assert len({detector.detect("the miller\nlives here") for _ in range(50)}) == 1


@needs_lingua
def test_texts_without_letters_are_undetermined() -> None:
    detector = make_detector(engine="lingua", mode="exact")
    for text in ("", "12345", "\x00", "\ud800", "😀"):
        assert (detector.detect(text).code, detector.detect(text).probability) == ("und", 0.0)


@pytest.mark.skipif(INSTALLED, reason="the extra lingua is installed")
def test_without_the_extra_the_command_is_named() -> None:
    with pytest.raises(ConfigError, match=r'pip install "millrace\[lingua\]"'):
        make_detector(engine="lingua", mode="exact")
