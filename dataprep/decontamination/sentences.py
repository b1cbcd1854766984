"""Where sentences end: for items that are found as a sentence of their own, and for cuts that go on to the end of one.

`.`, `!` and `?` end a sentence where no word follows: not in `3.14` or `example.com`. The stops of other scripts, after
which many of them leave no space, end one wherever they stand.
"""

import re
from array import array
from typing import Any

import numpy as np

from dataprep.dedup.shingles import Words
from dataprep.text.characters import wide_characters

Array = np.ndarray[Any, Any]

STOPS = ".!?"
WIDE_STOPS = "。！？｡．︒︕︖﹒﹖﹗‼‽⁇⁈⁉։؝؞؟۔܀܁܂߹।॥၊။።፧፨។៕᠃᠉"
"""Of Unicode's Sentence_Terminal those of scripts in daily use; none is part of a word, or changes when folded."""

_STOP_BYTES = np.isin(np.arange(256), np.frombuffer(STOPS.encode(), np.uint8))
_BREAK_BYTES = _STOP_BYTES | (np.arange(256) == ord("\n"))
_WIDE_POINTS = np.array([ord(stop) for stop in WIDE_STOPS], np.int32)
_SENTENCE_END = re.compile(rf"[{STOPS}]+(?!\w)|[{WIDE_STOPS}]+")


def sentence_ends(text: str) -> "array[int]":
    """The characters after those that end a sentence, ascending; eight bytes for each."""
    return array("q", (match.end() for match in _SENTENCE_END.finditer(text)))


def sentence_edges(words: Words) -> tuple[Array, Array]:
    """Which words begin a sentence, and which end one; a line break and the end of a text end one too."""
    data = words.texts.data
    starts, _, points = wide_characters(data)
    breaks = np.concatenate((np.flatnonzero(_BREAK_BYTES[data]), starts[np.isin(points, _WIDE_POINTS)]))
    # The first word after each break; where several breaks stand together, one word.
    begins = np.zeros(len(words.starts) + 1, dtype=bool)
    begins[np.searchsorted(words.starts, breaks)] = True
    begins = begins[:-1]
    # "3.14" and "example.com": the stop touches words on both sides.
    touching = np.flatnonzero(words.starts[1:] == words.starts[:-1] + words.lengths[:-1] + 1) + 1
    begins[touching[_STOP_BYTES[data[words.starts[touching] - 1]]]] = False
    begins[words.first[:-1][words.first[:-1] < len(begins)]] = True
    return begins, np.append(begins[1:], True)[: len(begins)]
