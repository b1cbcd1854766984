"""Banding: how likely MinHash-LSH is to compare two documents, and how to choose bands and rows.

A signature is cut into `bands` bands of `rows` values; two documents are candidates when they agree on
a whole band. With Jaccard s this happens with probability 1 - (1 - s^rows)^bands, the S-curve.
Source: Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, chapter 3; choice of parameters as in
datasketch's `MinHashLSH` (smallest weighted sum of false positives and false negatives), given a minimum recall.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.errors import ConfigError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Banding:
    """`bands` bands of `rows` signature values each."""

    bands: int
    rows: int

    def probability(self, jaccard: float) -> float:
        """Return the probability that two documents with this Jaccard similarity become candidates."""
        return 1.0 - (1.0 - jaccard**self.rows) ** self.bands

    def curve(self) -> dict[str, float]:
        """Return the S-curve at 0.1, 0.2, ... 1.0, rounded for reports."""
        return {f"{step / 10:.1f}": round(self.probability(step / 10), 6) for step in range(1, 11)}


def choose_banding(
    threshold: float, num_perm: int, *, false_positive_weight: float = 0.5, min_recall: float = 0.0
) -> Banding:
    """Return the banding with the smallest error whose probability at the threshold is at least `min_recall`.

    The error is the weighted sum of the false positives (the integral of the probability from 0 to the threshold)
    and the false negatives (the integral of its complement from the threshold to 1). With `min_recall` 0 this is
    datasketch's choice. Raise ConfigError if no banding of `num_perm` values reaches the recall.
    """
    best: tuple[float, Banding] | None = None
    for bands in range(1, num_perm + 1):
        for rows in range(1, num_perm // bands + 1):
            banding = Banding(bands, rows)
            if banding.probability(threshold) < min_recall:
                break  # more rows only lower it
            error = _error(banding, threshold, false_positive_weight)
            if best is None or error < best[0]:
                best = error, banding
    if best is None:
        raise ConfigError(
            f"find_duplicates.min_recall: no banding of {num_perm} permutations compares {min_recall:.0%} of the "
            f"pairs at threshold {threshold}; raise num_perm or threshold, or lower min_recall"
        )
    return best[1]


def explicit_banding(bands: int, rows: int, num_perm: int) -> Banding:
    """Return the user's bands and rows. Raise ConfigError if one is missing or they need more permutations."""
    if not bands or not rows:
        raise ConfigError(f"find_duplicates: bands {bands}, rows {rows}: give both, or neither (0)")
    if bands * rows > num_perm:
        raise ConfigError(
            f"find_duplicates: {bands} bands of {rows} rows need {bands * rows} permutations, num_perm is {num_perm}"
        )
    return Banding(bands, rows)


def _error(banding: Banding, threshold: float, false_positive_weight: float) -> float:
    """Return the error of a banding as `choose_banding` defines it."""
    nodes, weights = _gauss_legendre()
    false_positives = threshold * float(np.dot(weights, _curve_at(banding, threshold * nodes)))
    right = threshold + (1.0 - threshold) * nodes
    false_negatives = (1.0 - threshold) * float(np.dot(weights, 1.0 - _curve_at(banding, right)))
    return false_positive_weight * false_positives + (1.0 - false_positive_weight) * false_negatives


def _curve_at(banding: Banding, jaccard: Array) -> Array:
    return 1.0 - (1.0 - jaccard**banding.rows) ** banding.bands


@functools.cache
def _gauss_legendre() -> tuple[Array, Array]:
    """Return nodes and weights of the Gauss-Legendre quadrature on 0 to 1, exact for polynomials up to degree 127."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    return (nodes + 1.0) / 2.0, weights / 2.0
