"""Cutting items out of a document, by the rules of Megatron-LM's tools/openwebtext/filter_ngrams.py.

A cut takes each hit with `margin` characters on either side, and goes on to the end of a sentence
(`dataprep.decontamination.sentences`): what is left begins and ends with whole sentences. Pieces longer than
`min_chars` are kept; a document in more than `max_pieces` is dropped, and so is one of which nothing is left.

Where the original differs, it lost text: it looked for the end of a sentence inside numbers and addresses,
took offsets from the lower-cased text, and when no sentence ended before a hit, or after it, it dropped everything on
that side. Here such a cut ends at the margin, at the edge of a word.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dataprep.decontamination.offsets import word_spans
from dataprep.decontamination.sentences import sentence_ends

Span = tuple[int, int]
"""First character, and the one after the last."""

TOO_MANY_PIECES = "too_many_pieces"
NOTHING_LEFT = "nothing_left"


@dataclass(frozen=True, slots=True)
class CutRules:
    """How much goes with a hit, and what is left of a document; lengths in characters."""

    margin: int
    min_chars: int
    max_pieces: int

    def pieces(self, text: str, hits: Sequence[Span]) -> list[Span]:
        """The spans of `text` to keep, in order; together with what lies between them they are the whole text."""
        cuts = merge(cut_spans(text, hits, self.margin))
        return [(start, end) for start, end in between(text, cuts) if end - start > self.min_chars]

    def problem(self, pieces: Sequence[Span]) -> str:
        """Why a document in these pieces is dropped after all; empty where it is not."""
        return NOTHING_LEFT if not pieces else TOO_MANY_PIECES if len(pieces) > self.max_pieces else ""


def cut_spans(text: str, hits: Sequence[Span], margin: int) -> Iterator[Span]:
    """For each hit what goes with it; spans may overlap.

    From the last end of a sentence up to the margin, or, without one, the start of the word that the margin falls
    into; to the first end of a sentence from the margin on, or the end of that word.
    """
    ends = sentence_ends(text)
    first, last = (ends[0], ends[-1]) if ends else (len(text) + 1, -1)
    lefts = [max(0, start - margin) for start, _ in hits]
    rights = [min(len(text), end + margin) for _, end in hits]
    words = words_around(text, {at for at in lefts if at < first} | {at for at in rights if at > last})
    for left, right in zip(lefts, rights, strict=True):
        yield (
            words[left][0] if left < first else ends[bisect_right(ends, left) - 1],
            words[right][1] if right > last else ends[bisect_left(ends, right)],
        )


def words_around(text: str, places: set[int]) -> dict[int, Span]:
    """For each place the word with characters on both sides of it; an empty span where there is none."""
    around = {at: (at, at) for at in places}
    if around.keys() <= {0, len(text)}:
        return around
    starts, ends = word_spans(text)
    for at, word in zip(around, np.searchsorted(ends, list(around), side="right").tolist(), strict=True):
        if word < len(starts) and starts[word] < at:
            around[at] = int(starts[word]), int(ends[word])
    return around


def merge(spans: Iterator[Span]) -> list[Span]:
    """The same characters as spans in order that neither overlap nor touch."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def between(text: str, cuts: Sequence[Span]) -> Iterator[Span]:
    """What the cuts leave of a text, without the white space after each cut."""
    at = 0
    for start, end in [*cuts, (len(text), len(text))]:
        if start > at:
            yield at, start
        at = _skip_spaces(text, end)


def _skip_spaces(text: str, at: int) -> int:
    """The next character that is no white space."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at
