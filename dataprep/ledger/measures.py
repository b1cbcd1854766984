"""What the rules of `clean` measure in kept documents, beside what they measured in those that they rejected.

The rules measure kept documents once more, a sample of them, since `clean` writes down no value of a document that
passes: where a threshold lies among the values shows only with both.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.table import TOO_FEW_TOKENS, all_rules
from dataprep.clean.token_floor import PRE_TOKENS, count_pre_tokens

BINS = 24
Array = np.ndarray[Any, Any]
Measured = dict[str, tuple[str, Array]]
"""A rule -> its unit, and its values."""


def measure(texts: Sequence[str]) -> Measured:
    """Return what each rule measures in these texts; rules that do not apply to any are left out."""
    documents = [DocumentText(text) for text in texts]
    measured: Measured = {TOO_FEW_TOKENS: (PRE_TOKENS, np.array([count_pre_tokens(text) for text in texts], float))}
    for rule in all_rules():
        if rule.name == "seeds_remove_512_non_english":  # its measure is a language
            continue
        values = [value for document in documents if (value := rule.measure(document)) is not None]
        measured[rule.name] = (rule.unit, np.array(values, float))
    return {name: (unit, values) for name, (unit, values) in measured.items() if len(values)}


def histograms(measured: Measured, rejected: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Return for each rule both counts in the same bins; values beyond the 1st and 99th percentiles are at the ends."""
    return [
        {"rule": name, "unit": unit, **histogram(values, rejected.get(name, np.empty(0)))}
        for name, (unit, values) in measured.items()
    ]


def histogram(kept: Array, rejected: Array) -> dict[str, Any]:
    """Return the ends of the bins, and how many values of each kind are in each."""
    ends = [np.percentile(values, (1, 99)) for values in (kept, rejected) if len(values)]
    low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = [np.histogram(np.clip(values, low, high), BINS, (low, high))[0].tolist() for values in (kept, rejected)]
    return {"low": round(low, 6), "high": round(high, 6), "kept": counts[0], "rejected": counts[1]}
