"""The table of rules: all there are, in the order applied, cheap first; the first that fails is the reason.

Costs of a document of OpenWebText (4.6 kB) on one busy core, by benchmarks/rules.py: lengths and strings 2 to 40 us,
lines 20 to 30 us, 400 bad words 210 us, words 700 to 1,200 us for whichever rule asks first, sentences 430 us, runs of
words 680 us in all; langdetect takes some milliseconds.
"""

from pathlib import Path
from typing import Protocol

from dataprep.cleaning import c4, fineweb, gopher, seed_rules
from dataprep.cleaning.rules import Rule, Threshold
from dataprep.cleaning.thresholds import C4Rules, FineWebRules, GopherRules, SeedRules

TOO_FEW_TOKENS = "too_few_tokens"
LANGUAGE = "language"
LANGUAGE_PROBABILITY = "language_probability"
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
"""Names in the order applied."""


class Families(Protocol):
    """A configuration with the thresholds of all families."""

    @property
    def seeds(self) -> SeedRules: ...  # noqa: D102
    @property
    def gopher(self) -> GopherRules: ...  # noqa: D102
    @property
    def c4(self) -> C4Rules: ...  # noqa: D102
    @property
    def fineweb(self) -> FineWebRules: ...  # noqa: D102


def all_rules(*, bad_words: Path | None = None) -> list[Rule]:
    """Every rule of the families in order; `bad_words` is the file for c4_max_bad_words, which is silent without it.

    The basic rules, TOO_FEW_TOKENS, LANGUAGE and LANGUAGE_PROBABILITY, need a tokenizer and a detector: whoever has
    them applies them at their places in ORDER.
    """
    rules = [*seed_rules.RULES, *gopher.RULES, *c4.RULES, c4.bad_words_rule(bad_words), *fineweb.RULES]
    return sorted(rules, key=lambda rule: ORDER.index(rule.name))


def threshold_of(config: Families, name: str) -> Threshold | None:
    """The threshold of a family's rule; None where it is off."""
    family, _, field = name.partition("_")
    return getattr(getattr(config, family), field)
