"""Logistic regression whose result is the same to the bit, whatever the processor, the library and the workers.

Only operations are used that IEEE 754 rounds in one way (+, -, *, /, square root, a power of two), and each sum is
taken in one order: `np.bincount` adds weights one after the other. Neither `np.exp`, whose last bit depends on the
processor, nor BLAS and `np.sum`, which add in an order of their own, has a part in it. scikit-learn promises neither,
and is no dependency; a test compares the weights with its.

The rows are sets of buckets: each has the value 1 / sqrt(size of the set) in its buckets, so that the length of a text
does not count, and 1 for the bias. What is minimised is the mean logistic loss plus l2 / 2 times the squared length of
the weights, the bias among them. Each class has half of the mean's weight, however many examples it has. The method is
Nesterov's for strongly convex functions, with the step and the momentum that the bounds of the curvature give: it has
neither a line search nor chance.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataprep.quality.features import Features

Array = np.ndarray[Any, Any]

_BLOCK = 1 << 21
"""Features that are looked at together; part of the result, since sums of blocks are added."""
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
"""ln 2 in two parts (fdlibm, e_exp.c); the first ends in zeros, so that its product with a small integer is exact."""
_FACTORIALS = (1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880, 3628800, 39916800, 479001600, 6227020800)
_FARTHEST = 700.0


@dataclass(frozen=True, slots=True)
class Fit:
    """The weights, the bias, and how they were reached."""

    weights: Array
    bias: float
    steps: int
    gradient: float
    """The largest component of the gradient at the end."""


def fit(features: Features, good: Array, bits: int, *, l2: float, tolerance: float, steps: int) -> Fit:
    """Fit weights to texts; `good` says which of them are. Ends when no component of the gradient exceeds `tolerance`.

    Takes at most `steps` steps, each of which reads all features twice.
    """
    sizes = np.diff(features.first)
    values = 1.0 / np.sqrt(np.maximum(sizes, 1))
    num_good = int(good.sum())
    shares = np.where(good, 0.5 / num_good, 0.5 / (len(good) - num_good))
    steepest = 0.5 + l2  # a quarter of the largest squared length of a row, which is 2 with its bias, plus l2
    root, least = np.sqrt(steepest), np.sqrt(l2)
    momentum = float((root - least) / (root + least))
    weights, bias = np.zeros(1 << bits), 0.0
    at_weights, at_bias = weights, bias
    step, largest = 0, np.inf
    while step < steps:
        step += 1
        wrong = sigmoid(margins(features, values, at_weights, at_bias)) - good
        pull = wrong * shares
        slope = _gather(features, pull * values, bits) + l2 * at_weights
        bias_slope = float(np.cumsum(pull)[-1]) + l2 * at_bias
        largest = max(float(np.abs(slope).max()), abs(bias_slope))
        new_weights, new_bias = at_weights - slope / steepest, at_bias - bias_slope / steepest
        at_weights, at_bias = (
            new_weights + momentum * (new_weights - weights),
            new_bias + momentum * (new_bias - bias),
        )
        weights, bias = new_weights, new_bias
        if largest <= tolerance:
            break
    return Fit(weights, bias, step, largest)


def margins(features: Features, values: Array, weights: Array, bias: float) -> Array:
    """Return bias + value * sum of the weights of each text."""
    sums = np.zeros(len(values))
    for rows, buckets, count in _blocks(features):
        sums[rows] += np.bincount(count, weights[buckets], rows.stop - rows.start)
    return values * sums + bias


def _gather(features: Features, pull: Array, bits: int) -> Array:
    """Return the sum of `pull` over the texts that have each bucket."""
    slope = np.zeros(1 << bits)
    for rows, buckets, count in _blocks(features):
        slope += np.bincount(buckets, pull[rows][count], 1 << bits)
    return slope


def _blocks(features: Features) -> Iterator[tuple[slice, Array, Array]]:
    """Yield runs of whole texts: which, their buckets, and the number of the text of each bucket within the run."""
    start, num_texts = 0, len(features.first) - 1
    while start < num_texts:
        most = features.first[start] + _BLOCK
        stop = max(start + 1, int(np.searchsorted(features.first, most, side="right")) - 1)
        sizes = np.diff(features.first[start : stop + 1])
        buckets = features.buckets[features.first[start] : features.first[stop]]
        yield slice(start, stop), buckets, np.repeat(np.arange(stop - start), sizes)
        start = stop


def sigmoid(values: Array) -> Array:
    """Return 1 / (1 + exp(-value)), within two units in the last place, by operations that all machines round alike."""
    small = _exp_of_negative(np.abs(values))
    return np.where(values >= 0, 1.0, small) / (1.0 + small)


def _exp_of_negative(values: Array) -> Array:
    """Return exp(-value) for values from 0 on: a power of two times a polynomial."""
    values = -np.minimum(values, _FARTHEST)
    power = np.floor(values * _LOG2_E + 0.5)
    rest = (values - power * _LN2_HIGH) - power * _LN2_LOW
    result = np.zeros_like(rest)
    for factorial in reversed(_FACTORIALS):
        result = result * rest + 1.0 / factorial
    return np.ldexp(result, power.astype(np.int32))


def area_under_curve(scores_good: Array, scores_bad: Array) -> float:
    """Return the share of pairs of a good and a bad text in which the good one scores higher; ties count half."""
    ordered = np.sort(scores_bad)
    below = np.searchsorted(ordered, scores_good, side="left")
    up_to = np.searchsorted(ordered, scores_good, side="right")
    return int((below + up_to).sum()) / (2 * len(scores_good) * len(scores_bad))
