"""Sampled mode: three windows of whole words, a thousand characters in all."""

from hypothesis import given
from hypothesis import strategies as st

from dataprep.languages.detection import Language, make_detector
from dataprep.languages.windows import SAMPLED_CHARS, windows

WORDS = [f"word{number}" for number in range(2000)]


def test_a_text_of_a_thousand_characters_is_read_whole() -> None:
    text = "ab cd " * 166 + "abcd"
    assert len(text) == SAMPLED_CHARS
    assert windows(text) == text


def test_a_longer_text_is_read_at_its_begin_middle_and_end() -> None:
    words = windows(" ".join(WORDS)).split()
    assert set(words) <= set(WORDS)
    assert (words[0], words[-1]) == (WORDS[0], WORDS[-1])
    middle = [number for number in map(WORDS.index, words) if 800 < number < 1200]
    assert 30 < len(middle) < 50


@given(st.text(min_size=SAMPLED_CHARS + 1, max_size=5000) | st.text("ab \n", min_size=1001, max_size=1500))
def test_windows_are_parts_of_the_text_and_about_a_thousand_characters(text: str) -> None:
    found = windows(text)
    assert SAMPLED_CHARS - 3 * 2 * 40 - 1 <= len(found) <= SAMPLED_CHARS + 2
    assert found[:200] in text


def test_a_text_without_spaces_loses_nothing_at_the_edges() -> None:
    assert len(windows("水" * 5000)) == 3 * (SAMPLED_CHARS // 3) + 2


def test_the_engine_reads_the_windows() -> None:
    text = "The river turns the wheel of the mill. " * 10 + "Der Fluss dreht das Rad der Mühle. " * 400
    assert make_detector(engine="langdetect", mode="sampled").detect(text).code == "de"
    assert isinstance(make_detector(engine="langdetect", mode="sampled").detect(""), Language)
