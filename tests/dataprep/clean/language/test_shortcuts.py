"""The prefilter decides only sure cases, and decides them as mode exact does."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from dataprep.clean.language.detector import make_detector
from dataprep.clean.language.engines import LangdetectEngine, nearest_of, nearest_two
from dataprep.clean.language.language import UNDETERMINED, Language
from dataprep.clean.language.shortcuts import Prefilter
from tests.samples import Data

ENGLISH = """When the miller's family moved away, nobody in the valley believed that the wheel would ever turn again.
Some of us still went there on Sundays, looked through the broken windows and told each other what we
remembered of the flour dust, the noise and the warm bread. Then, one spring, a young woman came, bought
what was left of the building and began to repair the weir with her own hands, and by autumn the first
sacks were sold at the market."""


@dataclass
class Recorder:
    """An engine that remembers what it was asked."""

    asked: list[str] = field(default_factory=list)

    def detect(self, text: str) -> Language:
        self.asked.append(text)
        return Language(UNDETERMINED, 0.0, "recorder")

    def known_languages(self) -> list[str]:
        return LangdetectEngine(0).known_languages()


def test_a_sure_text_is_decided_without_the_engine() -> None:
    engine = Recorder()
    assert Prefilter(engine, ("en",)).detect(ENGLISH) == Language("en", 1.0, "resiliparse")
    assert not engine.asked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Short.",
        ENGLISH[:99],
        "12345 " * 100,
        "the mill " * 200,
        ENGLISH.upper(),
        "물레방아 강 " * 60,
        "水車は" * 200,
        "\ud800" * 200,
    ],
)
def test_short_repetitive_loud_and_east_asian_texts_are_left_to_the_engine(text: str) -> None:
    engine = Recorder()
    assert Prefilter(engine, ("en",)).detect(text).engine == "recorder"
    assert engine.asked == [text]


def test_a_language_that_the_engine_does_not_know_is_never_given() -> None:
    engine = Recorder()
    engine.known_languages = lambda: ["eng_Latn"]  # type: ignore[method-assign]
    assert Prefilter(engine, ("eng_Latn",)).detect(ENGLISH).engine == "recorder"


def test_neighbours_are_told_apart_by_the_engine_but_known_not_to_be_english(data: Data) -> None:
    text, code, neighbour = next(close_calls(data))
    engine = Recorder()
    assert Prefilter(engine, ("en",)).detect(text) == Language(code, 1.0, "resiliparse")
    assert Prefilter(engine, ("en", neighbour)).detect(text).engine == "recorder"
    assert Prefilter(engine, (code,)).detect(text).engine == "recorder"
    assert Prefilter(engine, ()).detect(text).engine == "recorder"


def close_calls(data: Data) -> Iterator[tuple[str, str, str]]:
    """Texts with the nearest language and the second, which lies not far behind."""
    known = LangdetectEngine(0).known_languages()
    for text in (each.text[1000:2000] for each in data.translations()):
        (code, distance), (second, further) = nearest_two(text)
        english = nearest_of(text, ["en"]) - distance
        if {code, second} <= set(known) and 25 < further - distance < 45 and english > 110 and distance < 500:
            yield text, code, second


@pytest.mark.parametrize("wanted", ["en", "de", "ru", "pt"])
def test_texts_in_many_languages_are_kept_and_dropped_as_the_exact_mode_does(data: Data, wanted: str) -> None:
    exact = make_detector(engine="langdetect", mode="exact")
    fast = make_detector(engine="langdetect", mode="prefilter", languages=(wanted,))
    chosen, starts = data.translations()[:: 4 if data.real else 1], (500, 4000 if data.real else 3000)
    texts = [each.text[start : start + 700] for each in chosen for start in starts]
    decided = 0
    for text in texts:
        verdict = fast.detect(text)
        decided += verdict.engine == "resiliparse"
        found = exact.detect(text)
        assert (verdict.code == wanted) == (found.code == wanted)
        if verdict.engine == "resiliparse" and verdict.code == wanted:
            assert found.probability >= 0.99
    assert decided > len(texts) / 3
