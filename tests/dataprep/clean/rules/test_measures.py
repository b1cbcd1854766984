"""Repeated n-grams are counted exactly as by trying all of them, fast enough for long texts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.measures import (
    Duplicates,
    RepeatedNGrams,
    duplicate_lines,
    duplicate_paragraphs,
    find_duplicates,
)
from tests.work import at_most


def top_by_counting_all(words: list[str], length: int) -> int:
    runs = [" ".join(words[i : i + length]) for i in range(len(words) - length + 1)]
    if not runs:
        return 0
    ((run, times),) = Counter(runs).most_common(1)
    return len(run) * times


def duplicates_by_walking(words: list[str], length: int) -> int:
    seen: set[tuple[str, ...]] = set()
    total = place = 0
    while place <= len(words) - length:
        run = tuple(words[place : place + length])
        if run in seen:
            total += len("".join(run))
            place += length
        else:
            seen.add(run)
            place += 1
    return total


@given(st.lists(st.sampled_from(["a", "bb", "ccc", "."]), max_size=60), st.integers(2, 10))
def test_runs_are_counted_as_by_trying_all_of_them(words: list[str], length: int) -> None:
    runs = RepeatedNGrams(words)
    assert runs.top_characters(length) == top_by_counting_all(words, length)
    assert runs.duplicate_characters(length) == duplicates_by_walking(words, length)


def test_any_length_may_be_asked_for_first() -> None:
    words = [*["the", "mill", "by", "the", "river", ","] * 2, "the"]
    assert RepeatedNGrams(words).duplicate_characters(6) == duplicates_by_walking(words, 6)
    assert duplicates_by_walking(words, 6) > 0


@pytest.mark.parametrize("words", [["a"] * 20_000, ["a", "b", "c"] * 7_000, list(map(str, range(20_000)))])
def test_tens_of_thousands_of_words_take_seconds(words: list[str]) -> None:
    with at_most(60):
        runs = RepeatedNGrams(words)
        values = [runs.top_characters(n) for n in (2, 3, 4)] + [runs.duplicate_characters(n) for n in range(5, 11)]
    assert all(values) == (len(set(words)) < 4)


def test_the_first_of_equal_pieces_is_no_duplicate() -> None:
    assert find_duplicates(["mill", "river", "mill", "mill"]) == Duplicates(4, 2, 8)
    assert find_duplicates(["mill", "river"]) == Duplicates(2, 0, 0)
    assert find_duplicates([]) == Duplicates(0, 0, 0)


def test_lines_end_at_line_feeds_and_paragraphs_at_blank_lines() -> None:
    document = DocumentText("a b\nc d\n\na b\n\n\na b\nc d\n")
    assert duplicate_lines(document) == Duplicates(5, 3, 9)
    assert duplicate_paragraphs(document) == Duplicates(3, 1, 7)
