"""FineWeb's rules: each value as counted by hand."""

import pytest

from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.fineweb import RULES

BY_NAME = {rule.name.removeprefix("fineweb_"): rule for rule in RULES}
LONG = "This line of the text is longer than thirty characters"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("min_punctuated_lines", "A line.\n\nNone\nOne?\nspace after. \n水車。\nपानी।", 4 / 6),
        ("min_punctuated_lines", "one\rtwo.", 1.0),
        ("max_short_lines", f"{LONG}\n{'x' * 30}\n{'x' * 31}\n \n", 1 / 3),
        ("max_duplicate_line_characters", "abc\nx\nabc\n\n", 3 / 7),
        ("max_line_feeds_per_word", "a b\nc, d\n", 2 / 5),
        ("max_line_feeds_per_word", "\n\n", 0),
    ],
)
def test_values_are_those_counted_by_hand(name: str, text: str, expected: float) -> None:
    assert BY_NAME[name].measure(DocumentText(text)) == pytest.approx(expected)


def test_the_text_is_judged_after_lines_are_taken_out() -> None:
    assert BY_NAME["max_short_lines"].measure(DocumentText(LONG, uncut=f"{LONG}\nshort")) == 0
