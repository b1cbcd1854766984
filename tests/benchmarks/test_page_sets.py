"""The score of the article extraction benchmark."""

import pytest

from benchmarks.page_sets import match, match_words, mean_scores, scores


def test_shingles_of_four_words_are_counted_with_their_repetitions() -> None:
    assert match("a b c d e", "a b c d e") == (2, 0, 0)
    assert match("a b c d e", "a b c d x") == (1, 1, 1)
    assert match("a b c d a b c d", "a b c d") == (1, 0, 4)
    assert match("one, two!", "one two") == (1, 0, 0)
    assert match("a b c d", "") == (0, 0, 1)
    assert match("", "") == (0, 0, 0)


def test_f1_is_that_of_mean_precision_and_mean_recall() -> None:
    """A page without text found has no precision; evaluate.py of the benchmark does the same."""
    f1, precision, recall = scores([(2, 0, 0), (1, 1, 3), (0, 0, 1)])
    assert precision == pytest.approx(0.75)
    assert recall == pytest.approx((1 + 0.25 + 0) / 3)
    assert f1 == pytest.approx(2 * precision * recall / (precision + recall))


def test_words_are_counted_in_lower_case_and_f1_is_the_mean_of_the_pages() -> None:
    """As evaluate.py of the Web Content Extraction Benchmark: a page without a text found has an F1 of 0."""
    assert match_words("The mill, the MILL", "the mill turns") == (2, 1, 2)
    f1, precision, recall = mean_scores([(2, 1, 2), (0, 0, 1)])
    assert f1 == pytest.approx(0.5 * 2 * 2 / 7)
    assert (precision, recall) == (pytest.approx(1 / 3), pytest.approx(1 / 4))
