"""The table of rules: all of them with their thresholds, cheap ones first; the first that fails is the reason.

A check says why it rejects a document, from its text or from the columns that `annotate` made of it. Both show a value
in the same way, so a run from annotations gives the same rows as a direct run, except that the text of a rejected row
is then the edited one, the only one that annotations hold.

Costs for a document of OpenWebText (4.6 kB) on one busy core, by benchmarks/rules.py: lengths and strings 2 to 40 us,
lines 20 to 30 us, 400 bad words 210 us, words 700 to 1,200 us for the first rule that needs them, sentences 430 us,
n-grams 680 us in all; langdetect takes some milliseconds.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dataprep.clean.config import CleanConfig
from dataprep.clean.language.language import Language
from dataprep.clean.rules import c4, fineweb, gopher, megatron
from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.own import OwnRule, own_rules
from dataprep.clean.rules.rule import Rule, Threshold, Value
from dataprep.clean.token_floor import PRE_TOKENS, TokenFloor
from dataprep.quality.model import QualityModel
from pipelines.config import given

TOO_FEW_TOKENS = "too_few_tokens"
LANGUAGE = "language"
LANGUAGE_PROBABILITY = "language_probability"
QUALITY = "quality"
ORDER = (
    "seeds_remove_512",
    "seeds_remove_256_javascript",
    "c4_max_curly_brackets",
    "c4_max_lorem_ipsum",
    TOO_FEW_TOKENS,
    "fineweb_min_punctuated_lines",
    "fineweb_max_short_lines",
    "fineweb_max_duplicate_line_characters",
    "gopher_max_bullet_lines",
    "gopher_max_ellipsis_lines",
    "gopher_max_duplicate_lines",
    "gopher_max_duplicate_line_characters",
    "gopher_max_duplicate_paragraphs",
    "gopher_max_duplicate_paragraph_characters",
    "c4_max_bad_words",
    "gopher_min_words",
    "gopher_max_words",
    "gopher_min_mean_word_length",
    "gopher_max_mean_word_length",
    "gopher_max_hash_ratio",
    "gopher_max_ellipsis_ratio",
    "gopher_min_alphabetic_words",
    "gopher_min_stop_words",
    "fineweb_max_line_feeds_per_word",
    "c4_min_sentences",
    *(f"gopher_max_top_{n}_gram" for n in (2, 3, 4)),
    *(f"gopher_max_duplicate_{n}_grams" for n in range(5, 11)),
    "seeds_remove_512_non_english",
    LANGUAGE,
    LANGUAGE_PROBABILITY,
)
"""Names in the order applied, before QUALITY, which needs a model, and the rules of the user's own."""
WORDS_SHOWN = 5
"""Words and pairs in the value of a document that is rejected for its quality."""
COMPAT_CHARACTERS = 8
"""Megatron counts tokens only in texts below this many characters per token of the floor (cleanup_dataset.py)."""


def all_rules(*, bad_words: Path | None = None) -> list[Rule]:
    """Return every rule of the families in order; c4_max_bad_words reads the file `bad_words`, or passes every text.

    The other rules in ORDER (TOO_FEW_TOKENS, LANGUAGE and LANGUAGE_PROBABILITY) need a tokenizer or a language
    detector; `make_checks` adds them.
    """
    rules = [*megatron.RULES, *gopher.RULES, *c4.RULES, c4.bad_words_rule(bad_words), *fineweb.RULES]
    return sorted(rules, key=lambda rule: ORDER.index(rule.name))


def threshold_of(config: CleanConfig, name: str) -> Threshold | None:
    """Return the threshold of a family's rule; None if the rule is off."""
    family, _, field = name.partition("_")
    return getattr(getattr(config, family), field)


class Check(ABC):
    """One rule with its threshold."""

    def __init__(self, name: str, threshold: str, *fields: pa.Field) -> None:
        self.name = name
        self.threshold = threshold
        """As shown to people, such as `at least 128`; empty if the rule is off."""
        self.fields = fields
        """The columns that `annotate` adds, also those shared with another check."""

    @abstractmethod
    def rejects(self, document: DocumentText) -> str | None:
        """Return the value for which a document is rejected; None if it passes."""

    @abstractmethod
    def columns(self, document: DocumentText) -> dict[str, Any]:
        """Return what the rule measures in the whole document, whatever the threshold."""

    @abstractmethod
    def rejects_row(self, row: Mapping[str, Any]) -> str | None:
        """Return the same as `rejects`, from columns."""


def make_checks(config: CleanConfig, floor: TokenFloor) -> list[Check]:
    """Return a check for every rule, in the order applied, also for those that are off; the user's own come last.

    The quality is measured only with a model.
    """
    rules = all_rules(bad_words=given(config.bad_words))
    wanted, minimum = config.languages, config.min_language_probability
    checks = [
        *(RuleCheck(rule, threshold_of(config, rule.name)) for rule in rules),
        TokenCheck(floor, config),
        LanguageCheck(LANGUAGE, f"one of {', '.join(wanted)}" if wanted else "", lambda each: each.code in wanted),
        LanguageCheck(
            LANGUAGE_PROBABILITY, f"at least {minimum}" if minimum else "", lambda each: each.probability >= minimum
        ),
    ]
    order = ORDER
    if config.compat:  # Megatron checks the language first and counts tokens last, which decides the reason
        order = (*(name for name in order if name != TOO_FEW_TOKENS), TOO_FEW_TOKENS)
    of_models = [QualityCheck(model, config.min_quality)] if (model := given(config.quality)) else []
    in_order = sorted(checks, key=lambda check: order.index(check.name))
    return [*in_order, *of_models, *map(OwnCheck, own_rules(config.rules))]


def active(checks: Sequence[Check]) -> list[Check]:
    """Return the checks that are on, in order."""
    return [check for check in checks if check.threshold]


class RuleCheck(Check):
    """A rule of the families."""

    def __init__(self, rule: Rule, threshold: Threshold | None) -> None:
        self._rule = rule
        self._threshold = threshold
        self._column = f"rule_{rule.name}"
        text = "" if threshold is None else f"{rule.keeps.replace('_', ' ')} {shown(threshold)}"
        super().__init__(rule.name, text, pa.field(self._column, pa.float64()))

    def rejects(self, document: DocumentText) -> str | None:
        """Measure only as much as the verdict needs."""
        value = self._rule.failing_value(document, self._limit)
        return None if value is None else shown(value)

    def columns(self, document: DocumentText) -> dict[str, Any]:
        """Return the measured value."""
        return {self._column: self._rule.measure(document)}

    def rejects_row(self, row: Mapping[str, Any]) -> str | None:
        """Compare the measured value."""
        value = row[self._column]
        return None if self._rule.accepts(value, self._limit) else shown(value)

    @property
    def _limit(self) -> Threshold:
        assert self._threshold is not None, "a rule that is off judges nothing"
        return self._threshold


class TokenCheck(Check):
    """`too_few_tokens`: the token floor, or Megatron's version of it with `compat`."""

    def __init__(self, floor: TokenFloor, config: CleanConfig) -> None:
        self._floor, self._minimum, self._compat = floor, config.min_tokens, config.compat
        self._unit = "" if given(config.tokenizer) else PRE_TOKENS
        self._column = f"rule_{TOO_FEW_TOKENS}"
        text = f"at least {self._counted(self._minimum)}" if self._minimum else ""
        super().__init__(TOO_FEW_TOKENS, text, pa.field(self._column, pa.int64()))

    def rejects(self, document: DocumentText) -> str | None:
        """Encode only as much of the text as the verdict needs."""
        if self._compat:
            return self._rejects_as_megatron(document.text, lambda: self._floor.count(document.text))
        tokens = self._floor.shortfall(document.text, self._minimum)
        return None if tokens is None else self._counted(tokens)

    def columns(self, document: DocumentText) -> dict[str, Any]:
        """Return the number of tokens."""
        return {self._column: self._floor.count(document.text)}

    def rejects_row(self, row: Mapping[str, Any]) -> str | None:
        """Compare the number of tokens."""
        tokens: int = row[self._column]
        if self._compat:
            return self._rejects_as_megatron(row["text"], lambda: tokens)
        return self._counted(tokens) if tokens < self._minimum else None

    def _counted(self, tokens: int) -> str:
        """Return `1 pre-token`, `128 pre-tokens`, or with a tokenizer just the number."""
        return f"{tokens} {self._unit.removesuffix('s') if tokens == 1 else self._unit}".strip()

    def _rejects_as_megatron(self, text: str, count: Callable[[], int]) -> str | None:
        if len(text) >= COMPAT_CHARACTERS * self._minimum:
            return None
        tokens = count() + 1  # end-of-text
        return str(tokens) if tokens < self._minimum else None


class LanguageCheck(Check):
    """`language` or `language_probability`: which verdicts of the language detector are accepted."""

    def __init__(self, name: str, threshold: str, accepts: Callable[[Language], bool]) -> None:
        self._accepts = accepts
        kinds = {"language": pa.string(), "language_probability": pa.float64(), "language_engine": pa.string()}
        super().__init__(name, threshold, *(pa.field(*column) for column in kinds.items()))

    def rejects(self, document: DocumentText) -> str | None:
        """Detect the language."""
        return self._judge(_detected(document))

    def columns(self, document: DocumentText) -> dict[str, Any]:
        """Return the detected language."""
        language = _detected(document)
        values = (language.code, language.probability, language.engine)
        return {field.name: value for field, value in zip(self.fields, values, strict=True)}

    def rejects_row(self, row: Mapping[str, Any]) -> str | None:
        """Judge the detected language."""
        return self._judge(Language(*(row[field.name] for field in self.fields)))

    def _judge(self, language: Language) -> str | None:
        return None if self._accepts(language) else f"{language.code} {language.probability:.4f}"


class QualityCheck(Check):
    """`quality`: how like the good examples that a model was trained on; the value names the words most against it."""

    def __init__(self, model: Path, minimum: float) -> None:
        self._path, self._minimum = model, minimum
        self._column = f"rule_{QUALITY}"
        super().__init__(QUALITY, f"at least {shown(minimum)}" if minimum else "", pa.field(self._column, pa.float64()))

    def rejects(self, document: DocumentText) -> str | None:
        """Ask the model."""
        return self._judge(self._model.quality(document.text), document.text)

    def columns(self, document: DocumentText) -> dict[str, Any]:
        """Return the quality."""
        return {self._column: self._model.quality(document.text)}

    def rejects_row(self, row: Mapping[str, Any]) -> str | None:
        """Compare the quality."""
        return self._judge(row[self._column], row["text"])

    def _judge(self, quality: float, text: str) -> str | None:
        if quality >= self._minimum:
            return None
        against = [word.text for word in self._model.explain(text, WORDS_SHOWN).against]
        return f"{quality:.4f}, against it: {', '.join(against)}" if against else f"{quality:.4f}"

    @functools.cached_property
    def _model(self) -> QualityModel:
        return QualityModel.load(self._path)


class OwnCheck(Check):
    """A rule of the user's own; its function is loaded when a document is measured, so not for annotated ones."""

    def __init__(self, rule: OwnRule) -> None:
        self._rule = rule
        self._column = f"rule_{rule.rule}"
        super().__init__(rule.rule, rule.threshold, pa.field(self._column, pa.string()))

    def rejects(self, document: DocumentText) -> str | None:
        """Ask the function."""
        assert document.row is not None, "documents of the stage come with their row"
        return self._rule.ask(self._function, document.row, document)

    def columns(self, document: DocumentText) -> dict[str, Any]:
        """Return the value for which the function rejects the document, or nothing."""
        return {self._column: self.rejects(document)}

    def rejects_row(self, row: Mapping[str, Any]) -> str | None:
        """Return the recorded value."""
        return row[self._column]

    @functools.cached_property
    def _function(self) -> Any:
        return self._rule.load()


def _detected(document: DocumentText) -> Language:
    assert document.language is not None, "documents come with a detector when rules on languages are on"
    return document.language


def shown(value: Value) -> str:
    """Format a value for rejected rows: a whole number without a point, as columns hold all numbers as floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
