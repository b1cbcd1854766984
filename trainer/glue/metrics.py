"""The metrics of GLUE tasks and their confidence intervals, computed from predictions without files or a model.

A new metric goes here and nowhere else: its function, a row in METRICS with its heading in the report, and its name in
TASKS for each task that has it.

Every metric is a function of how often each row is drawn, so that a split and its bootstrap resamples are computed
alike: classifications from confusion matrices, regressions from weights of the rows. Shapes: R resamples, C classes,
N rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]
Values = dict[str, Floats]
"""The values of each metric by its name, one for each resample: (R,)."""

RESAMPLES = 1000
CONFIDENCE = 0.95
SEED = 1234
_CELLS_AT_ONCE = 1 << 20
"""Numbers in an array of resamples: 8 MiB, of which a dozen are held at a time."""


def _ratio(above: Floats, below: Floats) -> Floats:
    """Return `above / below`, and 0 where `below` is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _accuracy(counts_RCC: Floats) -> Floats:
    return _ratio(np.trace(counts_RCC, axis1=1, axis2=2), counts_RCC.sum((1, 2)))


def _f1_of_classes(counts_RCC: Floats) -> Floats:
    """Return the F1 of each class (R, C)."""
    hits = np.diagonal(counts_RCC, axis1=1, axis2=2)
    return _ratio(2 * hits, counts_RCC.sum(1) + counts_RCC.sum(2))


def _f1(counts_RCC: Floats) -> Floats:
    """Return the F1 of class 1, as for GLUE's sentence pairs."""
    return _f1_of_classes(counts_RCC)[:, 1]


def _macro_f1(counts_RCC: Floats) -> Floats:
    """Return the mean F1 of the classes that occur among labels or predictions."""
    present = (counts_RCC.sum(1) + counts_RCC.sum(2) > 0).sum(1)
    return _ratio(_f1_of_classes(counts_RCC).sum(1), present.astype(np.float64))


def _matthews(counts_RCC: Floats) -> Floats:
    """Return R_K (Gorodkin 2004), the correlation of K classes: Matthews' for two, the R_3 of GLUE's ax for three."""
    true, predicted, rows = counts_RCC.sum(2), counts_RCC.sum(1), counts_RCC.sum((1, 2))
    covariance = rows * np.trace(counts_RCC, axis1=1, axis2=2) - (true * predicted).sum(1)
    return _ratio(covariance, np.sqrt((rows**2 - (true**2).sum(1)) * (rows**2 - (predicted**2).sum(1))))


def _pearson(weights_RN: Floats, labels: Floats, predictions: Floats) -> Floats:
    return _correlation(weights_RN, labels[None], predictions[None])


def _spearman(weights_RN: Floats, labels: Floats, predictions: Floats) -> Floats:
    return _correlation(weights_RN, _ranks(weights_RN, labels), _ranks(weights_RN, predictions))


def _ranks(weights_RN: Floats, values: Floats) -> Floats:
    """Return the mean rank of each row, shared by equal values (R, N). Sorts once, not in each resample."""
    groups = np.unique(values, return_inverse=True)[1]
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
    sizes = np.add.reduceat(weights_RN[:, order], starts, axis=1)
    return (np.cumsum(sizes, axis=1) - (sizes - 1) / 2)[:, groups]


def _correlation(weights_RN: Floats, x: Floats, y: Floats) -> Floats:
    rows = weights_RN.sum(1, keepdims=True)
    x, y = (each - (weights_RN * each).sum(1, keepdims=True) / rows for each in (x, y))
    covariance, x_squares, y_squares = ((weights_RN * a * b).sum(1) for a, b in ((x, y), (x, x), (y, y)))
    # A constant's squares are 0 but for rounding.
    constant = np.minimum(_spread(weights_RN, x), _spread(weights_RN, y)) == 0
    return np.where(constant, 0.0, _ratio(covariance, np.sqrt(x_squares * y_squares)))


def _spread(weights_RN: Floats, values: Floats) -> Floats:
    """Return the highest minus the lowest value that is drawn (R,)."""
    drawn = weights_RN > 0
    low = np.where(drawn, values, np.inf).min(1)
    return np.where(drawn, values, -np.inf).max(1) - low


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of a classification, computed from confusion matrices, or of a regression, from weighted rows."""

    heading: str
    """Of its column in the report."""
    compute: Callable[..., Floats]
    """From `counts_RCC`, or from `weights_RN`, `labels` (N,) and `predictions` (N,), to values (R,)."""


METRICS = {
    "matthews": Metric("Matthews", _matthews),
    "accuracy": Metric("accuracy", _accuracy),
    "f1": Metric("F1", _f1),
    "macro_f1": Metric("mean F1", _macro_f1),
    "pearson": Metric("Pearson", _pearson),
    "spearman": Metric("Spearman", _spearman),
}
"""In the order of the report's columns."""
HEADINGS = {
    "headline": "score",
    **{name: metric.heading for name, metric in METRICS.items()},
    "majority": "majority guess",
    "rows": "rows",
}
"""The headings of everything that `score` returns, in the order of the report's columns."""
VALIDATION_ROWS = {
    **{
        task: {"validation": rows}
        for task, rows in {
            "cola": 1043,
            "sst2": 872,
            "mrpc": 408,
            "qqp": 40_430,
            "stsb": 1500,
            "qnli": 5463,
            "rte": 277,
            "wnli": 71,
        }.items()
    },
    "mnli": {"validation_matched": 9815, "validation_mismatched": 9832},
}
"""Rows of each labelled split of GLUE's tasks as they are published: a score of fewer is of a part."""


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """The metrics of a task."""

    names: tuple[str, ...]
    """In the order of scores.json."""
    headline: tuple[str, ...]
    """Those whose mean is the task's one score, as on GLUE's leaderboard."""


_ACCURACY = TaskMetrics(("accuracy",), headline=("accuracy",))
_ACCURACY_AND_F1 = TaskMetrics(("accuracy", "f1"), headline=("accuracy", "f1"))
_MATTHEWS = TaskMetrics(("matthews", "accuracy"), headline=("matthews",))
TASKS = {
    **dict.fromkeys(("cola", "ax"), _MATTHEWS),
    **dict.fromkeys(("mrpc", "qqp"), _ACCURACY_AND_F1),
    **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "wnli"), _ACCURACY),
}
"""The metrics of each of GLUE's classifications."""
CUSTOM = TaskMetrics(("accuracy", "macro_f1"), headline=("accuracy",))
"""Of any other classification."""
REGRESSION = TaskMetrics(("pearson", "spearman"), headline=("pearson", "spearman"))
"""Of a task with scores as labels: stsb, or one of the user's."""


def task_metrics(task: str, num_labels: int) -> TaskMetrics:
    """Return the metrics of a task; a single label makes it a regression."""
    return REGRESSION if num_labels == 1 else TASKS.get(task, CUSTOM)


def headline(task: str, num_labels: int) -> tuple[str, ...]:
    """Return the names of the metrics whose mean is the task's one score."""
    return task_metrics(task, num_labels).headline


def predict(logits: Sequence[Sequence[float]], num_labels: int) -> list[Any]:
    """Return the most likely class of each row, or the value itself for a regression (one output)."""
    if num_labels == 1:
        return [row[0] for row in logits]
    return [max(range(num_labels), key=row.__getitem__) for row in logits]


def score(task: str, labels: Sequence[Any], predictions: Sequence[Any], num_labels: int) -> dict[str, float]:
    """Return the task's metrics on these rows, with `headline`, `majority` and `rows`.

    `headline` is the task's one score; `majority` the accuracy of always answering the most common class, which a
    regression does not have. A metric that is undefined, such as a correlation with a constant, is 0.
    """
    if num_labels == 1:
        scored = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
        values = _compute(task, 1, np.ones((1, len(labels))), *scored)
    else:
        counts = confusion(labels, predictions, num_labels)
        values = _compute(task, num_labels, counts[None].astype(np.float64))
        values["majority"] = counts.sum(1).max(keepdims=True) / max(1, len(labels))
    return {**{name: round(float(value[0]), 6) for name, value in values.items()}, "rows": len(labels)}


def intervals(
    task: str, labels: Sequence[Any], predictions: Sequence[Any], num_labels: int
) -> dict[str, tuple[float, float]]:
    """Return the percentile bootstrap's 95 % interval of each metric and of the headline.

    The same rows always give the same intervals.
    """
    draws = np.random.default_rng(SEED)
    if num_labels == 1:
        scored = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
        size = len(labels)

        def resample(number: int) -> Values:
            return _compute(task, 1, _weights(draws, number, len(labels)), *scored)
    else:
        counts = confusion(labels, predictions, num_labels)
        size = counts.size

        def resample(number: int) -> Values:
            return _compute(task, num_labels, _resampled(draws, number, counts))

    tail = 50 * (1 - CONFIDENCE)
    ends = {
        name: np.percentile(values, [tail, 100 - tail]).tolist() for name, values in _in_batches(size, resample).items()
    }
    return {name: (round(low, 6), round(high, 6)) for name, (low, high) in ends.items()}


def confusion(labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> Counts:
    """Return how many rows have each class and each predicted class (C, C)."""
    cells = num_labels * np.asarray(labels, np.int64) + np.asarray(predictions, np.int64)
    return np.bincount(cells, minlength=num_labels**2).reshape(num_labels, num_labels)


def _compute(task: str, num_labels: int, *drawn: Floats) -> Values:
    """Return the task's metrics and its headline, for each resample."""
    metrics = task_metrics(task, num_labels)
    values = {name: METRICS[name].compute(*drawn) for name in metrics.names}
    return {**values, "headline": _mean(values, metrics.headline)}


def _mean(values: Mapping[str, Floats], names: Sequence[str]) -> Floats:
    return sum((values[name] for name in names), np.zeros(1)) / len(names)


def _in_batches(size: int, resample: Callable[[int], Values]) -> Values:
    """Return the metrics of all resamples, each of `size` numbers, computing as many at a time as memory allows."""
    most = max(1, min(RESAMPLES, _CELLS_AT_ONCE // max(1, size)))
    batches = [resample(min(most, RESAMPLES - start)) for start in range(0, RESAMPLES, most)]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def _resampled(draws: np.random.Generator, number: int, counts: Counts) -> Floats:
    """Return confusion matrices of as many rows, drawn with replacement.

    This is a multinomial draw over the cells that have any rows.
    """
    cells = np.flatnonzero(counts)
    drawn = np.zeros((number, counts.size))
    drawn[:, cells] = draws.multinomial(counts.sum(), counts.ravel()[cells] / counts.sum(), size=number)
    return drawn.reshape(number, *counts.shape)


def _weights(draws: np.random.Generator, number: int, rows: int) -> Floats:
    """Return how often each row is drawn when as many are drawn as there are (R, N)."""
    drawn = draws.integers(rows, size=(number, rows)) + rows * np.arange(number)[:, None]
    return np.bincount(drawn.ravel(), minlength=number * rows).reshape(number, rows).astype(np.float64)
