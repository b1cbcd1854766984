"""Gopher's rules of quality and repetition, counted as datatrove's filters count them.

All judge the text before C4's lines are taken out. Shares of characters are of the whole text with its white
space; repetition is looked for in the head of the text (`document_text.py`).
"""

from collections.abc import Callable

from dataprep.cleaning.document_text import DocumentText
from dataprep.cleaning.repetition import Duplicates, duplicate_lines, duplicate_paragraphs, repeated_runs
from dataprep.cleaning.rules import Rule
from dataprep.cleaning.text_counts import WordCounts, count_words, ratio

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
    """Lines; those that begin with a bullet; those that end with an ellipsis."""
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
        found = document.uncut.once(find)
        return ratio(found.duplicates, found.pieces)

    return measure


def _duplicate_characters(find: Callable[[DocumentText], Duplicates]) -> Measure:
    return lambda document: ratio(document.uncut.once(find).characters, len(document.uncut.head))


def _top_run(length: int) -> Measure:
    def measure(document: DocumentText) -> float:
        return ratio(document.uncut.once(repeated_runs).top_characters(length), len(document.uncut.head))

    return measure


def _duplicate_runs(length: int) -> Measure:
    def measure(document: DocumentText) -> float:
        return ratio(document.uncut.once(repeated_runs).duplicate_characters(length), len(document.uncut.head))

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
    *(Rule(f"gopher_max_top_{n}_gram", _top_run(n), "at_most", _OF_CHARACTERS, REPETITION) for n in (2, 3, 4)),
    *(
        Rule(f"gopher_max_duplicate_{n}_grams", _duplicate_runs(n), "at_most", _OF_CHARACTERS, REPETITION)
        for n in range(5, 11)
    ),
)
