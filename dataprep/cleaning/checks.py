"""The rules of `clean` with their thresholds, in the order applied: cheap first, languages last.

A check says why it rejects a document, from its text or from the columns that `annotate` made of it. Each value is
shown alike in both cases, so that a run from annotations gives the rows of a direct one; only the text of a rejected
row is then the edited one, which is all that annotations hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dataprep.cleaning.config import CleanConfig
from dataprep.cleaning.document_text import DocumentText
from dataprep.cleaning.rules import Rule, Threshold, Value, check, judge
from dataprep.cleaning.table import (
    LANGUAGE,
    LANGUAGE_PROBABILITY,
    ORDER,
    TOO_FEW_TOKENS,
    all_rules,
    threshold_of,
)
from dataprep.cleaning.token_floor import PRE_TOKENS, TokenFloor
from dataprep.languages.detection import Language
from pipelines.config import given

COMPAT_CHARACTERS = 8
"""Megatron counts the tokens only of texts below so many characters per token of the floor (cleanup_dataset.py)."""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule with its threshold."""

    name: str
    threshold: str
    """As people read it, such as `at least 128`; empty where the rule is off."""
    fields: tuple[pa.Field, ...]
    """The columns that `annotate` makes."""
    rejects: Callable[[DocumentText], str | None]
    """The value for which a document is rejected; None when it passes."""
    columns: Callable[[DocumentText], dict[str, Any]]
    """What the rule measures, whole, whatever the threshold."""
    rejects_row: Callable[[Mapping[str, Any]], str | None]
    """The same as `rejects`, from columns."""


def make_checks(config: CleanConfig, floor: TokenFloor) -> list[Check]:
    """Every rule there is, in the order applied; those that are off have no threshold."""
    rules = all_rules(bad_words=given(config.bad_words))
    checks = [
        *(_rule_check(rule, threshold_of(config, rule.name)) for rule in rules),
        _token_check(floor, config.min_tokens, _unit(config), compat=config.compat),
        _language_check(config.languages),
        _language_probability_check(config.min_language_probability),
    ]
    order = ORDER
    if config.compat:  # Megatron asks for the language first and counts tokens last, so its reasons are told so too
        order = (*(name for name in order if name != TOO_FEW_TOKENS), TOO_FEW_TOKENS)
    return sorted(checks, key=lambda each: order.index(each.name))


def _rule_check(rule: Rule, threshold: Threshold | None) -> Check:
    """A rule of the families."""
    column = f"rule_{rule.name}"

    def limit() -> Threshold:
        assert threshold is not None, "a rule that is off rejects nothing"
        return threshold

    def rejects(document: DocumentText) -> str | None:
        verdict = check(rule, document, limit())
        return shown(verdict.value) if verdict.reason else None

    def rejects_row(row: Mapping[str, Any]) -> str | None:
        verdict = judge(rule, row[column], limit())
        return shown(verdict.value) if verdict.reason else None

    text = "" if threshold is None else f"{rule.keeps.replace('_', ' ')} {shown(threshold)}"
    field = pa.field(column, pa.float64())
    return Check(rule.name, text, (field,), rejects, lambda document: {column: rule.measure(document)}, rejects_row)


def _unit(config: CleanConfig) -> str:
    """What the token floor counts, where it is not tokens."""
    return "" if given(config.tokenizer) else f" {PRE_TOKENS}"


def _token_check(floor: TokenFloor, minimum: int, unit: str, *, compat: bool) -> Check:
    """`too_few_tokens`: the token floor, with our count or as Megatron has it."""
    column = f"rule_{TOO_FEW_TOKENS}"

    def rejects_as_megatron(text: str, count: Callable[[], int]) -> str | None:
        if len(text) >= COMPAT_CHARACTERS * minimum:
            return None
        tokens = count() + 1  # end-of-text
        return str(tokens) if tokens < minimum else None

    def rejects(document: DocumentText) -> str | None:
        if compat:
            return rejects_as_megatron(document.text, lambda: floor.count(document.text))
        tokens = floor.shortfall(document.text, minimum)
        return None if tokens is None else f"{tokens}{unit}"

    def rejects_row(row: Mapping[str, Any]) -> str | None:
        tokens: int = row[column]
        if compat:
            return rejects_as_megatron(row["text"], lambda: tokens)
        return f"{tokens}{unit}" if tokens < minimum else None

    text = f"at least {minimum}{unit}" if minimum else ""
    field = pa.field(column, pa.int64())
    return Check(
        TOO_FEW_TOKENS, text, (field,), rejects, lambda document: {column: floor.count(document.text)}, rejects_row
    )


def _language_check(languages: tuple[str, ...]) -> Check:
    """`language`: the most probable language is one of those wanted."""

    def judged(found: Language) -> str | None:
        return None if found.code in languages else _said(found)

    text = f"one of {', '.join(languages)}" if languages else ""
    return Check(
        LANGUAGE,
        text,
        (
            pa.field("language", pa.string()),
            pa.field("language_probability", pa.float64()),
            pa.field("language_engine", pa.string()),
        ),
        lambda document: judged(_found(document)),
        _language_columns,
        lambda row: judged(_of_row(row)),
    )


def _language_probability_check(minimum: float) -> Check:
    """`language_probability`: the engine is sure enough of the language."""

    def judged(found: Language) -> str | None:
        return None if found.probability >= minimum else _said(found)

    return Check(
        LANGUAGE_PROBABILITY,
        f"at least {minimum}" if minimum else "",
        (),
        lambda document: judged(_found(document)),
        lambda _: {},
        lambda row: judged(_of_row(row)),
    )


def _found(document: DocumentText) -> Language:
    assert document.language is not None, "documents come with a detector when languages are asked for"
    return document.language


def _language_columns(document: DocumentText) -> dict[str, Any]:
    found = _found(document)
    return {"language": found.code, "language_probability": found.probability, "language_engine": found.engine}


def _of_row(row: Mapping[str, Any]) -> Language:
    return Language(row["language"], row["language_probability"], row["language_engine"])


def _said(found: Language) -> str:
    return f"{found.code} {found.probability:.4f}"


def shown(value: Value) -> str:
    """A value as it stands in rejected rows: a whole number without a point, as columns hold all numbers as floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
