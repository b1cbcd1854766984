"""Where sentences end, for words and for characters: one list of stops for both."""

import pytest

from dataprep.decontamination.sentences import STOPS, WIDE_STOPS, sentence_edges, sentence_ends
from dataprep.dedup.shingles import find_words
from dataprep.text.folding import fold_case, raw_texts


def test_sentences_end_at_stops_before_a_gap_and_at_line_breaks() -> None:
    words = find_words(raw_texts(['One. Two v1.5 ex.com? "Three!" four\nfive', "six"]))
    begins, ends = sentence_edges(words)
    named = [words.text(number, number + 1) for number in range(len(words.starts))]
    assert [word for word, begin in zip(named, begins, strict=True) if begin] == [
        "One",
        "Two",
        "Three",
        "four",
        "five",
        "six",
    ]
    assert [word for word, end in zip(named, ends, strict=True) if end] == [
        "One",
        "com",
        "Three",
        "four",
        "five",
        "six",
    ]


@pytest.mark.parametrize("stop", STOPS + WIDE_STOPS)
def test_each_stop_ends_a_sentence_of_words_and_of_characters_also_when_folded(stop: str) -> None:
    text = f"一{stop}{stop} 二{stop}"
    assert list(sentence_ends(text)) == [3, 6]
    begins, ends = sentence_edges(find_words(fold_case(raw_texts([text]))))
    assert begins.tolist() == ends.tolist() == [True, True]


@pytest.mark.parametrize("stop", WIDE_STOPS)
def test_stops_of_other_scripts_need_no_gap(stop: str) -> None:
    text = f"ab{stop}cd ef"
    assert list(sentence_ends(text)) == [3]
    begins, ends = sentence_edges(find_words(raw_texts([text])))
    assert begins.tolist() == [True, True, False]
    assert ends.tolist() == [True, False, True]


def test_stops_inside_numbers_and_addresses_end_nothing() -> None:
    text = "3.14 ex.com?x a!b."
    assert list(sentence_ends(text)) == [18]
    begins, _ = sentence_edges(find_words(raw_texts([text])))
    assert begins.tolist() == [True, *[False] * 6]
