"""langdetect's verdict on a text, bit for bit, by an evaluation of its algorithm that is many times faster.

The library (langdetect 1.0.9, a port of Nakatani Shuyo's language-detection) reads the first 10,000 characters of a
text, without URLs and e-mail addresses. It draws known n-grams at random, multiplies the probability of each language
by that of the n-gram in the language until one language is above 0.99999, does so seven times, and takes the mean. Here
the same floating-point operations are done in the same order, over all languages at once, so that languages and
probabilities equal those of the library's `Detector` with the same seed and with its profiles loaded in order of name.
"""

import bisect
import functools
import math
import random
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from langdetect.detector import Detector
from langdetect.utils.ngram import NGram

from dataprep.clean.language.langdetect_profiles import CodePoints, Floats, Integers, load_profiles

TRIALS = 7
_BLOCK = 5
"""Draws between two checks of the probabilities."""
_BLOCKS_AHEAD = 8
"""Blocks prepared at a time; a trial takes about eight."""
_DRAWS_AHEAD = 300
"""Draws prepared at a time, about as many as the seven trials need."""
_ANOTHER_MAY_LEAD = 1e-3
"""While one language has more than this share, no other can reach the threshold."""
_WORDS_AT_A_TIME = 4096
MAX_CHARS = 10_000
"""langdetect's limit, counted after each URL and address has become one space."""

# Matches of the library's three patterns contain only these characters, so a text can be cut before any other.
_MATCHED = "-_.?&~;+=/#:@0-9A-Za-z" + NGram.TO_NORMALIZE_VI_CHARS + NGram.DMARK_CLASS
_BOUNDARY = re.compile(f"[^{_MATCHED}]")
_COMBINING = re.compile(f"[{NGram.DMARK_CLASS}]")
# The library's MAIL_RE in two halves: tried at each @ instead of at each letter, it cannot become quadratic.
_MAIL_NAME = re.compile(r"[-_.0-9A-Za-z]{1,64}\Z")
_MAIL_HOST = re.compile(r"@[-_0-9A-Za-z]{1,255}[-_.0-9A-Za-z]{1,255}")
_MAX_MAIL_NAME = 64


def most_probable(text: str, seed: int) -> tuple[str, float] | None:
    """Return the language of a text and its probability; None if langdetect has no answer.

    It has none if the text has no n-gram that it knows (the library raises "No features in text."), or if no language
    reaches a probability of 0.1.
    """
    profiles = load_profiles()
    ngrams = profiles.known_ngrams(readable_characters(text))
    if not len(ngrams):
        return None
    mean = mean_of_trials(profiles.rows, ngrams, seed).tolist()
    best = max(mean)
    return (profiles.languages[mean.index(best)], best) if best > Detector.PROB_THRESHOLD else None


def mean_of_trials(rows: Floats, ngrams: Integers, seed: int) -> Floats:
    """Return the probability of each language from the n-grams of a text, which are rows of the profiles."""
    draws = _draws(seed)
    drawn = _DrawnNgrams(rows, ngrams, draws)
    mean = np.zeros(rows.shape[1])
    position = 0
    deviates: list[float] = []
    for _ in range(TRIALS):
        if not deviates:
            deviates = list(draws.gauss_pair(position))
            position += 4
        alpha = Detector.ALPHA_DEFAULT + deviates.pop(0) * Detector.ALPHA_WIDTH
        probabilities, position = _trial(drawn, position, alpha / Detector.BASE_FREQ)
        mean += probabilities / TRIALS
    return mean


@functools.cache
def _draws(seed: int) -> "Draws":
    return Draws(seed)


def _trial(drawn: "_DrawnNgrams", position: int, weight: float) -> tuple[Floats, int]:
    """Return the probabilities when one language is sure or after 1,000 draws, and the position of the random words."""
    product = np.full(drawn.languages, 1.0 / drawn.languages)
    leader = number = 0
    for block, after in drawn.blocks(position, weight):
        block[0] = product
        np.multiply.reduce(block, 0, out=product)
        values = product.tolist()
        total = sum(values)
        product /= total
        if values[leader] / total < _ANOTHER_MAY_LEAD:
            leader = values.index(max(values))
        if values[leader] / total > Detector.CONV_THRESHOLD or number >= Detector.ITERATION_LIMIT:
            return product, after
        number += _BLOCK
    raise AssertionError("blocks never end")


class _DrawnNgrams:
    """The n-grams of one text in the order in which they are drawn."""

    def __init__(self, rows: Floats, ngrams: Integers, draws: "Draws") -> None:
        self.languages = rows.shape[1]
        self._rows, self._ngrams, self._draws = rows, ngrams, draws
        self._shares = np.empty((0, self.languages))
        self._positions: list[int] = []
        """The position of the random words after each draw."""

    def blocks(self, position: int, weight: float) -> Iterator[tuple[Floats, int]]:
        """Yield the factors up to each check of the probabilities, and the position after them, without end.

        Row 0 is left free for the current probabilities. The first check comes after one draw, the others after five.
        """
        first = self._first_from(position)
        yield self._shares[[first, first]] + weight, self._positions[first]
        first += 1
        while True:
            last = first + _BLOCKS_AHEAD * _BLOCK
            self._read_to(last)
            blocks = np.empty((_BLOCKS_AHEAD, 1 + _BLOCK, self.languages))
            shares = self._shares[first:last].reshape(_BLOCKS_AHEAD, _BLOCK, self.languages)
            np.add(shares, weight, out=blocks[:, 1:])
            yield from zip(blocks, self._positions[first + _BLOCK - 1 : last : _BLOCK], strict=True)
            first = last

    def _first_from(self, position: int) -> int:
        """Return the number of the first draw that reads its random word at `position` or later."""
        first = bisect.bisect_right(self._positions, position)
        if first == len(self._positions):
            self._read(position)
        return first

    def _read_to(self, last: int) -> None:
        while len(self._positions) < last:
            self._read(self._positions[-1])

    def _read(self, position: int) -> None:
        chosen, positions = self._draws.choices(position, _DRAWS_AHEAD, len(self._ngrams))
        shares = self._rows.take(self._ngrams[chosen], 0)
        self._shares = np.concatenate([self._shares, shares]) if len(self._positions) else shares
        self._positions += positions.tolist()


class Draws:
    """The random numbers of `random.Random(seed)`, many at a time; a position is the number of 32-bit words before it.

    langdetect seeds Python's Mersenne Twister anew for each text and then draws some 300 n-grams by `random.choice` and
    7 numbers by `random.gauss`. All of them are functions of one sequence of 32-bit words (CPython:
    `Modules/_randommodule.c`, `Lib/random.py`), the same for every text, so the sequence is made once.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._words = np.empty(0, np.uint32)

    def words(self, start: int, count: int) -> npt.NDArray[np.uint32]:
        """Return `count` words from position `start` on."""
        while len(self._words) < start + count:
            more = self._random.getrandbits(32 * _WORDS_AT_A_TIME).to_bytes(4 * _WORDS_AT_A_TIME, "little")
            self._words = np.concatenate([self._words, np.frombuffer(more, "<u4")])
        return self._words[start : start + count]

    def gauss_pair(self, start: int) -> tuple[float, float]:
        """Return the results of two calls of `gauss(0.0, 1.0)`, which use four words (Box and Muller)."""
        first, second, third, fourth = self.words(start, 4).tolist()
        angle = _uniform(first, second) * (2.0 * math.pi)
        radius = math.sqrt(-2.0 * math.log(1.0 - _uniform(third, fourth)))
        return math.cos(angle) * radius, math.sin(angle) * radius

    def choices(self, start: int, least: int, size: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Return the results of at least `least` calls of `choice(range(size))`, and the position after each.

        A call takes as many top bits of a word as `size` has, until their value is below `size`.
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
    """Return the result of `random()` from its two words: 53 bits."""
    return ((high >> 5) * 67108864.0 + (low >> 6)) * (1.0 / 9007199254740992.0)


def readable_characters(text: str) -> CodePoints:
    """Return the code points of which langdetect makes n-grams.

    Equal to langdetect 1.0.9 (`langdetect/detector.py`: `append`, `cleaning_text`), but of a long text only as much is
    read as MAX_CHARS requires. The library also collapses runs of spaces. That is left out here, because a second space
    neither counts as a character of a script nor becomes part of an n-gram.
    """
    start = first_characters(text)
    if start.isascii():
        return np.frombuffer(start.encode("ascii"), np.uint8)
    return _without_stray_latin(np.frombuffer(start.encode("utf-32-le", "surrogatepass"), "<u4"))


def first_characters(text: str) -> str:
    """Return the first 10,000 characters of the text after the library's substitutions."""
    chars = MAX_CHARS
    while True:
        boundary = _BOUNDARY.search(text, chars) if chars < len(text) else None
        part = text[: boundary.start()] if boundary else text
        replaced = _replace(part)
        if not boundary or len(replaced) >= MAX_CHARS:
            return replaced[:MAX_CHARS]
        chars *= 2


def _replace(text: str) -> str:
    if "://" in text:
        text = Detector.URL_RE.sub(" ", text)
    if "@" in text:
        text = _replace_mail(text)
    if not text.isascii() and _COMBINING.search(text):
        text = NGram.normalize_vi(text)
    return text


def _replace_mail(text: str) -> str:
    """Return `Detector.MAIL_RE.sub(" ", text)`: replace the leftmost name of at most 64 characters before each @."""
    parts: list[str] = []
    done = 0
    for host in _MAIL_HOST.finditer(text):
        name = _MAIL_NAME.search(text[max(done, host.start() - _MAX_MAIL_NAME) : host.start()])
        if name:
            parts.append(text[done : host.start() - len(name.group())])
            done = host.end()
    return " ".join([*parts, text[done:]])


def _without_stray_latin(characters: CodePoints) -> CodePoints:
    """Remove the characters from A to z if other scripts outweigh them two to one.

    The library intends to leave Latin Extended Additional out of the other scripts, but compares a number with a name,
    so every character from U+0300 on counts.
    """
    latin = (characters >= ord("A")) & (characters <= ord("z"))
    if 2 * np.count_nonzero(latin) < np.count_nonzero(characters >= 0x300):
        return characters[~latin]
    return characters
