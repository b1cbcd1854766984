"""The scores of a GLUE task from its predictions, with confidence intervals. Pure: no files, no model.

Every score is a function of how often a row is drawn, so that a split and its bootstrap resamples go the same way:
classes through their confusion matrix, scores through weights of the rows. Shapes: R resamples, C classes, N rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]
Named = dict[str, Floats]
"""A score by name, of each resample: (R,)."""

OFFICIAL = {
    "cola": ("matthews", "accuracy"),
    "mrpc": ("accuracy", "f1"),
    "qqp": ("accuracy", "f1"),
    **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "wnli"), ("accuracy",)),
    "ax": ("matthews", "accuracy"),
}
"""Scores of each of GLUE's classifications; any other task has accuracy and the mean F1 of its classes."""
HEADLINES = {"cola": ("matthews",), "mrpc": ("accuracy", "f1"), "qqp": ("accuracy", "f1"), "ax": ("matthews",)}
"""Scores whose mean stands on GLUE's leaderboard; elsewhere accuracy, and of a regression both correlations."""
CORRELATIONS = ("pearson", "spearman")

RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 1234
_CELLS_AT_ONCE = 1 << 20
"""Numbers in an array of resamples: 8 MiB, of which a dozen are held at a time."""


def predict(logits: Sequence[Sequence[float]], num_labels: int) -> list[Any]:
    """The likeliest class of each row; the value itself for a regression (one output)."""
    if num_labels == 1:
        return [row[0] for row in logits]
    return [max(range(num_labels), key=row.__getitem__) for row in logits]


def headline(task: str, num_labels: int) -> tuple[str, ...]:
    """Names of the scores whose mean is the task's one score."""
    return CORRELATIONS if num_labels == 1 else HEADLINES.get(task, ("accuracy",))


def score(task: str, labels: Sequence[Any], predictions: Sequence[Any], num_labels: int) -> dict[str, float]:
    """The task's scores for so many rows; `headline`, its one score; `majority`; `rows`.

    `majority` is the accuracy of always answering the commonest class; a regression has none. Where a score has no
    value, as a correlation with a constant, it is 0.
    """
    if num_labels == 1:
        values = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
        found = _with_headline(task, 1, correlations(np.ones((1, len(labels))), *values))
    else:
        counts = confusion(labels, predictions, num_labels)
        found = _with_headline(task, num_labels, agreement(task, counts[None].astype(np.float64)))
        found["majority"] = counts.sum(1).max(keepdims=True) / max(1, len(labels))
    return {**{name: round(float(value[0]), 6) for name, value in found.items()}, "rows": len(labels)}


def intervals(
    task: str, labels: Sequence[Any], predictions: Sequence[Any], num_labels: int
) -> dict[str, tuple[float, float]]:
    """The percentile bootstrap's 95 % interval of each score and the headline, always the same for the same rows."""
    draws = np.random.default_rng(SEED)
    if num_labels == 1:
        values = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
        found = _in_pieces(len(labels), lambda number: correlations(_weights(draws, number, len(labels)), *values))
    else:
        counts = confusion(labels, predictions, num_labels)
        found = _in_pieces(counts.size, lambda number: agreement(task, _resampled(draws, number, counts)))
    tail = 50 * (1 - CONFIDENCE)
    ends = {
        name: np.percentile(values, [tail, 100 - tail]).tolist()
        for name, values in _with_headline(task, num_labels, found).items()
    }
    return {name: (round(low, 6), round(high, 6)) for name, (low, high) in ends.items()}


def confusion(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> Counts:
    """Rows by their class and the predicted one (C, C)."""
    cells = num_labels * np.asarray(labels, np.int64) + np.asarray(predictions, np.int64)
    return np.bincount(cells, minlength=num_labels**2).reshape(num_labels, num_labels)


def agreement(task: str, counts_RCC: Floats) -> Named:
    """The scores of a classification, from confusion matrices."""
    every = {"accuracy": _accuracy, "f1": _f1, "macro_f1": _macro_f1, "matthews": _matthews}
    return {name: every[name](counts_RCC) for name in OFFICIAL.get(task, ("accuracy", "macro_f1"))}


def correlations(weights_RN: Floats, labels: Floats, predictions: Floats) -> Named:
    """Pearson and Spearman correlations where each row counts as often as its weight says."""
    ranks = _ranks(weights_RN, labels), _ranks(weights_RN, predictions)
    return {
        "pearson": _pearson(weights_RN, labels[None], predictions[None]),
        "spearman": _pearson(weights_RN, *ranks),
    }


def _with_headline(task: str, num_labels: int, found: Named) -> Named:
    parts = headline(task, num_labels)
    return {**found, "headline": sum((found[name] for name in parts), np.zeros(1)) / len(parts)}


def _in_pieces(size: int, draw: Callable[[int], Named]) -> Named:
    """The scores of all resamples, each of `size` numbers, as many at a time as the memory allows."""
    most = max(1, min(RESAMPLES, _CELLS_AT_ONCE // max(1, size)))
    pieces = [draw(min(most, RESAMPLES - start)) for start in range(0, RESAMPLES, most)]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _resampled(draws: np.random.Generator, number: int, counts: Counts) -> Floats:
    """Confusion matrices of as many rows, each drawn from all: a multinomial draw over the cells that have any."""
    cells = np.flatnonzero(counts)
    drawn = np.zeros((number, counts.size))
    drawn[:, cells] = draws.multinomial(counts.sum(), counts.ravel()[cells] / counts.sum(), size=number)
    return drawn.reshape(number, *counts.shape)


def _weights(draws: np.random.Generator, number: int, rows: int) -> Floats:
    """How often each row is drawn, in as many draws as there are rows."""
    drawn = draws.integers(rows, size=(number, rows)) + rows * np.arange(number)[:, None]
    return np.bincount(drawn.ravel(), minlength=number * rows).reshape(number, rows).astype(np.float64)


def _ratio(above: Floats, below: Floats) -> Floats:
    """`above / below`, and 0 where there is nothing below."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _accuracy(counts_RCC: Floats) -> Floats:
    return _ratio(np.trace(counts_RCC, axis1=1, axis2=2), counts_RCC.sum((1, 2)))


def _f1_of_classes(counts_RCC: Floats) -> Floats:
    """F1 of each class (R, C)."""
    hits = np.diagonal(counts_RCC, axis1=1, axis2=2)
    return _ratio(2 * hits, counts_RCC.sum(1) + counts_RCC.sum(2))


def _f1(counts_RCC: Floats) -> Floats:
    """Of class 1, as for GLUE's pairs."""
    return _f1_of_classes(counts_RCC)[:, 1]


def _macro_f1(counts_RCC: Floats) -> Floats:
    """The mean over the classes that are there or predicted."""
    there = (counts_RCC.sum(1) + counts_RCC.sum(2) > 0).sum(1)
    return _ratio(_f1_of_classes(counts_RCC).sum(1), there.astype(np.float64))


def _matthews(counts_RCC: Floats) -> Floats:
    """R_K (Gorodkin 2004), the correlation of any number of classes: GLUE's R_3, and Matthews' for two."""
    true, predicted, rows = counts_RCC.sum(2), counts_RCC.sum(1), counts_RCC.sum((1, 2))
    covariance = rows * np.trace(counts_RCC, axis1=1, axis2=2) - (true * predicted).sum(1)
    return _ratio(covariance, np.sqrt((rows**2 - (true**2).sum(1)) * (rows**2 - (predicted**2).sum(1))))


def _ranks(weights_RN: Floats, values: Floats) -> Floats:
    """The mean rank of each row among all, equal ones sharing theirs (R, N): sorted once, not in each resample."""
    groups = np.unique(values, return_inverse=True)[1]
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sizes = np.add.reduceat(weights_RN[:, order], starts, axis=1)
    return (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, groups]


def _pearson(weights_RN: Floats, x: Floats, y: Floats) -> Floats:
    rows = weights_RN.sum(1, keepdims=True)
    x, y = (each - (weights_RN * each).sum(1, keepdims=True) / rows for each in (x, y))
    covariance, x_squares, y_squares = ((weights_RN * a * b).sum(1) for a, b in ((x, y), (x, x), (y, y)))
    # A constant's squares are 0 but for rounding.
    constant = np.minimum(_spread(weights_RN, x), _spread(weights_RN, y)) == 0
    return np.where(constant, 0.0, _ratio(covariance, np.sqrt(x_squares * y_squares)))


def _spread(weights_RN: Floats, values: Floats) -> Floats:
    """Highest minus lowest value that is drawn."""
    drawn = weights_RN > 0
    low = np.where(drawn, values, np.inf).min(1)
    return np.where(drawn, values, -np.inf).max(1) - low
