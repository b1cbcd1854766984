"""Our evaluation of langdetect reads, draws and decides exactly as the library does, bit for bit."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.clean.language.langdetect import MAX_CHARS, Draws, first_characters, most_probable, readable_characters
from dataprep.clean.language.library import library_detector, library_verdict
from tests.samples import Data
from tests.work import at_most

ROOT = Path(__file__).parents[4]
WORDS = [
    *("the river ", "Der Müller ", "l'été ", "мельница ", "ΜΎΛΟΣ ", "WATER ", "Ελλάδα", "मिल ", "水車", "みず", "ミル"),
    *("물레방아 ", "الطاحونة ", "ی", "טחנה ", "โรงสี", "Việt ", "đê\u0301 ", "o\u031b\u0323", "A\u0301", "ş", "ș", "ț"),
    *(
        "http://a.b/c?d=e ",
        "https://x",
        "me@mill.test ",
        "a@b",
        "@",
        ".",
        "\n",
        "  ",
        "12",
        "😀",
        "\x00",
        "\ud800",
        "ǅ",
    ),
]


@given(st.lists(st.sampled_from(WORDS), max_size=60).map("".join) | st.text(max_size=80), st.integers(0, 3))
def test_the_verdict_equals_the_librarys_on_mixed_scripts_addresses_and_marks(text: str, seed: int) -> None:
    assert most_probable(text, seed) == library_verdict(text, seed)


def test_the_verdict_equals_the_librarys_on_texts_in_many_languages(data: Data) -> None:
    generator = random.Random(1)
    languages: set[str] = set()
    for each in data.translations()[:: 3 if data.real else 1]:
        text = each.text
        start, size = generator.randrange(len(text)), generator.choice([40, 300, 2000, 20_000])
        piece, seed = text[start : start + size], generator.choice([0, 1, 2**40])
        expected = library_verdict(piece, seed)
        assert most_probable(piece, seed) == expected
        languages.add(expected[0] if expected else "und")
    assert len(languages) > 20


def test_the_verdict_equals_the_librarys_where_two_languages_take_turns(data: Data) -> None:
    texts = [each.text for each in data.translations()]
    generator = random.Random(2)
    for _ in range(25):
        sides = [text[2000:4000].split(" ") for text in generator.sample(texts, 2)]
        mixed = " ".join(word for pair in zip(*sides, strict=False) for word in pair)
        assert most_probable(mixed, 0) == library_verdict(mixed)
        assert most_probable(mixed.upper(), 0) == library_verdict(mixed.upper())


def test_the_verdict_equals_the_librarys_on_text_gone_wrong(data: Data) -> None:
    for file in data.encodings():
        for line in file.read_text("utf-8", "replace").splitlines()[::4]:
            assert most_probable(line, 0) == library_verdict(line)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "12345 67890",
        "😀" * 50,
        "\ud800\udfff",
        "\x00" * 9,
        "a",
        "AB",
        "ABC DEF GHI",
        "é",
        "。、" * 40,
        "ᚠᚢ" * 9,
    ],
)
def test_texts_without_letters_that_it_knows_have_the_librarys_answer_too(text: str) -> None:
    assert most_probable(text, 0) == library_verdict(text)


def test_no_features_is_no_answer() -> None:
    assert most_probable("12345", 0) is None
    assert most_probable("", 0) is None


def test_a_verdict_does_not_depend_on_what_came_before() -> None:
    texts = ["Der Fluss dreht das Rad.", "The river turns the wheel.", "La rivière tourne la roue.", "ein short texte"]
    forward = [most_probable(text, 0) for text in texts]
    assert forward == [most_probable(text, 0) for text in reversed(texts)][::-1]
    assert [verdict[0] for verdict in forward[:3] if verdict] == ["de", "en", "fr"]


def test_a_verdict_is_the_same_in_another_process_and_for_another_hash_seed() -> None:
    load = "from dataprep.clean.language.langdetect import most_probable as m"
    code = f"{load}; print(m('ein short texte mit words', 0), m('мельница 水車 mill', 0))"
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    ]
    assert outputs[0] == outputs[1] != ""


def test_a_line_of_two_million_characters_takes_no_longer_than_a_page() -> None:
    most_probable("warm up", 0)
    line = "the river turns the wheel of the mill " * 50_000
    with at_most(2):
        verdict = most_probable(line, 0)
    assert verdict == library_verdict(line[:50_000])


@given(st.integers(0, 2**70), st.lists(st.integers(1, 40_000), min_size=1, max_size=6))
def test_choices_and_gauss_equal_random(seed: int, sizes: list[int]) -> None:
    expected, draws, place = random.Random(seed), Draws(seed), 0
    for size in sizes:
        assert draws.gauss_pair(place) == (expected.gauss(0.0, 1.0), expected.gauss(0.0, 1.0))
        place += 4
        chosen, places = draws.choices(place, 20, size)
        assert chosen.tolist()[:20] == [expected.choice(range(size)) for _ in range(20)]
        place = int(places[19])


def test_any_number_of_words_is_read() -> None:
    expected = random.Random(5)
    words = [expected.getrandbits(32) for _ in range(20_000)]
    assert Draws(5).words(15_000, 5_000).tolist() == words[15_000:]


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


def test_a_hundred_thousand_letters_before_an_at_sign_take_linear_time() -> None:
    text = "a" * 100_000 + "@" + "b" * 100_000 + "@x"
    with at_most(2):
        first_characters(text)
