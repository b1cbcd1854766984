"""A rule's verdict: the threshold itself still passes, nothing to say passes, and cheap tests change no verdict."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.cleaning.document_text import DocumentText
from dataprep.cleaning.rules import Rule, Threshold, Value, Verdict, check, judge
from dataprep.cleaning.table import all_rules
from dataprep.languages.language import Language


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
    assert judge(rule(keeps), value, threshold) == Verdict("" if passes else "family_field", value)


def test_a_verdict_has_the_rule_and_the_value_it_saw() -> None:
    assert check(rule("at_least"), DocumentText("mill"), 5) == Verdict("family_field", 4)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20) | st.sampled_from(["JavaScript", "no javascript here"]), st.integers(1, 25))
def test_a_cheap_test_that_lets_a_text_pass_agrees_with_the_measure(text: str, threshold: int) -> None:
    for each in all_rules():
        document = DocumentText(text, language=lambda: Language("fr", 1.0, "test"))
        verdict = check(each, document, threshold)
        assert verdict.reason == judge(each, each.measure(document), threshold).reason
