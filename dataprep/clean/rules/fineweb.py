"""The rules that FineWeb adds to Gopher's and C4's, counted as datatrove's FineWebQualityFilter counts them.

Only line feeds end its lines, and blank lines do not count.
"""

import functools

import regex

from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.measures import SENTENCE_ENDS, Duplicates, count_words, find_duplicates, ratio
from dataprep.clean.rules.rule import Rule

SOURCE = "Penedo et al. 2024, arXiv:2406.17557, section 3.5; huggingface/datatrove: filters/fineweb_quality_filter.py"
SHORT_LINE = 30
"""Most characters of a short line (datatrove's `short_line_length`)."""
_TERMINAL = regex.compile(f"[{SENTENCE_ENDS}]")


def _line_counts(document: DocumentText) -> tuple[int, int, int]:
    """Count lines, those whose last character ends a sentence, and short ones."""
    lines = punctuated = short = 0
    for block in document.full_line_blocks():
        lines += len(block)
        punctuated += sum(map(_is_terminal, (line[-1] for line in block)))
        short += sum(len(line) <= SHORT_LINE for line in block)
    return lines, punctuated, short


@functools.cache
def _is_terminal(character: str) -> bool:
    return bool(_TERMINAL.match(character))


def _punctuated_lines(document: DocumentText) -> float:
    lines, punctuated, _ = document.once(_line_counts)
    return ratio(punctuated, lines)


def _short_lines(document: DocumentText) -> float:
    lines, _, short = document.once(_line_counts)
    return ratio(short, lines)


def _duplicate_lines(document: DocumentText) -> Duplicates:
    return find_duplicates([line for line in document.head.split("\n") if line and not line.isspace()])


def _duplicate_line_characters(document: DocumentText) -> float:
    head = document.head
    return ratio(document.once(_duplicate_lines).characters, len(head) - head.count("\n"))


def _line_feeds_per_word(document: DocumentText) -> float:
    return ratio(document.text.count("\n"), document.once(count_words).total)


RULES = (
    Rule("fineweb_min_punctuated_lines", _punctuated_lines, "at_least", "share of lines", SOURCE),
    Rule("fineweb_max_short_lines", _short_lines, "at_most", "share of lines", SOURCE),
    Rule("fineweb_max_duplicate_line_characters", _duplicate_line_characters, "at_most", "share of characters", SOURCE),
    Rule("fineweb_max_line_feeds_per_word", _line_feeds_per_word, "at_most", "per word or mark", SOURCE),
)
