"""Cutting items out of a document, by the rules of Megatron-LM's tools/openwebtext/filter_ngrams.py.

A cut takes each hit with `margin` characters on either side, and goes on to the end of a sentence (`.`, `!`, `?`,
or their ideographic forms): what is left begins and ends with whole sentences. Pieces longer than `min_chars` are
kept; a document in more than `max_pieces` is dropped, and so is one of which nothing is left.

Where the original differs, it lost text: it looked for the end of a sentence inside numbers and addresses,
took offsets from the lower-cased text, and when no sentence ended before a hit, or after it, it dropped everything on
that side. Here such a cut ends at the margin, at the edge of a word.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dataprep.decontamination.offsets import word_spans

Span = tuple[int, int]
"""First character, and the one after the last."""

TOO_MANY_PIECES = "too_many_pieces"
NOTHING_LEFT = "nothing_left"

_SENTENCE_END = re.compile(r"[.!?]+(?!\w)|[。！？｡]+")


@dataclass(frozen=True, slots=True)
class CutRules:
    """How much goes with a hit, and what is left of a document; lengths in characters."""

    margin: int
    min_chars: int
    max_pieces: int

    def pieces(self, text: str, hits: Sequence[Span]) -> list[Span]:
        """The spans of `text` to keep, in order; together with what lies between them they are the whole text."""
        cuts = merge(cut_spans(text, hits, self.margin))
        return [(start, end) for start, end in between(len(text), cuts) if end - start > self.min_chars]

    def problem(self, pieces: Sequence[Span]) -> str:
        """Why a document in these pieces is dropped after all; empty where it is not."""
        return NOTHING_LEFT if not pieces else TOO_MANY_PIECES if len(pieces) > self.max_pieces else ""


def cut_spans(text: str, hits: Sequence[Span], margin: int) -> Iterator[Span]:
    """For each hit what goes with it; spans may overlap."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    for start, end in hits:
        left = _left_edge(text, start - margin, ends) if start > margin else 0
        right = _right_edge(text, end + margin, ends) if end + margin < len(text) else len(text)
        yield left, _skip_spaces(text, right)


def _left_edge(text: str, at: int, sentence_ends: list[int]) -> int:
    """The last end of a sentence up to `at`; without one, the start of the word that `at` falls into."""
    sentence = bisect_right(sentence_ends, at) - 1
    return sentence_ends[sentence] if sentence >= 0 else _word_around(text, at)[0]


def _right_edge(text: str, at: int, sentence_ends: list[int]) -> int:
    """The first end of a sentence from `at` on; without one, the end of the word that `at` falls into."""
    sentence = bisect_left(sentence_ends, at)
    return sentence_ends[sentence] if sentence < len(sentence_ends) else _word_around(text, at)[1]


def _word_around(text: str, at: int) -> Span:
    """The word with characters on both sides of `at`; an empty span at `at` where there is none."""
    first = next((place for place in range(at, 0, -1) if text[place - 1].isspace()), 0)
    stop = next((place for place in range(at, len(text)) if text[place].isspace()), len(text))
    for start, end in zip(*word_spans(text[first:stop]), strict=True):
        if first + start < at < first + end:
            return first + start, first + end
    return at, at


def _skip_spaces(text: str, at: int) -> int:
    """The next character that is no white space, so that a piece does not begin with some."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def merge(spans: Iterator[Span]) -> list[Span]:
    """The same characters as spans in order that neither overlap nor touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def between(length: int, cuts: Sequence[Span]) -> Iterator[Span]:
    """What the cuts leave of `length` characters."""
    at = 0
    for start, end in cuts:
        if start > at:
            yield at, start
        at = end
    if at < length:
        yield at, length
