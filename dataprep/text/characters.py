"""Classes of Unicode characters for the deduplication: part of a word, a word by itself, white space.

Tables over all code points, built once per process from Python's `unicodedata`, and the decoding of the characters
above ASCII in UTF-8 bytes. Scripts written without spaces (Han, kana, Thai, Lao, Burmese, Khmer) do not mark word
boundaries, so each of their letters counts as a word.
"""

import functools
import operator
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

INSIDE = 1
"""Belongs to a word: letters, marks, numbers and connectors such as the underscore."""
JOINS = 2
"""A letter right after it continues the word."""
BREAKS = 4
"""Always begins a new word."""
TAIL = 8
"""Never begins a word after a character of a word: marks, and the continuation bytes of a character."""
SPACE = 16
"""White space, as for `str.split`."""
UNSTABLE = 32
"""May change under NFC or case folding, so texts that contain it take the slow path."""

WORD = INSIDE | JOINS
MARK = INSIDE | JOINS | TAIL
ALONE = INSIDE | BREAKS

_NUM_CODE_POINTS = 0x110000
# Blocks whose letters each count as a word.
_SPACELESS = (
    *((0x0E00, 0x0E80), (0x0E80, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800)),  # Thai, Lao, Burmese, Khmer
    *((0x3005, 0x3008), (0x3040, 0x3100), (0x31F0, 0x3200), (0xFF66, 0xFF9E)),  # iteration marks, kana
    *((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x33480)),  # Han
)
# Large uniform blocks, whose characters are not looked up one by one: (first, end, flags).
_UNIFORM = (
    (0x3400, 0x4DC0, ALONE),
    (0x4E00, 0xA000, ALONE),
    (0xAC00, 0xD7A4, WORD),
    (0xE000, 0xF900, 0),
    (0x20000, 0x2A6E0, ALONE),
    (0x2A700, 0x2F800, ALONE),
    (0x30000, 0x33480, ALONE),
    (0x33480, 0xE0100, 0),
    (0xE0200, _NUM_CODE_POINTS, 0),
)
_JOINERS = ("\u200c", "\u200d")  # zero-width joiners inside Persian and Indic words


@functools.cache
def character_flags() -> Array:
    """Return the flags of every code point, (0x110000,) uint8; takes about 0.04 s, once per process."""
    flags = np.zeros(_NUM_CODE_POINTS, dtype=np.uint8)
    uniform = np.zeros(_NUM_CODE_POINTS, dtype=bool)
    for first, end, value in _UNIFORM:
        flags[first:end] = value
        uniform[first:end] = True
    alone = np.zeros(_NUM_CODE_POINTS, dtype=bool)
    for first, end in _SPACELESS:
        alone[first:end] = True
    points = np.flatnonzero(~uniform)
    categories = np.array([unicodedata.category(chr(point)) for point in points.tolist()])
    assigned = categories != "Cn"
    points, categories = points[assigned], categories[assigned]
    characters = [chr(point) for point in points.tolist()]
    flags[points] = _word_flags(points, categories, alone[points])
    flags[points] |= _which(str.isspace, characters) * np.uint8(SPACE) | _unstable(characters) * np.uint8(UNSTABLE)
    return flags


def _word_flags(points: Array, categories: Array, alone: Array) -> Array:
    """Return the flags that concern words; `alone` says which characters belong to a script without spaces."""
    kinds = categories.view("U1")[::2]
    flags = np.where((kinds == "L") | (kinds == "N") | (categories == "Pc"), WORD, 0).astype(np.uint8)
    flags[(kinds == "L") & alone] = ALONE
    flags[(kinds == "M") | np.isin(points, [ord(joiner) for joiner in _JOINERS])] = MARK
    return flags


def _unstable(characters: list[str]) -> Array:
    """Return which characters NFC or case folding may change, alone or after another character."""
    is_nfc = functools.partial(unicodedata.is_normalized, "NFC")
    folds = np.fromiter(map(operator.ne, map(str.casefold, characters), characters), bool, len(characters))
    composes = _which(_composing_characters().__contains__, characters)
    return folds | composes | _which(unicodedata.combining, characters) | ~_which(is_nfc, characters)


def _which(predicate: Callable[[str], Any], characters: list[str]) -> Array:
    """Return for which characters `predicate` is true, (num_characters,) bool."""
    return np.fromiter(map(predicate, characters), bool, len(characters))


def _composing_characters() -> frozenset[str]:
    """Return the characters that NFC may merge into the one before them (NFC_Quick_Check=Maybe)."""
    composing = {chr(point) for point in range(0x1161, 0x11C3)}
    for point in range(0xC0, 0x20000):
        if 0x3400 <= point < 0xF900:
            continue  # no decompositions there but those of Hangul, which are computed
        pair = unicodedata.decomposition(chr(point))
        if pair and pair[0] != "<" and " " in pair:
            composing.add(chr(int(pair.split()[1], 16)))
    return frozenset(composing)


def wide_characters(data: Array) -> tuple[Array, Array, Array]:
    """Return where the characters above ASCII start in UTF-8 bytes, their byte counts and their code points.

    `data` must be whole characters of valid UTF-8.
    """
    starts = np.flatnonzero(data >= 0xC0)
    lead = data[starts].astype(np.int32)
    sizes = 2 + (lead >= 0xE0) + (lead >= 0xF0).astype(np.int64)
    points = lead & np.array([0, 0, 0x1F, 0x0F, 0x07], dtype=np.int32)[sizes]
    for extra in (1, 2, 3):
        longer = sizes > extra
        points[longer] = points[longer] << 6 | (data[starts[longer] + extra] & 0x3F)
    return starts, sizes, points
