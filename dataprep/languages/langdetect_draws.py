"""The random numbers of `random.Random(seed)`, many at a time.

langdetect seeds Python's Mersenne Twister anew for each text and then draws some 300 n-grams by
`random.choice` and 7 numbers by `random.gauss`. All of them are functions of one sequence of 32-bit words
(CPython: `Modules/_randommodule.c`, `Lib/random.py`), the same for every text, so it is made once.
"""

import math
import random

import numpy as np
import numpy.typing as npt

_WORDS_AT_A_TIME = 4096


class Draws:
    """Reads the words of one seed from any place on; a place is the number of words before it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words = np.empty(0, np.uint32)

    def words(self, start: int, count: int) -> npt.NDArray[np.uint32]:
        """`count` words from place `start` on."""
        while len(self._words) < start + count:
            more = self._random.getrandbits(32 * _WORDS_AT_A_TIME).to_bytes(4 * _WORDS_AT_A_TIME, "little")
            self._words = np.concatenate([self._words, np.frombuffer(more, "<u4")])
        return self._words[start : start + count]

    def gauss_pair(self, start: int) -> tuple[float, float]:
        """What two calls of `gauss(0.0, 1.0)` give; they take four words (Box and Muller)."""
        first, second, third, fourth = self.words(start, 4).tolist()
        angle = _uniform(first, second) * (2.0 * math.pi)
        radius = math.sqrt(-2.0 * math.log(1.0 - _uniform(third, fourth)))
        return math.cos(angle) * radius, math.sin(angle) * radius

    def choices(self, start: int, least: int, size: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """What the next calls of `choice(range(size))` give, `least` of them or some more, and the place after each.

        A call takes the top bits of a word, as many as `size` has, until they are below `size`.
        """
        bits = size.bit_length()
        count = (least << bits) // size + least // 4
        while True:
            candidates = self.words(start, count) >> np.uint32(32 - bits)
            (accepted,) = np.nonzero(candidates < size)
            if len(accepted) >= least:
                return candidates[accepted], accepted + (start + 1)
            count *= 2


def _uniform(high: int, low: int) -> float:
    """`random()` from its two words: 53 bits."""
    return ((high >> 5) * 67108864.0 + (low >> 6)) * (1.0 / 9007199254740992.0)
