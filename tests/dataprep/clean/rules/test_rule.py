"""A rule accepts its threshold and texts to which it does not apply; its cheap test changes no verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.clean.language.language import Language
from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.rule import Rule, Threshold, Value
from dataprep.clean.rules.table import all_rules


def rule(keeps: str) -> Rule:
    return Rule("family_field", lambda document: len(document.text), keeps, "characters", "a paper")


@pytest.mark.parametrize(
    ("keeps", "value", "threshold", "passes"),
    [
        ("at_least", 3, 3, True),
        ("at_least", 2, 3, False),
        ("at_most", 0.3, 0.3, True),
        ("at_most", 0.31, 0.3, False),
        ("at_most", None, 0, True),
    ],
)
def test_the_threshold_itself_still_passes(keeps: str, value: Value, threshold: Threshold, passes: bool) -> None:
    assert rule(keeps).accepts(value, threshold) == passes


def test_a_rule_fails_a_text_with_the_value_it_measured() -> None:
    assert rule("at_least").failing_value(DocumentText("mill"), 5) == 4
    assert rule("at_most").failing_value(DocumentText(""), -1) == 0
    assert rule("at_least").failing_value(DocumentText("mill"), 4) is None


@given(st.text(max_size=20) | st.sampled_from(["JavaScript", "no javascript here"]), st.integers(1, 25))
def test_a_cheap_test_that_lets_a_text_pass_agrees_with_the_measure(text: str, threshold: int) -> None:
    for each in all_rules():
        document = DocumentText(text, language=lambda: Language("fr", 1.0, "test"))
        fails = each.failing_value(document, threshold) is not None
        assert fails != each.accepts(each.measure(document), threshold)
