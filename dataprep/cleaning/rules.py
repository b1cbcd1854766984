"""What a rule of `clean` is: something measured in a text, and a threshold that the value is held to.

A rule measures, the configuration holds the thresholds, and `judge` compares: so the same values can be
kept as columns (`clean.annotate`) and compared with other thresholds later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dataprep.cleaning.document_text import DocumentText

Value = int | float | None
"""What a rule measured; None where it has nothing to say of a text, which then passes."""
Threshold = int | float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule says of a text: `reason` is the rule's name, or empty where the text passes."""

    reason: str
    value: Value


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table of rules."""

    name: str
    """The counted reason: `<family>_<field>` of the configuration, or a name of its own."""
    measure: Callable[[DocumentText], Value]
    """A pure function of the text."""
    keeps: Literal["at_least", "at_most"]
    """How the value of a good document stands to the threshold."""
    unit: str
    source: str
    """Where rule and usual threshold come from: paper, repository and file."""
    surely_passes: Callable[[DocumentText, Threshold], bool] | None = None
    """For a dear measure: a cheap test that is true only of texts that pass whatever the measure says."""


def check(rule: Rule, document: DocumentText, threshold: Threshold) -> Verdict:
    """Measure and judge, without the measure where the rule's cheap test settles it."""
    if rule.surely_passes and rule.surely_passes(document, threshold):
        return Verdict("", None)
    return judge(rule, rule.measure(document), threshold)


def judge(rule: Rule, value: Value, threshold: Threshold) -> Verdict:
    """Compare a measured value with its threshold, which itself still passes."""
    if value is None or (value >= threshold if rule.keeps == "at_least" else value <= threshold):
        return Verdict("", value)
    return Verdict(rule.name, value)
