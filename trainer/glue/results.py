"""Writes the results of a classifier on a task: scores, predictions, the worst rows, submissions, means over seeds.

predictions by split -> scores.json (per split: scores, their intervals, confusion matrix), predictions.jsonl,
worst.jsonl, confusion.svg; for test splits submission/NAME.tsv and submission/SPLIT.jsonl. A test split is never
scored, even if its labels are known, except the diagnostic set ax, which has no other split.
"""

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import store
from pipelines.command import Source
from trainer.glue.metrics import confusion, headline, intervals, predict, score
from trainer.glue.submission import SUBMISSION, write_submission
from trainer.glue.table import GlueTable, named_classes
from trainer.reporting.results import SEEDS

SUBSETS = ("clean", "kept_clean")
"""Folders of contamination/: rows that no document contained before decontamination, and none contains after it."""
WORST = 20
"""Rows of each split in worst.jsonl."""
UNAVERAGED = ("rows", "majority", "headline_of")
"""Of a split's scores, those that describe its rows and are not averaged."""
MAX_CLASSES = 50
"""Most classes of a confusion matrix; a larger one could not be read, and predictions.jsonl has the rows."""

Scores = dict[str, dict[str, Any]]
"""The contents of scores.json, by split."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Rows of a split with their predictions."""

    task: str
    split: str
    num_labels: int
    names: list[str]
    """Of the classes, by id; empty for a regression."""
    indexes: list[int]
    labels: list[Any]
    logits: list[list[float]]
    answers: list[Any]

    @property
    def is_test(self) -> bool:
        """Whether only the benchmark's server may score it."""
        return self.split.startswith("test") and self.task != "ax"

    def labelled(self) -> list[int]:
        """Return the positions of the rows with a label."""
        return [i for i, label in enumerate(self.labels) if self.num_labels == 1 or label >= 0]

    def scores(self, positions: Sequence[int]) -> dict[str, Any]:
        """Return the scores of the rows at these positions, with intervals."""
        if not positions:
            return {"rows": 0}
        labels, answers = ([column[i] for i in positions] for column in (self.labels, self.answers))
        return {
            **score(self.task, labels, answers, self.num_labels),
            "headline_of": list(headline(self.task, self.num_labels)),
            "interval": intervals(self.task, labels, answers, self.num_labels),
        }

    def confusion(self, positions: Sequence[int]) -> dict[str, Any]:
        """Return the counts of rows by class (down) and predicted class (across), with the names of the classes."""
        if not positions or not 1 < self.num_labels <= MAX_CLASSES:
            return {}
        counts = confusion([self.labels[i] for i in positions], [self.answers[i] for i in positions], self.num_labels)
        return {"confusion": {"labels": self.names, "counts": counts.tolist()}}

    def named(self, value: Any) -> Any:
        """Return the name of a class, or a score unchanged."""
        return self.names[value] if self.names else value

    def line(self, position: int) -> dict[str, Any]:
        """Return a line of predictions.jsonl; rows of a test split have no label."""
        label = None if self.is_test or (self.names and self.labels[position] < 0) else self.labels[position]
        row = {"split": self.split, "index": self.indexes[position], "label": label}
        return {**row, "prediction": self.answers[position], "logits": self.logits[position]}


def score_splits(
    task: str, predictions: Mapping[str, Any], contamination: Source | None, folder: Path, glue: Path
) -> Scores:
    """Score each split and its rows that are clean before or after decontamination; write scores and predictions.

    `predictions`: `index`, `label` and `logits` of the rows, by split; `glue`: the folder with the splits' tables.
    """
    scores: Scores = {}
    lines: list[dict[str, Any]] = []
    worst: list[dict[str, Any]] = []
    for split, rows in predictions.items():
        table = GlueTable(glue / f"{split}.arrow")
        predicted = _predicted(task, split, rows, table)
        if predicted.is_test:
            continue
        lines += [predicted.line(i) for i in range(len(predicted.indexes))]
        if not (positions := predicted.labelled()):
            continue
        scores[split] = {**predicted.scores(positions), **predicted.confusion(positions)}
        worst += worst_rows(predicted, positions, table)
        for subset in SUBSETS:
            clean = clean_rows(task, split, subset, contamination)
            if clean is not None:
                scores[f"{split}_{subset}"] = predicted.scores([i for i in positions if predicted.indexes[i] in clean])
    store.write_json(folder / "scores.json", scores)
    _write_lines(folder / "predictions.jsonl", lines)
    _write_lines(folder / "worst.jsonl", worst)
    _draw_confusion(folder / "confusion.svg", scores)
    return scores


def submit(task: str, predictions: Mapping[str, Any], folder: Path, glue: Path) -> dict[str, Any]:
    """Write the files of a submission for the test splits, and return their row counts for the stats.

    submission/SPLIT.jsonl has the rows of a test split in the form of predictions.jsonl.
    """
    files: dict[str, Any] = {}
    for split, rows in predictions.items():
        if split.startswith("test"):
            predicted = _predicted(task, split, rows, GlueTable(glue / f"{split}.arrow"))
            files |= write_submission(folder, task, split, predicted.indexes, predicted.answers, predicted.names)
            if predicted.is_test:
                lines = [predicted.line(i) for i in range(len(predicted.indexes))]
                _write_lines(folder / SUBMISSION / f"{split}.jsonl", lines)
    return {"submission": files} if files else {}


def _predicted(task: str, split: str, rows: Mapping[str, Any], table: GlueTable) -> Predicted:
    num_labels = len(rows["logits"][0])
    names = named_classes(table.label_names, num_labels)
    answers = predict(rows["logits"], num_labels)
    return Predicted(task, split, num_labels, names, rows["index"], rows["label"], rows["logits"], answers)


def worst_rows(predicted: Predicted, positions: Sequence[int], table: GlueTable) -> list[dict[str, Any]]:
    """Return the rows with the greatest loss, or for a regression the greatest error, worst first, with their texts."""
    logits = np.asarray([predicted.logits[i] for i in positions], np.float64)
    labels = np.asarray([predicted.labels[i] for i in positions])
    if predicted.num_labels == 1:
        name, amounts, probabilities = "error", np.abs(logits[:, 0] - labels), None
    else:
        logits -= logits.max(1, keepdims=True)
        log_probabilities = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        name, amounts, probabilities = (
            "loss",
            -log_probabilities[np.arange(len(positions)), labels],
            np.exp(log_probabilities.max(1)),
        )
    worst = np.argsort(-amounts, kind="stable")[:WORST].tolist()
    texts = table.texts([positions[i] for i in worst])
    return [
        {
            "split": predicted.split,
            "index": predicted.indexes[positions[i]],
            "texts": text,
            "label": predicted.named(predicted.labels[positions[i]]),
            "prediction": predicted.named(predicted.answers[positions[i]]),
            **({} if probabilities is None else {"probability": round(float(probabilities[i]), 6)}),
            name: round(float(amounts[i]), 6),
        }
        for i, text in zip(worst, texts, strict=True)
    ]


def clean_rows(task: str, split: str, subset: str, contamination: Source | None) -> set[int] | None:
    """Return the indexes of the split's rows in one of SUBSETS, or None if they are unknown."""
    file = contamination.path / subset / f"{task}.json" if contamination else None
    if file is None or not file.exists():
        return None
    rows = store.read_json(file)
    return set(rows[split]) if split in rows else None


def seed_folder(seed: int) -> str:
    """Return the name of the folder with the run of one random seed."""
    return f"seed-{seed}"


def best_seed(runs: Mapping[int, Scores]) -> int:
    """Return the seed with the highest headline score on the first validation split; of equal seeds, the first."""
    return max(runs, key=lambda seed: next(iter(runs[seed].values()))["headline"])


def write_seed_scores(runs: Mapping[int, Scores], best: int, folder: Path) -> Scores:
    """Write means and standard deviations over the seeds, and return the means.

    scores.json has the means and deviations, seeds.csv every score, and seeds.json the best seed.
    """
    first = next(iter(runs.values()))
    means = {split: _over_seeds([run[split] for run in runs.values()]) for split in first}
    store.write_json(folder / "scores.json", means)
    headlines = {seed_folder(seed): next(iter(run.values()))["headline"] for seed, run in runs.items()}
    store.write_json(folder / SEEDS, {"best": seed_folder(best), "headlines": headlines})
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(("seed", "split", "score", "value"))
    for seed, splits in runs.items():
        for split, values in splits.items():
            table.writerows((seed, split, name, values[name]) for name in _averaged(values))
    with store.create(folder / "seeds.csv") as file:
        file.write(lines.getvalue().encode())
    return means


def _over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one split's mean scores, `std` and the number of seeds, with what is the same in all runs."""
    values = {name: [run[name] for run in runs] for name in _averaged(runs[0])}
    same = {name: runs[0][name] for name in UNAVERAGED if name in runs[0]}
    means = {name: round(statistics.fmean(each), 6) for name, each in values.items()}
    std = {name: round(statistics.stdev(each), 6) for name, each in values.items()}
    return {**means, **same, "seeds": len(runs), "std": std}


def _averaged(values: Mapping[str, Any]) -> list[str]:
    return [name for name, value in values.items() if name not in UNAVERAGED and isinstance(value, (int, float))]


def metrics_of(scores: Scores) -> Scores:
    """Return the numbers for `dvc metrics show`: no matrices, and only the headline's interval."""
    numbers: Scores = {}
    for split, values in scores.items():
        numbers[split] = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        numbers[split] |= {f"{name}_std": value for name, value in values.get("std", {}).items()}
        if "interval" in values:
            low, high = values["interval"]["headline"]
            numbers[split] |= {"headline_low": low, "headline_high": high}
    return numbers


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with store.create(path) as file:
        file.write("".join(f"{json.dumps(row)}\n" for row in rows).encode())


def _draw_confusion(path: Path, scores: Scores) -> None:
    from trainer.reporting.pictures import confusions
    from trainer.reporting.task_results import Confusion

    matrices = {split: Confusion.of(values["confusion"]) for split, values in scores.items() if "confusion" in values}
    if matrices:
        with store.create(path) as file:
            file.write(confusions(matrices).encode())
