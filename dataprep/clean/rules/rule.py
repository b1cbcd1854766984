"""What a rule of `clean` is: something measured in a text, compared with a threshold.

Measuring and comparing are separate, so that values can be kept as columns (`clean.annotate`) and compared with other
thresholds later.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dataprep.clean.rules.document import DocumentText

Value = int | float | None
"""What a rule measured; None where the rule does not apply to a text, which then passes."""
Threshold = int | float


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table of rules."""

    name: str
    """The counted reason, `<family>_<field>` of the configuration."""
    measure: Callable[[DocumentText], Value]
    """A pure function of the text."""
    keeps: Literal["at_least", "at_most"]
    """How the value of a good document compares with the threshold."""
    unit: str
    source: str
    """Where the rule and its usual threshold come from: paper, repository and file."""
    passes_cheaply: Callable[[DocumentText, Threshold], bool] | None = None
    """For an expensive measure: a cheap test that is true only of texts that pass whatever the measure says."""

    def failing_value(self, document: DocumentText, threshold: Threshold) -> Value:
        """Return the value for which a document fails; None if it passes, unmeasured where the cheap test is true."""
        if self.passes_cheaply and self.passes_cheaply(document, threshold):
            return None
        value = self.measure(document)
        return None if self.accepts(value, threshold) else value

    def accepts(self, value: Value, threshold: Threshold) -> bool:
        """Return whether a measured value passes; one equal to the threshold does."""
        return value is None or (value >= threshold if self.keeps == "at_least" else value <= threshold)
