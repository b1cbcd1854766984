"""langdetect's profiles as arrays: the n-grams that they know, and how probable each is in each language.

The numbers are those of `langdetect/detector_factory.py: add_profile`, with the languages in order of name. An n-gram
of up to three characters is one integer (12 bits per character), looked up in a hash table with open addressing, many
at a time.
"""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from langdetect.detector_factory import PROFILES_DIRECTORY
from langdetect.utils.ngram import NGram

from pipelines import store

Integers = npt.NDArray[np.int64]
CodePoints = npt.NDArray[np.unsignedinteger]
Floats = npt.NDArray[np.float64]

SPACE = 1
_OTHER, _OTHER_CAPITAL, _FIRST_KNOWN = 2, 3, 4
_CHARACTER_BITS = 12
_ROW_BITS = 17
_ROW = (1 << _ROW_BITS) - 1
_TABLE_BITS = 20
"""8 MB for 87,598 n-grams: nearly every search ends at its first slot, and each more costs numpy calls."""
_HASH = np.uint64(0x9E3779B97F4A7C15)
_HASH_SHIFT = np.uint64(64 - _TABLE_BITS)
_LAST_SLOT = (1 << _TABLE_BITS) - 1
_CODE_POINTS = 0x110000


@dataclass(frozen=True, slots=True)
class Profiles:
    """langdetect's profiles of its languages."""

    languages: tuple[str, ...]
    rows: Floats
    """(num_ngrams, num_languages): the n-gram's share among those of its length, per language."""
    _slots: Integers
    """The hash table: an n-gram and, in the low bits, its row; 0 marks a free slot."""
    _characters: npt.NDArray[np.uint16]
    """Number of the normalized character for each code point; 0 until it is first needed."""
    _known: npt.NDArray[np.uint16]
    """The same for the normalized characters that are in the profiles; 0 for others."""
    _capital: npt.NDArray[np.bool_]
    """Whether each character number is upper case."""

    def known_ngrams(self, code_points: CodePoints) -> Integers:
        """Return the rows of the n-grams of a text that the profiles know, in the library's order."""
        numbers = self._number(code_points)
        keys = _ngram_keys(numbers)
        capital = self._capital[numbers]
        in_capitals = capital[1:] & capital[:-1]
        keys[1:][in_capitals] = _OTHER
        return self._find(keys.reshape(-1))

    def _number(self, code_points: CodePoints) -> npt.NDArray[np.uint16]:
        numbers = self._characters[code_points]
        if not numbers.all():
            for code_point in np.unique(code_points[numbers == 0]).tolist():
                self._characters[code_point] = self._number_of(NGram.normalize(chr(code_point)))
            numbers = self._characters[code_points]
        return numbers

    def _number_of(self, character: str) -> int:
        return int(self._known[ord(character)]) or (_OTHER_CAPITAL if character.isupper() else _OTHER)

    def _find(self, keys: Integers) -> Integers:
        slots = _first_slots(keys)
        entries = self._slots[slots]
        present = entries >> _ROW_BITS == keys
        (unsure,) = np.nonzero((entries != 0) & ~present)
        while unsure.size:
            slots[unsure] = (slots[unsure] + 1) & _LAST_SLOT
            entries[unsure] = self._slots[slots[unsure]]
            present[unsure] = entries[unsure] >> _ROW_BITS == keys[unsure]
            unsure = unsure[(entries[unsure] != 0) & ~present[unsure]]
        return entries[present] & _ROW


@functools.cache
def load_profiles() -> Profiles:
    """Read the profiles that langdetect brings, once per process."""
    profiles = read_profiles()
    words = [word for profile in profiles for word in profile["freq"]]
    characters = np.frombuffer("".join(words).encode("utf-32-le"), "<u4")
    known = _number_alphabet(characters)
    keys, row_of_word = np.unique(_keys_of(known[characters], words), return_inverse=True)
    return Profiles(
        languages=tuple(str(profile["name"]) for profile in profiles),
        rows=_rows(profiles, row_of_word, len(keys)),
        _slots=_hash_table(keys),
        _characters=np.zeros(_CODE_POINTS, np.uint16),
        _known=known,
        _capital=_capitals(known),
    )


@functools.cache
def read_profiles() -> list[dict[str, Any]]:
    """Return the profiles as langdetect's files have them, in order of name: `name`, `freq` by n-gram, `n_words`."""
    return [json.loads(file.read_text("utf-8")) for file in profile_files()]


def profile_files() -> list[Path]:
    """Return the files of the profiles, one per language, in order of name."""
    return store.list_files(Path(PROFILES_DIRECTORY))


def _number_alphabet(characters: CodePoints) -> npt.NDArray[np.uint16]:
    """Number the code points that are in the profiles, in order; the others have 0."""
    known = np.zeros(_CODE_POINTS, np.uint16)
    known[characters] = 1
    known[ord(" ")] = 0
    (alphabet,) = np.nonzero(known)
    assert _FIRST_KNOWN + len(alphabet) <= 1 << _CHARACTER_BITS
    known[alphabet] = np.arange(_FIRST_KNOWN, _FIRST_KNOWN + len(alphabet))
    known[ord(" ")] = SPACE
    return known


def _capitals(known: npt.NDArray[np.uint16]) -> npt.NDArray[np.bool_]:
    capital = np.zeros(1 << _CHARACTER_BITS, np.bool_)
    capital[_OTHER_CAPITAL] = True
    for code_point in np.flatnonzero(known).tolist():
        capital[known[code_point]] = chr(code_point).isupper()
    return capital


def _rows(profiles: Sequence[dict[str, dict[str, int]]], row_of_word: Integers, count: int) -> Floats:
    rows = np.zeros((count, len(profiles)))
    start = 0
    for column, profile in enumerate(profiles):
        counts = np.array(list(profile["freq"].values()), np.float64)
        lengths = np.fromiter(map(len, profile["freq"]), np.int64)
        words = row_of_word[start : start + len(counts)]
        rows[words, column] = counts / np.array(profile["n_words"], np.float64)[lengths - 1]
        start += len(counts)
    return rows


def _keys_of(numbers: npt.NDArray[np.uint16], words: Sequence[str]) -> Integers:
    """Return the integer of each word of one to three characters, as `_ngram_keys` does for a text.

    `numbers` are the characters of all words, one word after the other.
    """
    lengths = np.fromiter(map(len, words), np.int64)
    assert 1 <= lengths.min() <= lengths.max() <= 3
    last = np.cumsum(lengths) - 1
    keys = numbers[last].astype(np.int64)
    for before in (1, 2):
        longer = lengths > before
        keys[longer] |= numbers[last[longer] - before].astype(np.int64) << (before * _CHARACTER_BITS)
    return keys


def _ngram_keys(numbers: npt.NDArray[np.uint16]) -> Integers:
    """Return, for each character, the integers of the one, two and three characters that end there.

    A text begins after a space. The table lacks the n-grams that the library never looks up: a space alone, two spaces,
    and a space between two characters, where its buffer starts anew.
    """
    padded = np.empty(len(numbers) + 2, np.int64)
    padded[:2] = SPACE
    padded[2:] = numbers
    keys = np.empty((len(numbers), 3), np.int64)
    keys[:, 0] = numbers
    np.bitwise_or(padded[1:-1] << _CHARACTER_BITS, padded[2:], out=keys[:, 1])
    np.bitwise_or(padded[:-2] << 2 * _CHARACTER_BITS, keys[:, 1], out=keys[:, 2])
    return keys


def _first_slots(keys: Integers) -> Integers:
    """Return the slot where the search for each n-gram begins: Fibonacci hashing (Knuth, volume 3, 6.4)."""
    return ((keys.view(np.uint64) * _HASH) >> _HASH_SHIFT).view(np.int64)


def _hash_table(keys: Integers) -> Integers:
    """Put each n-gram into a slot; those whose slot is taken try the next one, until none is waiting."""
    assert len(keys) <= _ROW
    table = np.zeros(_LAST_SLOT + 1, np.int64)
    (waiting,) = np.nonzero(_is_looked_up(keys))
    slots = _first_slots(keys[waiting])
    while waiting.size:
        distinct, first = np.unique(slots, return_index=True)
        first = first[table[distinct] == 0]
        table[slots[first]] = keys[waiting[first]] << _ROW_BITS | waiting[first]
        waiting, slots = np.delete(waiting, first), (np.delete(slots, first) + 1) & _LAST_SLOT
    return table


def _is_looked_up(keys: Integers) -> npt.NDArray[np.bool_]:
    mask = (1 << _CHARACTER_BITS) - 1
    last, middle, first = keys & mask, (keys >> _CHARACTER_BITS) & mask, keys >> 2 * _CHARACTER_BITS
    spaces = (keys == SPACE) | ((middle == SPACE) & (last == SPACE)) | ((first != 0) & (middle == SPACE))
    return ~spaces
