"""What langdetect reads: the library's substitutions, only as far as its 10,000 characters need."""

import re
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.languages.langdetect_text import MAX_CHARS, first_characters, readable_characters
from tests.dataprep.languages.library import library_detector

PIECES = [
    *(
        "word ",
        "\n",
        " ",
        "é ",
        "http://a.test/b?c=d#e ",
        "https://" + "x" * 3000,
        "you@mill.test ",
        "@orta ",
        "a@b@cc ",
    ),
    *(
        "e\u0301",
        "O\u0302\u0301 ",
        "ơ\u0323",
        "\u0301",
        "a" * 70 + "@bb.cc ",
        "http://x/@y.zz ",
        "\ud800",
        "漢字",
        "-_." * 9,
    ),
]


def collapsed(text: str) -> str:
    return re.sub(" +", " ", text)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), st.integers(1, 100))
def test_the_first_characters_are_those_that_the_library_keeps(text: str, times: int) -> None:
    whole = text * times
    assert collapsed(first_characters(whole)) == library_detector(whole).text


def test_what_does_not_fit_is_cut_after_the_substitutions() -> None:
    text = "http://a.test/" + "b" * 1500 + " word" * 3000
    assert len(first_characters(text)) == MAX_CHARS
    assert collapsed(first_characters(text)) == library_detector(text).text
    text = ("http://a.test/" + "b" * 1990 + " ") * 300 + "word " * 9000
    assert collapsed(first_characters(text)) == library_detector(text).text


def test_only_characters_that_outweigh_latin_letters_two_to_one_drop_them() -> None:
    for text in ("abc αβγδεζ", "abc αβγδεζη", "ab[c αβγδεζηθικ", "abc ếềểễệẹẽ"):
        detector = library_detector(text)
        detector.cleaning_text()
        kept = "".join(map(chr, readable_characters(text).tolist()))
        assert collapsed(kept) == collapsed(detector.text)


def test_a_million_letters_before_an_at_sign_are_no_trouble() -> None:
    text = "a" * 1_000_000 + "@" + "b" * 1_000_000 + "@x"
    started = time.process_time()
    first_characters(text)
    assert time.process_time() - started < 1
