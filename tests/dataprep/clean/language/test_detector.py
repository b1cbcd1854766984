"""The choice of engine and mode: names, errors, and no library imported before it is needed."""

import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.clean.language.detector import known_languages, make_detector
from dataprep.clean.language.language import Language
from pipelines.errors import ConfigError

ROOT = Path(__file__).parents[4]
GERMAN = """Als die Familie des Müllers fortzog, glaubte im Tal niemand, dass sich das alte Rad noch einmal drehen
werde. Manche von uns gingen sonntags noch hin, sahen durch die zerbrochenen Fenster und erzählten
einander vom Mehlstaub, vom Lärm und vom warmen Brot. Dann kam in einem Frühjahr eine junge Frau, kaufte,
was von dem Haus übrig war, und begann, das Wehr mit eigenen Händen auszubessern; im Herbst wurden die
ersten Säcke auf dem Markt verkauft."""


@pytest.mark.parametrize("mode", ["exact", "prefilter"])
@pytest.mark.parametrize("engine", ["langdetect", "resiliparse"])
def test_every_mode_of_the_engines_tells_german(engine: str, mode: str) -> None:
    found = make_detector(engine=engine, mode=mode, languages=("en",)).detect(GERMAN)
    assert found.code == "de"
    assert 0 < found.probability <= 1


@pytest.mark.parametrize("mode", ["exact", "prefilter"])
@pytest.mark.parametrize("text", ["", "12345", "\x00", "\ud800", "😀" * 500, "a" * 100_000, "مرحبا hello 水"])
def test_no_text_is_too_odd(mode: str, text: str) -> None:
    for engine in ("langdetect", "resiliparse"):
        assert isinstance(make_detector(engine=engine, mode=mode).detect(text), Language)


def test_unknown_names_say_what_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"language_engine: .* got 'langdetct'. Did you mean 'langdetect'\?"):
        make_detector(engine="langdetct", mode="exact")
    with pytest.raises(ConfigError, match=r"language_mode: .* Did you mean 'prefilter'\?"):
        make_detector(engine="langdetect", mode="prefiltr")


def test_known_languages_are_the_engines_own() -> None:
    assert {"en", "zh-cn"} <= set(known_languages("langdetect"))
    assert "zh" in known_languages("resiliparse")
    assert known_languages("langdetect") == sorted(known_languages("langdetect"))


def test_the_profiles_are_read_when_the_first_text_comes_and_the_module_is_light() -> None:
    code = """
import sys
from dataprep.clean.language.detector import make_detector
assert not {"numpy", "langdetect", "resiliparse", "fasttext", "lingua"} & set(sys.modules)
detector = make_detector(engine="langdetect", mode="prefilter", languages=("en",))
from dataprep.clean.language.langdetect_profiles import load_profiles
assert load_profiles.cache_info().currsize == 0
detector.detect("too short to be sure")
assert load_profiles.cache_info().currsize == 1
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
