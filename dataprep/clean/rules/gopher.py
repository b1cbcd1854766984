"""Gopher's rules of quality and repetition, counted as datatrove's filters count them.

All rules judge the text before C4's lines are removed. Shares of characters refer to the whole text with its white
space; repetition is measured in the head of the text (`document.py`).
"""

from collections.abc import Callable

from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.measures import (
    Duplicates,
    WordCounts,
    count_words,
    duplicate_lines,
    duplicate_paragraphs,
    ratio,
    repeated_ngrams,
)
from dataprep.clean.rules.rule import Rule

QUALITY = "Rae et al. 2021, arXiv:2112.11446, A.1.1; huggingface/datatrove: filters/gopher_quality_filter.py"
REPETITION = "Rae et al. 2021, arXiv:2112.11446, table A1; huggingface/datatrove: filters/gopher_repetition_filter.py"

Measure = Callable[[DocumentText], int | float]


def _words(value: Callable[[WordCounts], int | float]) -> Measure:
    return lambda document: value(document.uncut.once(count_words))


def _mean_word_length(counts: WordCounts) -> float:
    return ratio(counts.characters, counts.total - counts.marks)


def _per_word(*signs: str) -> Measure:
    def measure(document: DocumentText) -> float:
        return ratio(sum(document.uncut.text.count(sign) for sign in signs), document.uncut.once(count_words).total)

    return measure


def _line_ends(document: DocumentText) -> tuple[int, int, int]:
    """Count lines, those that begin with a bullet, and those that end with an ellipsis."""
    lines = bullets = ellipses = 0
    for block in document.line_blocks():
        lines += len(block)
        bullets += sum(line.lstrip().startswith(("•", "-")) for line in block)
        ellipses += sum(line.rstrip().endswith(("...", "…")) for line in block)
    return lines, bullets, ellipses


def _bullet_lines(document: DocumentText) -> float:
    lines, bullets, _ = document.uncut.once(_line_ends)
    return ratio(bullets, lines)


def _ellipsis_lines(document: DocumentText) -> float:
    lines, _, ellipses = document.uncut.once(_line_ends)
    return ratio(ellipses, lines)


def _duplicates(find: Callable[[DocumentText], Duplicates]) -> Measure:
    def measure(document: DocumentText) -> float:
        lines = document.uncut.once(find)
        return ratio(lines.duplicates, lines.total)

    return measure


def _duplicate_characters(find: Callable[[DocumentText], Duplicates]) -> Measure:
    return lambda document: ratio(document.uncut.once(find).characters, len(document.uncut.head))


def _top_ngram(length: int) -> Measure:
    def measure(document: DocumentText) -> float:
        return ratio(document.uncut.once(repeated_ngrams).top_characters(length), len(document.uncut.head))

    return measure


def _duplicate_ngrams(length: int) -> Measure:
    def measure(document: DocumentText) -> float:
        return ratio(document.uncut.once(repeated_ngrams).duplicate_characters(length), len(document.uncut.head))

    return measure


def _share_of_words(counts: WordCounts) -> float:
    return ratio(counts.alphabetic, counts.total)


def _num_words(counts: WordCounts) -> int:
    return counts.total - counts.marks


_PER_WORD = "per word or mark"
_OF_LINES = "share of lines"
_OF_CHARACTERS = "share of characters"

RULES = (
    Rule("gopher_min_words", _words(_num_words), "at_least", "words", QUALITY),
    Rule("gopher_max_words", _words(_num_words), "at_most", "words", QUALITY),
    Rule("gopher_min_mean_word_length", _words(_mean_word_length), "at_least", "characters", QUALITY),
    Rule("gopher_max_mean_word_length", _words(_mean_word_length), "at_most", "characters", QUALITY),
    Rule("gopher_max_hash_ratio", _per_word("#"), "at_most", _PER_WORD, QUALITY),
    Rule("gopher_max_ellipsis_ratio", _per_word("...", "…"), "at_most", _PER_WORD, QUALITY),
    Rule("gopher_max_bullet_lines", _bullet_lines, "at_most", _OF_LINES, QUALITY),
    Rule("gopher_max_ellipsis_lines", _ellipsis_lines, "at_most", _OF_LINES, QUALITY),
    Rule("gopher_min_alphabetic_words", _words(_share_of_words), "at_least", "share of words and marks", QUALITY),
    Rule("gopher_min_stop_words", _words(lambda counts: counts.stop_words), "at_least", "different words", QUALITY),
    Rule("gopher_max_duplicate_lines", _duplicates(duplicate_lines), "at_most", _OF_LINES, REPETITION),
    Rule(
        "gopher_max_duplicate_paragraphs",
        _duplicates(duplicate_paragraphs),
        "at_most",
        "share of paragraphs",
        REPETITION,
    ),
    Rule(
        "gopher_max_duplicate_line_characters",
        _duplicate_characters(duplicate_lines),
        "at_most",
        _OF_CHARACTERS,
        REPETITION,
    ),
    Rule(
        "gopher_max_duplicate_paragraph_characters",
        _duplicate_characters(duplicate_paragraphs),
        "at_most",
        _OF_CHARACTERS,
        REPETITION,
    ),
    *(Rule(f"gopher_max_top_{n}_gram", _top_ngram(n), "at_most", _OF_CHARACTERS, REPETITION) for n in (2, 3, 4)),
    *(
        Rule(f"gopher_max_duplicate_{n}_grams", _duplicate_ngrams(n), "at_most", _OF_CHARACTERS, REPETITION)
        for n in range(5, 11)
    ),
)
