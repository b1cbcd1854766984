"""What each Unicode character is to the deduplication: part of a word, a word of its own, white space.

Tables over all code points, built once per process from Python's `unicodedata`, and the look-up of the
characters above ASCII in UTF-8 bytes. Scripts written without spaces (Han, kana, Thai, Lao, Burmese,
Khmer) have no word boundaries to find, so each of their letters stands as a word of its own.
"""

import functools
import unicodedata
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

INSIDE = 1
"""Belongs to a word: letters, marks, numbers and connectors such as the underscore."""
JOINS = 2
"""A letter right after it continues the word."""
BREAKS = 4
"""Starts a word of its own wherever it stands."""
TAIL = 8
"""Never starts a word after a character of a word: marks, and the further bytes of a character."""
SPACE = 16
"""White space, as `str.split` sees it."""
UNSTABLE = 32
"""May change under NFC or case folding, so its text takes the slow path."""

WORD = INSIDE | JOINS
MARK = INSIDE | JOINS | TAIL
ALONE = INSIDE | BREAKS

_NUM_CODE_POINTS = 0x110000
# Blocks whose letters are words of their own.
_SPACELESS = (
    *((0x0E00, 0x0E80), (0x0E80, 0x0F00), (0x1000, 0x10A0), (0x1780, 0x1800)),  # Thai, Lao, Burmese, Khmer
    *((0x3005, 0x3008), (0x3040, 0x3100), (0x31F0, 0x3200), (0xFF66, 0xFF9E)),  # iteration marks, kana
    *((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xF900, 0xFB00), (0x20000, 0x33480)),  # Han
)
# Big blocks of one kind, not asked for one by one: (first, end, flags).
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
    """Flags of every code point, (0x110000,) uint8; about 0.1 s once per process."""
    flags = np.zeros(_NUM_CODE_POINTS, dtype=np.uint8)
    uniform = np.zeros(_NUM_CODE_POINTS, dtype=bool)
    for first, end, value in _UNIFORM:
        flags[first:end] = value
        uniform[first:end] = True
    alone = np.zeros(_NUM_CODE_POINTS, dtype=bool)
    for first, end in _SPACELESS:
        alone[first:end] = True
    composing = _composing_characters()
    for point in np.flatnonzero(~uniform).tolist():
        flags[point] = _flags_of(chr(point), composing, bool(alone[point]))
    return flags


def _flags_of(character: str, composing: frozenset[str], alone: bool) -> int:
    category = unicodedata.category(character)
    if category == "Cn":
        return 0
    flags = SPACE if character.isspace() else 0
    if category[0] == "M" or character in _JOINERS:
        flags |= MARK
    elif category[0] == "L":
        flags |= ALONE if alone else WORD
    elif category[0] == "N" or category == "Pc":
        flags |= WORD
    if (
        character in composing
        or unicodedata.combining(character)
        or character.casefold() != character
        or not unicodedata.is_normalized("NFC", character)
    ):
        flags |= UNSTABLE
    return flags


def _composing_characters() -> frozenset[str]:
    """Characters that NFC may merge into the one before them (NFC_Quick_Check=Maybe)."""
    jamo = {chr(point) for point in range(0x1161, 0x11C3)}
    for point in range(0xC0, 0x20000):
        if 0x3400 <= point < 0xF900:
            continue  # no decompositions there, or those of Hangul, which are computed
        pair = unicodedata.decomposition(chr(point))
        if pair and pair[0] != "<" and " " in pair:
            jamo.add(chr(int(pair.split()[1], 16)))
    return frozenset(jamo)


def wide_characters(data: Array) -> tuple[Array, Array, Array]:
    """The characters above ASCII in UTF-8 bytes: where they start, their byte counts and code points.

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
