"""Shingles: runs of n consecutive words, or of n consecutive characters, as 64-bit hashes.

A word is a maximal run of letters, marks, numbers and connectors (`dataprep.text.characters`); each letter of
a script without spaces is a separate word. A text with fewer than n words has one shingle, of all its
words; a text without words has none. Character shingles follow the same rules over the code points of the whole
text, spaces included. (A NUL hashes to 0, and no other character or word does, so texts with fewer than n
characters that differ only in leading NULs have the same shingle.)

Hash of a word: its UTF-8 bytes in little-endian chunks of eight, chunk k xored with k times a constant,
mixed, and summed. Hash of a character: its code point, mixed. Hash of a shingle: Horner's rule over the
hashes of its units, mixed. All modulo 2^64. `hash_shingle` is the definition; the other functions compute the
same for many texts at a time, by the native kernel if there is one.

Each character of a text makes a hash of 8 bytes, so character shingles of a long text are made chunk by chunk.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dataprep.native.kernel import kernel
from dataprep.text.characters import BREAKS, INSIDE, JOINS, TAIL, WORD, character_flags, wide_characters
from dataprep.text.folding import Texts
from pipelines.errors import ConfigError

Array = np.ndarray[Any, Any]

MASK = 2**64 - 1
_MULTIPLIERS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
"""The multipliers of MurmurHash3's 64-bit finalizer."""
_CHUNK = 0x9E3779B97F4A7C15
BASE = 0xD6E8FEB86659FD93
"""Odd, so that Horner's rule loses no bit."""

LONG_TEXT_BYTES = 1 << 20
"""Texts with more bytes are long; this is the size of their chunks."""
_MERGE_RANGES = 64


@dataclass(frozen=True, slots=True)
class Shingle:
    """What a shingle is made of: `size` consecutive words or characters."""

    unit: Literal["word", "char"]
    size: int

    @classmethod
    def parse(cls, text: str, key: str = "shingle") -> "Shingle":
        """Parse `word:5` or `char:5`. Raise ConfigError for anything else."""
        match = re.fullmatch(r"(word|char):([1-9]\d?)", text)
        if not match:
            raise ConfigError(f"{key}: expected word:N or char:N with N from 1 to 99, such as word:5, got {text!r}")
        return cls("word" if match[1] == "word" else "char", int(match[2]))

    def __str__(self) -> str:
        return f"{self.unit}:{self.size}"


@dataclass(frozen=True, slots=True)
class Words:
    """The words of several texts: word j is `texts.data[starts[j]:starts[j] + lengths[j]]`.

    Text i has the words `first[i]` to `first[i + 1]`.
    """

    texts: Texts
    starts: Array
    lengths: Array
    first: Array

    def text(self, start: int, stop: int) -> str:
        """Return words `start` to `stop`, separated by single spaces."""
        spans = zip(self.starts[start:stop].tolist(), self.lengths[start:stop].tolist(), strict=True)
        return " ".join(self.texts.data[at : at + length].tobytes().decode() for at, length in spans)


def find_words(texts: Texts) -> Words:
    """Find all words of all texts, in order."""
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
    """Return the flags of the character that each byte belongs to; only a character's first byte can start a word."""
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
    """Return the hash of each word, (num_words,) uint64."""
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
    """Apply a bijection of uint64 in which every bit of the input affects every bit of the result."""
    mixed = values ^ (values >> np.uint64(32))
    mixed *= np.uint64(_MULTIPLIERS[0])
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(_MULTIPLIERS[1])
    mixed ^= mixed >> np.uint64(32)
    return mixed


def window_hashes(units: Array, size: int) -> Array:
    """Return the hashes of all runs of `size` units, (max(0, num_units - size + 1),) uint64."""
    count = max(0, len(units) - size + 1)
    state = units[:count].copy()
    for step in range(1, size):
        state *= np.uint64(BASE)
        state += units[step : step + count]
    return mix(state)


@dataclass(frozen=True, slots=True)
class Shingles:
    """The shingles of several texts: text i has `hashes[first[i]:first[i + 1]]`."""

    hashes: Array
    first: Array

    def of(self, number: int) -> Array:
        """Return the shingles of one text."""
        return self.hashes[self.first[number] : self.first[number + 1]]


def find_shingles(texts: Texts, shingle: Shingle) -> Shingles:
    """Return all shingles of all texts, in order, with repetitions."""
    if native := kernel():
        return Shingles(*native.shingles(texts.spans, shingle.unit, shingle.size, distinct=False))
    units, first = _units(texts, shingle)
    windows = window_hashes(units, shingle.size)
    hashes: list[Array] = [windows[:0]]
    for start, stop in zip(first[:-1].tolist(), first[1:].tolist(), strict=True):
        if stop - start >= shingle.size:
            hashes.append(windows[start : stop - shingle.size + 1])
        else:
            hashes.append(window_hashes(units[start:stop], stop - start) if stop > start else windows[:0])
    return Shingles(np.concatenate(hashes), np.cumsum([len(each) for each in hashes], dtype=np.int64))


def distinct_shingles(texts: Texts, shingle: Shingle) -> Shingles:
    """Return the set of shingles of each text: sorted, each once."""
    if not is_chunked(texts, shingle):
        return _distinct(texts, shingle)
    return _join_sets([_distinct_of_long(texts, number, shingle) for number in range(len(texts))])


def _distinct(texts: Texts, shingle: Shingle) -> Shingles:
    if native := kernel():
        return Shingles(*native.shingles(texts.spans, shingle.unit, shingle.size, distinct=True))
    shingles = find_shingles(texts, shingle)
    return _join_sets([drop_repeats(np.sort(shingles.of(number))) for number in range(len(texts))])


def _join_sets(sets: Sequence[Array]) -> Shingles:
    first = np.cumsum([0, *map(len, sets)], dtype=np.int64)
    return Shingles(np.concatenate([*sets, np.empty(0, np.uint64)]) if len(sets) != 1 else sets[0], first)


def is_chunked(texts: Texts, shingle: Shingle) -> bool:
    """Return whether a text is too long to hold the hashes of all its characters in memory at once."""
    return shingle.unit == "char" and bool((texts.ends - texts.starts > LONG_TEXT_BYTES).any())


def _distinct_of_long(texts: Texts, number: int, shingle: Shingle) -> Array:
    chunks = split_long_text(texts, number, shingle.size)
    # Copies, because the kernel returns the start of an array with room for one hash per byte.
    return merge_sorted([_distinct(chunk, shingle).hashes.copy() for chunk in chunks])


def split_long_text(texts: Texts, number: int, num_characters: int) -> Iterator[Texts]:
    """Split one text into chunks that overlap so that each run of `num_characters` characters is in exactly one."""
    start, end = int(texts.starts[number]), int(texts.ends[number])
    while end - start > LONG_TEXT_BYTES:
        cut = start + LONG_TEXT_BYTES
        window = texts.data[cut : min(cut + 4 * num_characters, end)]  # a character has at most 4 bytes
        characters = np.flatnonzero((window & 0xC0) != 0x80)[:num_characters] + cut
        if len(characters) < num_characters:
            break  # no run begins after the cut
        yield Texts(texts.data, np.array([start]), characters[-1:])
        start = int(characters[0])
    yield Texts(texts.data, np.array([start]), np.array([end]))


def merge_sorted(sets: Sequence[Array]) -> Array:
    """Return the union of sorted arrays of uint64, sorted; needs no more memory than the arrays and the result."""
    bounds = np.arange(_MERGE_RANGES, dtype=np.uint64) * np.uint64(2**64 // _MERGE_RANGES)
    cuts = [np.append(each.searchsorted(bounds), len(each)) for each in sets]
    values = np.empty(sum(map(len, sets)), np.uint64)
    used = 0
    for at in range(_MERGE_RANGES):
        in_range = np.concatenate([each[cut[at] : cut[at + 1]] for each, cut in zip(sets, cuts, strict=True)])
        merged = drop_repeats(np.sort(in_range, kind="stable"))
        values[used : used + len(merged)] = merged
        used += len(merged)
    return values[:used]


def drop_repeats(ordered: Array) -> Array:
    """Return the distinct values of a sorted array; np.unique takes ten times as long."""
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def _units(texts: Texts, shingle: Shingle) -> tuple[Array, Array]:
    """Return the hashes of all units of all texts, and the number of each text's first unit."""
    if shingle.unit == "word":
        words = find_words(texts)
        return word_hashes(words), words.first
    decoded = [
        np.frombuffer(texts.encoded(number).decode().encode("utf-32-le"), dtype="<u4") for number in range(len(texts))
    ]
    first = np.concatenate(([0], np.cumsum([len(points) for points in decoded], dtype=np.int64)))
    return mix(np.concatenate([*decoded, np.empty(0, np.uint32)]).astype(np.uint64)), first


def hash_shingle(units: Sequence[str], unit: Literal["word", "char"]) -> int:
    """Return the hash of one shingle, given its words or characters. This is the definition."""
    state = 0
    for text in units:
        state = (state * BASE + (_hash_word(text.encode()) if unit == "word" else _mix(ord(text)))) & MASK
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
