"""The scores of a GLUE task, from its predictions. Pure: no files, no model."""

from collections.abc import Sequence
from typing import Any


def predict(logits: Sequence[Sequence[float]], num_labels: int) -> list[Any]:
    """The likeliest class of each row; the value itself for a regression (one output)."""
    if num_labels == 1:
        return [row[0] for row in logits]
    return [max(range(num_labels), key=row.__getitem__) for row in logits]


def score(task: str, labels: Sequence[Any], predictions: Sequence[Any], num_labels: int) -> dict[str, float]:
    """The scores of so many rows.

    Accuracy, F1 (of class 1 for two classes, else the mean over classes), `majority`, the accuracy of always
    answering the commonest class, and for cola the Matthews correlation. A regression (stsb) has Pearson and
    Spearman correlations instead.
    """
    found = _correlations(labels, predictions) if num_labels == 1 else _agreement(task, labels, predictions, num_labels)
    return {**{name: round(float(value), 6) for name, value in found.items()}, "rows": len(labels)}


def _correlations(labels: Sequence[float], predictions: Sequence[float]) -> dict[str, Any]:
    from scipy.stats import pearsonr, spearmanr

    if min(len(set(labels)), len(set(predictions))) < 2:
        return {"pearson": 0.0, "spearman": 0.0}  # a constant has no correlation
    pearson: Any = pearsonr(labels, predictions)
    spearman: Any = spearmanr(labels, predictions)
    return {"pearson": pearson[0], "spearman": spearman[0]}


def _agreement(task: str, labels: Sequence[int], predictions: Sequence[int], num_labels: int) -> dict[str, Any]:
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    average: Any = "binary" if num_labels == 2 else "macro"
    zero: Any = 0  # the F1 of a class that is neither there nor predicted
    found: dict[str, Any] = {
        "accuracy": accuracy_score(labels, predictions),
        "f1": f1_score(labels, predictions, average=average, zero_division=zero),
        "majority": max(labels.count(label) for label in set(labels)) / len(labels),
    }
    if task == "cola":
        found["matthews"] = matthews_corrcoef(labels, predictions)
    return found
