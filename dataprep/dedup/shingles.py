"""Shingles: runs of n consecutive words, or of n consecutive characters, as 64-bit hashes.

A word is a longest run of letters, marks, numbers and connectors (`dataprep.text.characters`); a letter of
a script without spaces is a word of its own. A text with fewer than n words has one shingle, of all its
words; a text without any word has none. Character shingles run over the code points of the whole text,
spaces included, by the same rules. (A NUL hashes to 0, so of texts with fewer than n characters those that
differ only in NULs at their start are alike. No other character or word does.)

Hash of a word: its UTF-8 bytes in little-endian chunks of eight, chunk k xored with k times a constant,
mixed, and summed. Hash of a character: its code point, mixed. Hash of a shingle: Horner's rule over the
hashes of its units, mixed. All modulo 2^64. `hash_shingle` is the definition; the rest is the same for
many texts at a time, by the native kernel where there is one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dataprep.dedup import long_texts
from dataprep.native.kernel import kernel
from dataprep.text.characters import BREAKS, INSIDE, JOINS, TAIL, WORD, character_flags, wide_characters
from dataprep.text.folding import Texts
from pipelines.errors import ConfigError

Array = np.ndarray[Any, Any]

MASK = 2**64 - 1
_MULTIPLIERS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
"""Those of MurmurHash3's 64-bit finalizer."""
_CHUNK = 0x9E3779B97F4A7C15
BASE = 0xD6E8FEB86659FD93
"""Odd, so that Horner's rule loses no bit."""


@dataclass(frozen=True, slots=True)
class Shingle:
    """What a shingle is made of: `size` consecutive words or characters."""

    unit: Literal["word", "char"]
    size: int

    @classmethod
    def parse(cls, text: str, key: str = "shingle") -> "Shingle":
        """`word:5` or `char:5`; ConfigError for anything else."""
        match = re.fullmatch(r"(word|char):([1-9]\d?)", text)
        if not match:
            raise ConfigError(f"{key}: expected word:N or char:N with N from 1 to 99, such as word:5, got {text!r}")
        return cls("word" if match[1] == "word" else "char", int(match[2]))

    def __str__(self) -> str:
        return f"{self.unit}:{self.size}"


@dataclass(frozen=True, slots=True)
class Words:
    """The words of some texts: word j is `texts.data[starts[j]:starts[j] + lengths[j]]`.

    The words of text i are numbers `first[i]` to `first[i + 1]`.
    """

    texts: Texts
    starts: Array
    lengths: Array
    first: Array

    def text(self, start: int, stop: int) -> str:
        """Words `start` to `stop` with single spaces between them."""
        spans = zip(self.starts[start:stop].tolist(), self.lengths[start:stop].tolist(), strict=True)
        return " ".join(self.texts.data[at : at + length].tobytes().decode() for at, length in spans)


def find_words(texts: Texts) -> Words:
    """All words of all texts, in order."""
    flags = _byte_flags(texts.data)
    before = np.empty_like(flags)
    before[1:] = flags[:-1]
    before[texts.starts[texts.starts < len(flags)]] = 0
    inside = (flags & INSIDE) != 0
    starts_word = inside & (
        ((flags & BREAKS) != 0) | ((before & INSIDE) == 0) | (((flags & TAIL) == 0) & ((before & JOINS) == 0))
    )
    ends_word = inside.copy()
    ends_word[:-1] &= ~inside[1:] | starts_word[1:]
    starts = np.flatnonzero(starts_word)
    lengths = np.flatnonzero(ends_word) + 1 - starts
    first = np.searchsorted(starts, np.append(texts.starts, len(flags)))
    return Words(texts, starts, lengths, first)


def _byte_flags(data: Array) -> Array:
    """Flags of the character that each byte belongs to; further bytes of a character never start a word."""
    letters = ((data | 32) - np.uint8(ord("a"))) < 26
    flags = (letters | ((data - np.uint8(ord("0"))) < 10) | (data == ord("_"))).view(np.uint8) * np.uint8(WORD)
    starts, sizes, points = wide_characters(data)
    if len(starts):
        wide = character_flags()[points]
        flags[starts] = wide
        tails = np.where(wide & INSIDE, (wide & ~np.uint8(BREAKS)) | TAIL, 0).astype(np.uint8)
        for extra in (1, 2, 3):
            longer = sizes > extra
            flags[starts[longer] + extra] = tails[longer]
    return flags


def word_hashes(words: Words) -> Array:
    """The hash of each word, (num_words,) uint64."""
    padded = np.concatenate((words.texts.data, np.zeros(8, np.uint8)))
    chunks = np.ndarray((len(padded) - 7,), dtype="<u8", buffer=padded, strides=(1,))
    keep = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)
    hashes = mix(chunks[words.starts] & keep[np.minimum(words.lengths, 8)])
    long = np.flatnonzero(words.lengths > 8)
    if len(long):
        # Chunks 1, 2, ... of all long words in one array, then summed word by word.
        counts = (words.lengths[long] - 1) // 8
        ends = np.cumsum(counts)
        chunk = np.arange(ends[-1]) - np.repeat(ends - counts, counts) + 1
        at = np.repeat(words.starts[long], counts) + 8 * chunk
        size = np.minimum(np.repeat(words.lengths[long], counts) - 8 * chunk, 8)
        mixed = mix((chunks[at] & keep[size]) ^ (chunk.astype(np.uint64) * np.uint64(_CHUNK)))
        hashes[long] += np.add.reduceat(mixed, ends - counts)
    return hashes


def mix(values: Array) -> Array:
    """A bijection of uint64 in which every bit of the input moves every bit of the result."""
    mixed = values ^ (values >> np.uint64(32))
    mixed *= np.uint64(_MULTIPLIERS[0])
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(_MULTIPLIERS[1])
    mixed ^= mixed >> np.uint64(32)
    return mixed


def window_hashes(units: Array, size: int) -> Array:
    """Hashes of all runs of `size` units, (max(0, num_units - size + 1),) uint64."""
    count = max(0, len(units) - size + 1)
    state = units[:count].copy()
    for step in range(1, size):
        state *= np.uint64(BASE)
        state += units[step : step + count]
    return mix(state)


@dataclass(frozen=True, slots=True)
class Shingles:
    """The shingles of some texts: text i has `hashes[first[i]:first[i + 1]]`."""

    hashes: Array
    first: Array

    def of(self, number: int) -> Array:
        """Those of one text."""
        return self.hashes[self.first[number] : self.first[number + 1]]


def find_shingles(texts: Texts, shingle: Shingle) -> Shingles:
    """All shingles of all texts, in order, with repetitions."""
    if native := kernel():
        return Shingles(*native.shingles(texts.spans, shingle.unit, shingle.size, distinct=False))
    units, first = _units(texts, shingle)
    windows = window_hashes(units, shingle.size)
    pieces: list[Array] = [windows[:0]]
    for start, stop in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        if stop - start >= shingle.size:
            pieces.append(windows[start : stop - shingle.size + 1])
        else:
            pieces.append(window_hashes(units[start:stop], stop - start) if stop > start else windows[:0])
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return Shingles(np.concatenate(pieces), ends)


def distinct_shingles(texts: Texts, shingle: Shingle) -> Shingles:
    """The set of shingles of each text: sorted, each once."""
    if not has_long(texts, shingle):
        return _distinct(texts, shingle)
    return _end_to_end([_distinct_of_long(texts, number, shingle) for number in range(len(texts))])


def _distinct(texts: Texts, shingle: Shingle) -> Shingles:
    if native := kernel():
        return Shingles(*native.shingles(texts.spans, shingle.unit, shingle.size, distinct=True))
    found = find_shingles(texts, shingle)
    return _end_to_end([long_texts.each_once(np.sort(found.of(number))) for number in range(len(texts))])


def _end_to_end(sets: Sequence[Array]) -> Shingles:
    first = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    return Shingles(np.concatenate([*sets, np.empty(0, np.uint64)]) if len(sets) != 1 else sets[0], first)


def has_long(texts: Texts, shingle: Shingle) -> bool:
    """Whether a text is of so many characters that their hashes should not be in memory all at once."""
    return shingle.unit == "char" and long_texts.are_among(texts)


def _distinct_of_long(texts: Texts, number: int, shingle: Shingle) -> Array:
    pieces = long_texts.pieces_of(texts, number, shingle.size)
    # Copies: what the kernel returns is the start of an array with room for one hash per byte.
    return long_texts.union([_distinct(piece, shingle).hashes.copy() for piece in pieces])


def _units(texts: Texts, shingle: Shingle) -> tuple[Array, Array]:
    """Hashes of all units of all texts, and the number of each text's first unit."""
    if shingle.unit == "word":
        words = find_words(texts)
        return word_hashes(words), words.first
    decoded = [
        np.frombuffer(texts.encoded(number).decode().encode("utf-32-le"), dtype="<u4") for number in range(len(texts))
    ]
    first = np.concatenate(([0], np.cumsum([len(points) for points in decoded], dtype=np.int64)))
    return mix(np.concatenate([*decoded, np.empty(0, np.uint32)]).astype(np.uint64)), first


def hash_shingle(units: Sequence[str], unit: Literal["word", "char"]) -> int:
    """The definition: the hash of one shingle, given its words or characters."""
    state = 0
    for piece in units:
        state = (state * BASE + (_hash_word(piece.encode()) if unit == "word" else _mix(ord(piece)))) & MASK
    return _mix(state)


def _hash_word(word: bytes) -> int:
    chunks = [int.from_bytes(word[at : at + 8], "little") for at in range(0, len(word), 8)]
    return sum(_mix(chunk ^ (number * _CHUNK & MASK)) for number, chunk in enumerate(chunks)) & MASK


def _mix(value: int) -> int:
    value ^= value >> 32
    value = value * _MULTIPLIERS[0] & MASK
    value ^= value >> 29
    value = value * _MULTIPLIERS[1] & MASK
    return value ^ value >> 32
