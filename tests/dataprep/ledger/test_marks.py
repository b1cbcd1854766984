"""What is marked in an example: what the rule counts, and in duplicates what only one of the two has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.clean.rules.table import ORDER
from dataprep.ledger.marks import CHARACTERS, Pieces, excerpt, in_url, merged, side_by_side, spans_of


def marked(pieces: Pieces, kind: str = "mark") -> list[str]:
    return [text for each, text in pieces if each == kind]


@pytest.mark.parametrize(
    ("rule", "text", "found"),
    [
        ("c4_max_curly_brackets", "a { b } c", ["{"]),
        ("c4_max_lorem_ipsum", "A Lorem ipsum dolor", ["Lorem ipsum"]),
        ("gopher_max_bullet_lines", "one\n- two\n• three", ["- two", "• three"]),
        ("gopher_max_ellipsis_lines", "one...\ntwo… \nthree", ["...", "… "]),
        ("gopher_max_hash_ratio", "# a #b", ["#", "#"]),
        ("gopher_max_duplicate_lines", "same\nother\nsame\nsame", ["same", "same"]),
        ("gopher_max_duplicate_5_grams", "a b c d e. A B C D E. x", []),
        ("gopher_max_duplicate_5_grams", "a b c d e x a b c d e", ["a b c d e ", "a b c d e"]),
        ("gopher_max_top_2_gram", "the cat the cat a dog", ["the cat the cat"]),
        ("fineweb_min_punctuated_lines", "Menu\nA sentence.\nHome", ["Menu", "Home"]),
        ("fineweb_max_short_lines", f"short\n{'x' * 40}", ["short"]),
        ("too_few_tokens", "any text", []),
        ("language", "Irgendein Text", []),
    ],
)
def test_what_a_rule_counts_is_marked(rule: str, text: str, found: list[str]) -> None:
    assert [item.strip() for item in marked(excerpt(text, spans_of(rule, text)))] == [item.strip() for item in found]


@given(st.sampled_from(ORDER), st.text(max_size=300))
def test_an_excerpt_is_the_text_itself_whatever_the_rule_marks(rule: str, text: str) -> None:
    pieces = excerpt(text, spans_of(rule, text))
    assert "".join(shown for kind, shown in pieces if kind != "gap") == text


def test_a_long_text_is_shown_from_just_before_its_first_mark() -> None:
    text = "a" * 2000 + "{" + "b" * 2000
    pieces = excerpt(text, spans_of("c4_max_curly_brackets", text))
    assert marked(pieces) == ["{"]
    assert len("".join(shown for kind, shown in pieces if kind != "gap")) == CHARACTERS
    assert marked(pieces, "gap") == ["1,880 characters", "1,521 characters"]


def test_an_excerpt_neither_begins_nor_ends_within_a_word() -> None:
    text = "windmill " * 100 + "{ " + "waterwheel " * 100
    pieces = excerpt(text, spans_of("c4_max_curly_brackets", text))
    words = "".join(shown for kind, shown in pieces if kind != "gap").split()
    assert set(words) == {"windmill", "{", "waterwheel"}


def test_spans_that_overlap_are_marked_once() -> None:
    assert merged([(5, 9), (1, 3), (2, 6), (20, 20)]) == [(1, 9)]


def test_what_a_rule_saw_in_a_url_is_marked_there() -> None:
    assert marked(in_url("http://x.test/plans.7z", ".7z (archives)")) == [".7z"]
    assert marked(in_url("http://x.test/Tree.JPG?size=1", ".jpg (images)")) == [".JPG"]
    assert marked(in_url("http://x.test/410", "410")) == []
    assert marked(in_url("http://x.test/of", "of http://x.test/of?")) == []


def test_differences_are_marked_on_their_side_and_what_both_share_is_shortened() -> None:
    shared = [f"w{i}" for i in range(100)]
    left, right = side_by_side(" ".join([*shared, "left", *shared]), " ".join([*shared, *shared, "right"]))
    assert [item.strip() for item in marked(left, "only")] == ["left"]
    assert [item.strip() for item in marked(right, "only")] == ["right"]
    assert marked(left, "gap") == marked(right, "gap") == ["88 words the same", "76 words the same"]


def test_equal_texts_have_no_difference() -> None:
    left, right = side_by_side("one two three", "one two three")
    assert left == right == [("", "one two three")]


@given(st.text(max_size=200), st.text(max_size=200))
def test_comparing_never_invents_a_word(left: str, right: str) -> None:
    for pieces, text in zip(side_by_side(left, right), (left, right), strict=True):
        assert all(shown in text for kind, shown in pieces if kind != "gap")
