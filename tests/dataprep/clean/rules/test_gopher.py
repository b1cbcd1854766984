"""Gopher's rules: each value as counted by hand, and each rule rejects what it is for."""

import pytest

from dataprep.clean.config import CleanConfig
from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.gopher import RULES
from dataprep.clean.rules.table import all_rules, threshold_of
from pipelines import presets

BY_NAME = {rule.name.removeprefix("gopher_"): rule for rule in RULES}
GOOD = (
    "The river has turned the wheel of this mill for three hundred years, and the miller still lives here with his "
    "family. Every morning he opens the sluice, and that is the moment when the old house begins to shake.\n"
    "Visitors who come to see it have to climb a narrow stair of oak. Below them stones as heavy as a horse grind "
    "barley, wheat and oats; above, pigeons nest between beams that no carpenter would dare to replace today.\n"
)


def value(name: str, text: str) -> object:
    return BY_NAME[name].measure(DocumentText(text))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("min_words", "One, two — three!", 3),
        ("max_words", "One, two — three!", 3),
        ("min_mean_word_length", "one three .", 4.0),
        ("max_mean_word_length", "one three .", 4.0),
        ("min_words", "mill 😀 € ° → • © . — ... ！ 。 १ । ۔ 「", 8),  # datatrove's punctuation is no word, all else is
        ("min_words", "１ 2 ２ _ ` ^ ~ ‘ ’ · ﹒", 4),
        ("min_mean_word_length", "mill 😀 — .", 5 / 2),
        ("max_hash_ratio", "# mill #", 2 / 3),
        ("max_ellipsis_ratio", "well... yes… no", 2 / 5),
        ("max_bullet_lines", "- a\n  • b\nc\n—d", 2 / 4),
        ("max_ellipsis_lines", "a...\nb… \nc", 2 / 3),
        ("min_alphabetic_words", "mill 12 b3 !", 2 / 4),
        ("min_stop_words", "the THE the of mill", 2),
        ("max_duplicate_lines", "a\nb\n\na\na", 2 / 4),
        ("max_duplicate_paragraphs", "a\nb\n\nc\n\na\nb", 1 / 3),
        ("max_duplicate_line_characters", "abc\nx\nabc", 3 / 9),
        ("max_duplicate_paragraph_characters", "abc\n\nx\n\nabc", 3 / 11),
        ("max_top_2_gram", "go on or go on", 2 * 5 / 14),
        ("max_top_3_gram", "one two three", 13 / 13),
        ("max_top_4_gram", "one two three", 0),
        ("max_duplicate_5_grams", "a b c d e f a b c d e", 5 / 21),
        ("max_duplicate_10_grams", "a b c d e f a b c d e", 0),
    ],
)
def test_values_are_those_counted_by_hand(name: str, text: str, expected: float) -> None:
    assert value(name, text) == pytest.approx(expected)


BAD = {
    "min_words": "Too short a text to be of use to anyone.",
    "max_words": "mill and river " * 40_000,
    "min_mean_word_length": "he is at it " * 20,
    "max_mean_word_length": "incomprehensibilities " * 60,
    "max_hash_ratio": "# the mill and ## of river " * 20,
    "max_ellipsis_ratio": "the mill... and… of river ... " * 20,
    "max_bullet_lines": "- the mill and the river\n" * 20,
    "max_ellipsis_lines": "the mill and the river ...\n" * 20,
    "min_alphabetic_words": "the mill and 12 34 56 " * 20,
    "min_stop_words": "El río mueve la rueda de este molino desde hace siglos. " * 20,
    "max_duplicate_lines": "a\n" * 10 + GOOD,
    "max_duplicate_paragraphs": "a\n\n" * 10 + GOOD,
    "max_duplicate_line_characters": GOOD * 3,
    "max_duplicate_paragraph_characters": (GOOD + "\n\n") * 3,
    "max_top_2_gram": "old mill " * 30 + GOOD,
    "max_top_3_gram": "by old mill " * 30 + GOOD,
    "max_top_4_gram": "by an old mill " * 30 + GOOD,
    **{f"max_duplicate_{n}_grams": GOOD.replace("\n", " ") * 2 for n in range(5, 11)},
}


@pytest.mark.parametrize("name", BY_NAME)
def test_each_rule_of_the_preset_keeps_the_good_text_and_rejects_its_bad_one(name: str) -> None:
    rule = BY_NAME[name]
    threshold = threshold_of(presets.load(CleanConfig, "clean", "gopher"), rule.name)
    assert threshold is not None
    assert rule.failing_value(DocumentText(GOOD), threshold) is None
    assert rule.failing_value(DocumentText(BAD[name]), threshold) is not None


def test_texts_are_judged_before_lines_are_taken_out() -> None:
    cut = DocumentText("nothing", uncut=GOOD)
    assert [rule.measure(cut) for rule in RULES] == [rule.measure(DocumentText(GOOD)) for rule in RULES]


def test_repetition_beyond_the_head_of_a_text_is_not_looked_for() -> None:
    head = "".join(f"line {number}\n" for number in range(120_000))
    document = DocumentText(head + "the same again\n" * 100_000)
    assert BY_NAME["max_duplicate_lines"].measure(document) == 0
    assert BY_NAME["max_words"].measure(document) == 540_000
    assert len(all_rules()) > len(RULES)
