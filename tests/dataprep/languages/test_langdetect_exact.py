"""Exact mode: languages and probabilities are those of the library's own detector, bit for bit."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.languages.langdetect_exact import most_probable
from tests.dataprep.languages.library import DATA, guide_texts, library_verdict

ROOT = Path(__file__).parents[3]
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


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=60).map("".join) | st.text(max_size=80), st.integers(0, 3))
def test_the_verdict_equals_the_librarys_on_mixed_scripts_addresses_and_marks(text: str, seed: int) -> None:
    assert most_probable(text, seed) == library_verdict(text, seed)


def test_the_verdict_equals_the_librarys_on_real_texts_in_many_languages() -> None:
    generator = random.Random(1)
    languages: set[str] = set()
    for text in guide_texts()[::3]:
        start, size = generator.randrange(len(text)), generator.choice([40, 300, 2000, 20_000])
        piece, seed = text[start : start + size], generator.choice([0, 1, 2**40])
        expected = library_verdict(piece, seed)
        assert most_probable(piece, seed) == expected
        languages.add(expected[0] if expected else "und")
    assert len(languages) > 20


def test_the_verdict_equals_the_librarys_where_two_languages_take_turns() -> None:
    texts = guide_texts()
    generator = random.Random(2)
    for _ in range(25):
        sides = [text[2000:4000].split(" ") for text in generator.sample(texts, 2)]
        mixed = " ".join(word for pair in zip(*sides, strict=False) for word in pair)
        assert most_probable(mixed, 0) == library_verdict(mixed)
        assert most_probable(mixed.upper(), 0) == library_verdict(mixed.upper())


def test_the_verdict_equals_the_librarys_on_text_gone_wrong() -> None:
    files = sorted((DATA / "encodings").glob("*"))
    if not files:
        pytest.skip("needs ../shared/data/encodings")
    for file in files:
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
    load = "from dataprep.languages.langdetect_exact import most_probable as m"
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


def test_a_line_of_twenty_million_characters_takes_no_longer_than_a_page() -> None:
    import time

    most_probable("warm up", 0)
    line = "the river turns the wheel of the mill " * 500_000
    started = time.process_time()
    verdict = most_probable(line, 0)
    assert time.process_time() - started < 0.2
    assert verdict == library_verdict(line[:50_000])
