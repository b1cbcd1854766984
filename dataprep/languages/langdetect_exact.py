"""langdetect's verdict on a whole text, bit for bit, by our own evaluation of its algorithm.

The library (langdetect 1.0.9, a port of Nakatani Shuyo's language-detection) draws known n-grams of the
text at random, multiplies the probability of each language by the n-gram's in that language until one is
above 0.99999, does so seven times and takes the mean. Here the same floating-point operations are done in
the same order, over all languages at once, so that languages and probabilities equal those of the
library's `Detector` with the same seed and with its profiles loaded in order of name.
"""

import bisect
import functools
from collections.abc import Iterator

import numpy as np
from langdetect.detector import Detector

from dataprep.languages.langdetect_draws import Draws
from dataprep.languages.langdetect_profiles import Floats, Integers, load_profiles
from dataprep.languages.langdetect_text import readable_characters

TRIALS = 7
_BLOCK = 5
"""Draws between two looks at the probabilities."""
_BLOCKS_AHEAD = 8
"""Blocks prepared at a time; a trial takes about eight."""
_DRAWS_AHEAD = 300
"""Draws prepared at a time, about as many as the seven trials take."""
_OTHERS_MAY_LEAD = 1e-3
"""Above this share of one language no other can be sure."""


def most_probable(text: str, seed: int) -> tuple[str, float] | None:
    """The language of a text and its probability; None where langdetect has no answer.

    That is where it finds no n-gram that it knows (the library raises "No features in text."), and where
    no language reaches a probability of 0.1.
    """
    profiles = load_profiles()
    ngrams = profiles.known_ngrams(readable_characters(text))
    if not len(ngrams):
        return None
    mean = mean_of_trials(profiles.rows, ngrams, seed).tolist()
    best = max(mean)
    return (profiles.languages[mean.index(best)], best) if best > Detector.PROB_THRESHOLD else None


def mean_of_trials(rows: Floats, ngrams: Integers, seed: int) -> Floats:
    """Probability of each language from the n-grams of a text, each given by its row of the profiles."""
    draws = _draws(seed)
    drawn = _DrawnNgrams(rows, ngrams, draws)
    mean = np.zeros(rows.shape[1])
    place = 0
    deviates: list[float] = []
    for _ in range(TRIALS):
        if not deviates:
            deviates = list(draws.gauss_pair(place))
            place += 4
        alpha = Detector.ALPHA_DEFAULT + deviates.pop(0) * Detector.ALPHA_WIDTH
        probabilities, place = _trial(drawn, place, alpha / Detector.BASE_FREQ)
        mean += probabilities / TRIALS
    return mean


@functools.cache
def _draws(seed: int) -> Draws:
    return Draws(seed)


def _trial(drawn: "_DrawnNgrams", place: int, weight: float) -> tuple[Floats, int]:
    """Probabilities when one language is sure or after 1,000 draws, and the place of the random words by then."""
    product = np.full(drawn.languages, 1.0 / drawn.languages)
    leader = number = 0
    for block, after in drawn.blocks(place, weight):
        block[0] = product
        np.multiply.reduce(block, 0, out=product)
        values = product.tolist()
        total = sum(values)
        product /= total
        if values[leader] / total < _OTHERS_MAY_LEAD:
            leader = values.index(max(values))
        if values[leader] / total > Detector.CONV_THRESHOLD or number >= Detector.ITERATION_LIMIT:
            return product, after
        number += _BLOCK
    raise AssertionError("there is no last block")


class _DrawnNgrams:
    """The n-grams of one text as they are drawn in turn."""

    def __init__(self, rows: Floats, ngrams: Integers, draws: Draws) -> None:
        self.languages = rows.shape[1]
        self._rows, self._ngrams, self._draws = rows, ngrams, draws
        self._shares = np.empty((0, self.languages))
        self._places: list[int] = []
        """The place of the random words after each draw."""

    def blocks(self, place: int, weight: float) -> Iterator[tuple[Floats, int]]:
        """Factors up to each look at the probabilities, and the place after them; without end.

        Row 0 is left for the probabilities so far. The first look comes after one draw, the others after five.
        """
        first = self._first_from(place)
        yield self._shares[[first, first]] + weight, self._places[first]
        first += 1
        while True:
            last = first + _BLOCKS_AHEAD * _BLOCK
            self._read_to(last)
            blocks = np.empty((_BLOCKS_AHEAD, 1 + _BLOCK, self.languages))
            shares = self._shares[first:last].reshape(_BLOCKS_AHEAD, _BLOCK, self.languages)
            np.add(shares, weight, out=blocks[:, 1:])
            yield from zip(blocks, self._places[first + _BLOCK - 1 : last : _BLOCK], strict=True)
            first = last

    def _first_from(self, place: int) -> int:
        """Number of the first draw that takes its word from `place` on; later words are not looked at before."""
        first = bisect.bisect_right(self._places, place)
        if first == len(self._places):
            self._read(place)
        return first

    def _read_to(self, last: int) -> None:
        while len(self._places) < last:
            self._read(self._places[-1])

    def _read(self, place: int) -> None:
        chosen, places = self._draws.choices(place, _DRAWS_AHEAD, len(self._ngrams))
        shares = self._rows.take(self._ngrams[chosen], 0)
        self._shares = np.concatenate([self._shares, shares]) if len(self._places) else shares
        self._places += places.tolist()
