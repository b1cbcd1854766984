"""From offsets in folded text to offsets in the original: NFC and case folding change the lengths of some characters.

Items are searched for in folded text (`dataprep.text.folding.fold_case`), but spans are reported and cut in the
original text. Most characters become one character of the same number of bytes; where that is not so, or where NFC
merges or reorders several, there is a block.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from dataprep.dedup.shingles import find_words
from dataprep.text.characters import UNSTABLE, character_flags, wide_characters
from dataprep.text.folding import fold_case, raw_texts

Array = np.ndarray[Any, Any]
Block = tuple[int, int, int]
"""First byte, the one after the last, and number of bytes when folded, of characters that change their length."""


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Block k: bytes `starts[k]` to `ends[k]` of the original become `folded_starts[k]` to `folded_ends[k]`.

    Between blocks the characters of both texts have the same lengths. All offsets ascend.
    """

    data: Array
    starts: Array
    ends: Array
    folded_starts: Array
    folded_ends: Array

    @classmethod
    def of(cls, encoded: bytes) -> "OffsetMap":
        """Return the map of one text, given as UTF-8."""
        data = np.frombuffer(encoded, np.uint8)
        blocks = np.array([] if encoded.isascii() else sorted(_blocks(data)), np.int64).reshape(-1, 3)
        starts, ends, sizes = blocks.T
        folded_ends = ends + np.cumsum(sizes - (ends - starts))
        return cls(data, starts, ends, folded_ends - sizes, folded_ends)

    def first_characters(self, folded: Array) -> Array:
        """Return the original character offsets at which spans start, given the folded byte offsets of their starts."""
        block = np.searchsorted(self.folded_starts, folded, side="right") - 1
        return self._characters(self._original(folded, block, self.starts))

    def last_characters(self, folded: Array) -> Array:
        """Return the original character offsets at which spans end, given the folded byte offsets of their ends."""
        block = np.searchsorted(self.folded_starts, folded, side="left") - 1
        return self._characters(self._original(folded, block, self.ends))

    def _original(self, folded: Array, block: Array, edges: Array) -> Array:
        """Convert folded to original byte offsets; inside a block, to the block's edge."""
        folded = folded.astype(np.int64)
        if not len(self.starts):
            return folded
        after = np.where(block >= 0, self.ends[block] - self.folded_ends[block], 0)
        inside = (block >= 0) & (folded < self.folded_ends[block])
        return np.where(inside, edges[block], folded + after)

    def _characters(self, offsets: Array) -> Array:
        """Return how many characters precede each of these byte offsets of the original."""
        ordered, order = np.unique(offsets, return_inverse=True)
        begins = np.append((self.data & 0xC0) != 0x80, True).view(np.uint8)
        edges = np.concatenate(([0], ordered))
        counts = np.add.reduceat(begins, edges, dtype=np.int64)[:-1] * (np.diff(edges) > 0)
        return np.cumsum(counts)[order]


def word_spans(text: str) -> tuple[Array, Array]:
    """Return first character and end of each word of the folded text (`find_words`), as original offsets."""
    words = find_words(fold_case(raw_texts([text])))
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
