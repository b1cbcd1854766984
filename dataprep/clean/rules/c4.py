"""C4: the lines that it removes from a document, and its rules on the remaining document.

Order and meaning of the edits are those of datatrove's C4QualityFilter, which follows C4's own code. It tests each
line in turn for a long word, its end, its number of words, lorem ipsum, javascript, a curly bracket, and a policy.
So lorem ipsum drops a document even from a line that would be removed for javascript or a policy, and a curly bracket
even from a line that would be removed for a policy.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import regex

from dataprep.clean.config import C4Lines
from dataprep.clean.rules.document import HEAD_CHARACTERS, LINE_END, DocumentText, blocks_of_lines
from dataprep.clean.rules.rule import Rule
from dataprep.clean.rules.words import BLOCK_CHARACTERS, blocks, count_sentences, split_words
from pipelines.errors import UserError
from pipelines.utf import reading_text

SOURCE = (
    "Raffel et al. 2020, JMLR 21/140, section 2.2; tensorflow/datasets: text/c4_utils.py; "
    "huggingface/datatrove: filters/c4_filters.py"
)
LOREM_IPSUM, CURLY_BRACKET = "lorem ipsum", "{"
_STILL_COUNTED = {"javascript": (LOREM_IPSUM,), "policy": (LOREM_IPSUM, CURLY_BRACKET)}
"""Reason for which a line is removed -> phrases that it was tested for before, so that they still count."""
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")
_RUN = regex.compile(r"\w+")
_NON_WORD = regex.compile(r"\W")
_UNSPACED = re.compile(r"\S+")
_TERMINAL = (".", "?", "!", '"', "'")
_NO_LINES = C4Lines()
_POLICIES = re.compile("terms of use|privacy policy|cookie policy|uses cookies|use of cookies|use cookies")


@dataclass(frozen=True, slots=True)
class Cut:
    """A text without the lines that C4 removes."""

    text: str
    counts: dict[str, int] = field(default_factory=dict)
    """Lines removed for each reason, and `citations`: how many in lines that stayed."""
    removed: dict[str, int] = field(default_factory=dict)
    """Occurrences of LOREM_IPSUM and CURLY_BRACKET in removed lines that the rules count all the same."""


def remove_lines(text: str, options: C4Lines) -> Cut:
    """Remove lines from `text`; the others are stripped and joined by line feeds.

    Without any option the text is returned unchanged.
    """
    if options == _NO_LINES:
        return Cut(text)
    cut = Cut(text)
    blocks_left = (_remaining_lines(block.splitlines(), options, cut) for block in blocks_of_lines(text, LINE_END))
    kept = "\n".join("\n".join(lines) for lines in blocks_left if lines).strip()
    return Cut(kept, cut.counts, cut.removed)


def _remaining_lines(lines: list[str], options: C4Lines, cut: Cut) -> list[str]:
    """Return the lines that stay, and count the others in `cut`."""
    kept: list[str] = []
    for full_line in lines:
        line, citations = _without_citations(full_line.strip()) if options.citations else (full_line.strip(), 0)
        reason = _reason_to_remove(full_line, line, options)
        if reason:
            _add(cut.counts, reason, 1)
            for phrase in _STILL_COUNTED.get(reason, ()):
                _add(cut.removed, phrase, line.lower().count(phrase))
            continue
        _add(cut.counts, "citations", citations)
        kept.append(line)
    return kept


def _add(counts: dict[str, int], name: str, number: int) -> None:
    if number:
        counts[name] = counts.get(name, 0) + number


def _without_citations(line: str) -> tuple[str, int]:
    return _CITATION.subn("", line) if "[" in line else (line, 0)


def _reason_to_remove(full_line: str, line: str, options: C4Lines) -> str:
    """Return why a line is removed, or nothing; `full_line` still has its citations, which count as words."""
    limit = options.max_word_length
    if limit and len(full_line) > limit and _longest_word(full_line) > limit:
        return "long_word"
    if options.terminal_punctuation and (not line.endswith(_TERMINAL) or line.endswith("...")):
        return "no_terminal_punctuation"
    # The limit on splits keeps a long line from being split into millions of words to learn that it has three.
    if options.min_words and len(full_line.split(None, options.min_words)) < options.min_words:
        return "few_words"
    lower = line.lower() if options.javascript or options.policies else ""
    if options.javascript and "javascript" in lower:
        return "javascript"
    return "policy" if options.policies and _POLICIES.search(lower) else ""


def _longest_word(line: str) -> int:
    if len(line) <= BLOCK_CHARACTERS:
        return max(map(len, line.split()), default=0)
    return max((word.end() - word.start() for word in _UNSPACED.finditer(line)), default=0)


def _lorem_ipsum(document: DocumentText) -> int:
    return document.lower.count(LOREM_IPSUM) + document.removed.get(LOREM_IPSUM, 0)


def _curly_brackets(document: DocumentText) -> int:
    return document.text.count(CURLY_BRACKET) + document.removed.get(CURLY_BRACKET, 0)


def _sentences(document: DocumentText) -> int:
    return sum(count_sentences(_words(line)) for block in document.line_blocks() for line in block)


def _words(line: str) -> Iterable[str]:
    if len(line) <= BLOCK_CHARACTERS:
        return split_words(line)
    return chain.from_iterable(map(split_words, blocks(line)))


RULES = (
    Rule("c4_max_lorem_ipsum", _lorem_ipsum, "at_most", "occurrences", SOURCE),
    Rule("c4_max_curly_brackets", _curly_brackets, "at_most", "brackets", SOURCE),
    Rule("c4_min_sentences", _sentences, "at_least", "sentences", SOURCE),
)


def bad_words_rule(file: Path | None) -> Rule:
    """Return the rule on the words and phrases in `file`, one a line, in any case; without a file, every text passes.

    A bad word counts if the characters around it belong to no word. Raises UserError for an empty file.
    """
    if file is None:
        return Rule("c4_max_bad_words", lambda _: None, "at_most", "words of the list", SOURCE)
    bad_words = _read_bad_words(file)
    single = frozenset(word for word in bad_words if _RUN.fullmatch(word))
    phrases = [word for word in bad_words if word not in single]
    # If a phrase begins with a run of word characters, each of its occurrences in a text begins with that whole run.
    beginnings = {run.group() for phrase in phrases if (run := _RUN.match(phrase))}
    others = [phrase for phrase in phrases if not _RUN.match(phrase)]
    any_phrase, any_bad_word = _standing_alone(phrases), _standing_alone(bad_words)

    def measure(document: DocumentText) -> int:
        text = document.lower
        count, may_hold_phrase = 0, any(phrase in text for phrase in others)
        for runs in _blocks_of_runs(text):
            count += sum(map(single.__contains__, runs)) if not single.isdisjoint(runs) else 0
            may_hold_phrase = may_hold_phrase or not beginnings.isdisjoint(runs)
        if may_hold_phrase and any_phrase.search(text):
            return sum(1 for _ in any_bad_word.finditer(text))  # a bad word within a phrase is not counted again
        return count

    return Rule("c4_max_bad_words", measure, "at_most", "words of the list", SOURCE)


def _standing_alone(words: list[str]) -> regex.Pattern[str]:
    return regex.compile(r"(?<!\w)\L<words>(?!\w)", words=words)


def _blocks_of_runs(text: str) -> Iterator[list[str]]:
    """Yield the runs of word characters in `text`, in lists of bounded size."""
    start = 0
    while start < len(text):
        cut = _NON_WORD.search(text, start + HEAD_CHARACTERS)
        end = cut.start() if cut else len(text)
        yield _RUN.findall(text, start, end)
        start = end


def _read_bad_words(file: Path) -> list[str]:
    with reading_text(file) as opened:
        data = opened.read()
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UserError(f"{file}: not UTF-8; save the list of bad words as UTF-8 text, one a line") from None
    words = sorted({line.strip().lower() for line in lines} - {""})
    if not words:
        raise UserError(f"{file}: contains no words; list the bad words one a line, or leave out c4.max_bad_words")
    return words
