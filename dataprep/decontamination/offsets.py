"""Where folded text stands in the original: NFC and case folding change the lengths of some characters.

Items are looked for in folded text (`dataprep.text.folding.fold_case`), but a span that is reported or cut is
one of the text as it is. Mostly one character becomes one of as many bytes; where it does not, or where NFC merges
or reorders several, there is a block.
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
"""First byte, the one after the last, and bytes when folded, of what does not stay one character of its size."""


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """Block k of the original, bytes `starts[k]` to `ends[k]`, is bytes `folded_starts[k]` to `folded_ends[k]` folded.

    Between blocks both texts have characters of the same lengths. All offsets ascend.
    """

    data: Array
    starts: Array
    ends: Array
    folded_starts: Array
    folded_ends: Array

    @classmethod
    def of(cls, encoded: bytes) -> "OffsetMap":
        """The map of one text, given as UTF-8."""
        data = np.frombuffer(encoded, np.uint8)
        blocks = np.array([] if encoded.isascii() else sorted(_blocks(data)), np.int64).reshape(-1, 3)
        starts, ends, sizes = blocks.T
        folded_ends = ends + np.cumsum(sizes - (ends - starts))
        return cls(data, starts, ends, folded_ends - sizes, folded_ends)

    def first_characters(self, places: Array) -> Array:
        """The original characters that become what starts at these folded bytes."""
        block = np.searchsorted(self.folded_starts, places, side="right") - 1
        return self._characters(self._original(places, block, self.starts))

    def last_characters(self, places: Array) -> Array:
        """The characters after those that become what ends at these folded bytes."""
        block = np.searchsorted(self.folded_starts, places, side="left") - 1
        return self._characters(self._original(places, block, self.ends))

    def _original(self, places: Array, block: Array, edges: Array) -> Array:
        """Folded bytes as original bytes; inside a block, the block's edge."""
        places = places.astype(np.int64)
        if not len(self.starts):
            return places
        after = np.where(block >= 0, self.ends[block] - self.folded_ends[block], 0)
        inside = (block >= 0) & (places < self.folded_ends[block])
        return np.where(inside, edges[block], places + after)

    def _characters(self, places: Array) -> Array:
        """How many characters stand before each of these bytes of the original."""
        ordered, order = np.unique(places, return_inverse=True)
        begins = np.append((self.data & 0xC0) != 0x80, True).view(np.uint8)
        edges = np.concatenate(([0], ordered))
        counts = np.add.reduceat(begins, edges, dtype=np.int64)[:-1] * (np.diff(edges) > 0)
        return np.cumsum(counts)[order]


def word_spans(text: str) -> tuple[Array, Array]:
    """First character, and the one after the last, of each word that `find_words` finds in the folded text."""
    words = find_words(fold_case(raw_texts([text])))
    offsets = OffsetMap.of(text.encode())
    return offsets.first_characters(words.starts), offsets.last_characters(words.starts + words.lengths)


def _blocks(data: Array) -> Iterator[Block]:
    """Every block of a text, in any order."""
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
    """Which bytes belong to these characters, or to one right before them; `starts` and `sizes` in bytes."""
    inside = np.zeros(len(data), dtype=bool)
    first = np.maximum(starts - 1, 0)
    for _ in range(3):
        first -= (data[first] & 0xC0) == 0x80
    for extra in range(8):  # two characters
        inside[np.minimum(first + extra, starts + sizes - 1)] = True
    return inside


def _merged_blocks(text: str, first: int) -> Iterator[Block]:
    """The blocks of characters that stand together and may merge; `first` is their first byte.

    A character merges with those before it, back to one that joins none; never with a stable one after it.
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
    """Whether case folding makes more than one character of it, or one of another size."""
    folded = character.casefold()
    return len(folded) > 1 or len(folded.encode()) != len(character.encode())


@lru_cache(maxsize=4096)
def _may_merge(character: str) -> bool:
    """Whether NFC may change this character, or one with which it stands together."""
    return _joins(character) or not unicodedata.is_normalized("NFC", character)


@lru_cache(maxsize=4096)
def _joins(character: str) -> bool:
    """Whether NFC may merge this character with one before it, or move it before one."""
    first = unicodedata.normalize("NFD", character)[0]
    if unicodedata.combining(first):
        return True
    # What is unstable for no reason of its own is so because it composes (NFC_Quick_Check=Maybe).
    flagged = bool(character_flags()[ord(first)] & UNSTABLE)
    return flagged and first.casefold() == first and unicodedata.is_normalized("NFC", first)
