"""The words by which items are searched for, and where these are in the original text.

Words are compared as they read (`dataprep.text.spelling.READING`), after NFC and case folding, but spans are reported
and cut in the original text. Most characters stay, or become one character of the same number of bytes; where that is
not so, or where NFC merges or reorders several, there is a block.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dataprep.dedup.shingles import Words, find_words
from dataprep.text.characters import UNSTABLE, character_flags, wide_characters
from dataprep.text.folding import Texts, fold_case, raw_texts
from dataprep.text.spelling import READING, replace

Array = np.ndarray[Any, Any]
Block = tuple[int, int, int]
"""First offset, the one after the last, and the new size of a span that changes: characters, or bytes when folded."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block k: `starts[k]` to `ends[k]` of one text become `new_starts[k]` to `new_ends[k]` of another.

    Between blocks the texts are alike. All offsets ascend.
    """

    starts: Array
    ends: Array
    new_starts: Array
    new_ends: Array

    @classmethod
    def of(cls, blocks: Iterable[Block]) -> "Blocks":
        """Return the blocks, given in order."""
        starts, ends, sizes = np.array([*blocks], np.int64).reshape(-1, 3).T
        new_ends = ends + np.cumsum(sizes - (ends - starts))
        return cls(starts, ends, new_ends - sizes, new_ends)

    def first(self, new: Array) -> Array:
        """Return the old offsets at which spans start, given the new ones."""
        return self._old(new, np.searchsorted(self.new_starts, new, side="right") - 1, self.starts)

    def last(self, new: Array) -> Array:
        """Return the old offsets at which spans end, given the new ones."""
        return self._old(new, np.searchsorted(self.new_starts, new, side="left") - 1, self.ends)

    def _old(self, new: Array, block: Array, edges: Array) -> Array:
        """Convert new to old offsets; inside a block, to the block's edge."""
        if not len(self.starts):
            return new
        after = np.where(block >= 0, self.ends[block] - self.new_ends[block], 0)
        inside = (block >= 0) & (new < self.new_ends[block])
        return np.where(inside, edges[block], new + after)


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """From bytes of the text as it is compared to characters of the original.

    `read` are the edits of the original, in characters; `folded` the blocks of what they give, `data`, in bytes.
    """

    data: Array
    read: Blocks
    folded: Blocks

    @classmethod
    def of(cls, encoded: bytes) -> "OffsetMap":
        """Return the map of one text, given as UTF-8."""
        text = encoded.decode()
        edits = READING.edits(text)
        data = np.frombuffer(replace(text, edits).encode() if edits else encoded, np.uint8)
        read = Blocks.of((start, end, len(replacement)) for start, end, replacement in edits)
        return cls(data, read, Blocks.of(() if (data < 0x80).all() else sorted(_blocks(data))))

    def first_characters(self, folded: Array) -> Array:
        """Return the original character offsets at which spans start, given the folded byte offsets of their starts."""
        return self.read.first(self._characters(self.folded.first(folded.astype(np.int64))))

    def last_characters(self, folded: Array) -> Array:
        """Return the original character offsets at which spans end, given the folded byte offsets of their ends."""
        return self.read.last(self._characters(self.folded.last(folded.astype(np.int64))))

    def _characters(self, offsets: Array) -> Array:
        """Return how many characters of `data` precede each of these byte offsets."""
        ordered, order = np.unique(offsets, return_inverse=True)
        begins = np.append((self.data & 0xC0) != 0x80, True).view(np.uint8)
        edges = np.concatenate(([0], ordered))
        counts = np.add.reduceat(begins, edges, dtype=np.int64)[:-1] * (np.diff(edges) > 0)
        return np.cumsum(counts)[order]


def compared_words(texts: Texts) -> Words:
    """Return the words by which items and documents are compared; the texts must lie end to end."""
    return find_words(fold_case(READING.spell_texts(texts)))


def word_spans(text: str) -> tuple[Array, Array]:
    """Return first character and end of each of the `compared_words`, as original offsets."""
    words = compared_words(raw_texts([text]))
    offsets = OffsetMap.of(text.encode())
    return offsets.first_characters(words.starts), offsets.last_characters(words.starts + words.lengths)


def _blocks(data: Array) -> Iterator[Block]:
    """Yield every block of a text, in any order."""
    starts, sizes, points = wide_characters(data)
    unstable = (character_flags()[points] & UNSTABLE) != 0
    starts, sizes, points = starts[unstable], sizes[unstable], points[unstable]
    kinds, kind = np.unique(points, return_inverse=True)
    folded = np.array([_folded_size(chr(point)) for point in kinds.tolist()], np.int64)[kind]
    merging = np.array([_may_merge(chr(point)) for point in kinds.tolist()], bool)[kind]
    inside = _with_preceding(data, starts[merging], sizes[merging])
    alone = np.array([_is_block(chr(point)) for point in kinds.tolist()], bool)[kind] & ~inside[starts]
    yield from zip(*((each[alone]).tolist() for each in (starts, starts + sizes, folded)), strict=True)
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False)).tolist()
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        yield from _merged_blocks(data[start:stop].tobytes().decode(), start)


def _with_preceding(data: Array, starts: Array, sizes: Array) -> Array:
    """Return which bytes belong to these characters or the ones right before them; `starts`, `sizes` in bytes."""
    inside = np.zeros(len(data), dtype=bool)
    first = np.maximum(starts - 1, 0)
    for _ in range(3):
        first -= (data[first] & 0xC0) == 0x80
    for extra in range(8):  # two characters
        inside[np.minimum(first + extra, starts + sizes - 1)] = True
    return inside


def _merged_blocks(text: str, first: int) -> Iterator[Block]:
    """Yield the blocks of adjacent characters that may merge; `first` is their first byte.

    A character merges with those before it, back to one that does not join; never with a stable one after it.
    """
    leaders = [at for at in range(len(text)) if at == 0 or not _joins(text[at])]
    for start, stop in pairwise([*leaders, len(text)]):
        group = text[start:stop]
        normal = unicodedata.normalize("NFC", group)
        same = next((at for at, (a, b) in enumerate(zip(group, normal, strict=False)) if a != b), len(group))
        for character in group[:same]:
            size = len(character.encode())
            if _is_block(character):
                yield first, first + size, _folded_size(character)
            first += size
        if same < len(group):
            size = len(group[same:].encode())
            yield first, first + size, len(normal[same:].casefold().encode())
            first += size


@lru_cache(maxsize=4096)
def _folded_size(character: str) -> int:
    return len(character.casefold().encode())


@lru_cache(maxsize=4096)
def _is_block(character: str) -> bool:
    """Return whether case folding turns this character into several, or into one of another size."""
    folded = character.casefold()
    return len(folded) > 1 or len(folded.encode()) != len(character.encode())


@lru_cache(maxsize=4096)
def _may_merge(character: str) -> bool:
    """Return whether NFC may change this character or an adjacent one."""
    return _joins(character) or not unicodedata.is_normalized("NFC", character)


@lru_cache(maxsize=4096)
def _joins(character: str) -> bool:
    """Return whether NFC may merge this character with one before it, or move it before one."""
    first = unicodedata.normalize("NFD", character)[0]
    if unicodedata.combining(first):
        return True
    # A character that is unstable for no other reason composes with others (NFC_Quick_Check=Maybe).
    flagged = bool(character_flags()[ord(first)] & UNSTABLE)
    return flagged and first.casefold() == first and unicodedata.is_normalized("NFC", first)
