"""The longest spans of a text that occur in token shards, by their suffix arrays.

A word has other tokens at the start of a line than after a space, so a span is looked for from both forms of each word
on; a word that the text cuts short is not found.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.suffixes import SuffixArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WORDS = re.compile(r"(?<!\S)\S")
_FORM = 200
"""Characters from a word on that are encoded in another form: enough for it to end."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a text that occurs in the tokens, and is in no longer one that does."""

    start: int
    end: int
    """Its characters in the text."""
    ids: tuple[int, ...]


def find_spans(text: str, tokenizer: "Tokenizer", arrays: Sequence[SuffixArray]) -> list[Span]:
    """Return the spans of a text that occur, none inside another, in the order of the text."""
    plain = Encoded.of(text, tokenizer)
    found = list(_matches(plain, len(plain.ids), arrays))
    for encoded in _other_forms(text, tokenizer, plain):
        found += _matches(*encoded, arrays)
    spans: list[Span] = []
    for span in sorted(found, key=lambda span: (span.start, -span.end, -len(span.ids))):
        if not spans or span.end > spans[-1].end:
            spans.append(span)
    return spans


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a part of a text."""

    ids: list[int]
    offsets: list[tuple[int, int]]
    """Characters of each token in the text."""

    @classmethod
    def of(cls, part: str, tokenizer: "Tokenizer", start: int = 0) -> "Encoded":
        """Encode the part that begins at character `start` of the text."""
        encoding = tokenizer.encode(part, add_special_tokens=False)
        return cls(encoding.ids, [(max(a + start, 0), max(b + start, 0)) for a, b in encoding.offsets])


def _other_forms(text: str, tokenizer: "Tokenizer", plain: Encoded) -> Iterator[tuple[Encoded, int]]:
    """Yield the tokens from each word on if it is written in its other form: without the space before it, or with one.

    The number of tokens in which they differ from `plain` comes with them.
    """
    at: dict[int, int] = {}
    for index, (first, _) in enumerate(plain.offsets):
        at.setdefault(first, index)  # a character may have several tokens
    for word in (match.start() for match in _WORDS.finditer(text)):
        space = "" if text[word - 1 : word] == " " else " "
        other = Encoded.of(space + text[word : word + _FORM], tokenizer, word - len(space))
        for number, (token, (first, _)) in enumerate(zip(other.ids, other.offsets, strict=True)):
            index = at.get(first, -1)
            inside = number and other.offsets[number - 1][0] == first
            if index >= 0 and plain.ids[index] == token and not inside:
                joined = other.ids[:number] + plain.ids[index:], other.offsets[:number] + plain.offsets[index:]
                yield Encoded(*joined), number
                break
        else:
            yield other, len(other.ids)


def _matches(part: Encoded, starts: int, arrays: Sequence[SuffixArray]) -> Iterator[Span]:
    """Yield the longest matches from each of the first `starts` tokens on, none inside another."""
    reached = 0
    for start in range(starts):
        end = start + max(array.longest(part.ids[start:]) for array in arrays)
        if end > max(reached, start):
            reached = end
            yield Span(part.offsets[start][0], part.offsets[end - 1][1], tuple(part.ids[start:end]))
