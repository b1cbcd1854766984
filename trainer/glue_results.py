"""What a classifier predicted on a task's splits, written down: scores, predictions, the worst rows, submissions.

predictions by split -> scores.json (per split: scores, their intervals, confusion matrix), predictions.jsonl,
worst.jsonl, confusion.svg; of tests submission/NAME.tsv and submission/SPLIT.jsonl. A test is never scored, even where
its answers are at hand; the diagnostic set ax, which is nothing but a test, is where they are.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import store
from pipelines.command import Source
from trainer.glue_scores import confusion, headline, intervals, predict, score
from trainer.glue_submission import SUBMISSION, write_submission
from trainer.glue_table import GlueTable, named_classes

SUBSETS = ("clean", "kept_clean")
"""Folders of contamination/: rows that no document held before decontamination, and that none holds after it."""
WORST = 20
"""Rows of each split in worst.jsonl."""
MAX_CLASSES = 50
"""A confusion matrix of more is left out: no one reads it, and predictions.jsonl has the rows."""

Scores = dict[str, dict[str, Any]]
"""What scores.json holds, by split."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Rows of a split with what was predicted for them."""

    task: str
    split: str
    num_labels: int
    names: list[str]
    """Of the classes, by id; none for a score."""
    indexes: list[int]
    labels: list[Any]
    logits: list[list[float]]
    answers: list[Any]

    @property
    def is_test(self) -> bool:
        """Whether its answers are the benchmark's own affair."""
        return self.split.startswith("test") and self.task != "ax"

    def scored(self) -> list[int]:
        """Places of the rows to be scored: those with a label."""
        return [i for i, label in enumerate(self.labels) if self.num_labels == 1 or label >= 0]

    def scores(self, places: Sequence[int]) -> dict[str, Any]:
        """The scores of these rows, and the intervals of the scores."""
        if not places:
            return {"rows": 0}
        labels, answers = ([each[i] for i in places] for each in (self.labels, self.answers))
        return {
            **score(self.task, labels, answers, self.num_labels),
            "headline_of": list(headline(self.task, self.num_labels)),
            "interval": intervals(self.task, labels, answers, self.num_labels),
        }

    def confusion(self, places: Sequence[int]) -> dict[str, Any]:
        """Rows by class (down) and predicted class (across), with the names of the classes."""
        if not places or not 1 < self.num_labels <= MAX_CLASSES:
            return {}
        counts = confusion([self.labels[i] for i in places], [self.answers[i] for i in places], self.num_labels)
        return {"confusion": {"labels": self.names, "counts": counts.tolist()}}

    def named(self, value: Any) -> Any:
        """A class by its name, a score as it is."""
        return self.names[value] if self.names else value

    def line(self, place: int) -> dict[str, Any]:
        """A line of predictions.jsonl; a test's rows have no label."""
        label = None if self.is_test or (self.names and self.labels[place] < 0) else self.labels[place]
        row = {"split": self.split, "index": self.indexes[place], "label": label}
        return {**row, "prediction": self.answers[place], "logits": self.logits[place]}


def score_splits(
    task: str, predictions: Mapping[str, Any], contamination: Source | None, folder: Path, glue: Path
) -> Scores:
    """Scores per split, and on its rows that are clean before and after decontamination; written beside predictions.

    `predictions`: by split its rows' `index`, `label` and `logits`; `glue`: the folder with the tables of the splits.
    """
    scores: Scores = {}
    lines: list[dict[str, Any]] = []
    worst: list[dict[str, Any]] = []
    for split, rows in predictions.items():
        table = GlueTable(glue / f"{split}.arrow")
        found = _predicted(task, split, rows, table)
        if found.is_test:
            continue
        lines += [found.line(i) for i in range(len(found.indexes))]
        if not (places := found.scored()):
            continue
        scores[split] = {**found.scores(places), **found.confusion(places)}
        worst += worst_rows(found, places, table)
        for subset in SUBSETS:
            clean = clean_rows(task, split, subset, contamination)
            if clean is not None:
                scores[f"{split}_{subset}"] = found.scores([i for i in places if found.indexes[i] in clean])
    store.write_json(folder / "scores.json", scores)
    _write_lines(folder / "predictions.jsonl", lines)
    _write_lines(folder / "worst.jsonl", worst)
    _draw_confusion(folder / "confusion.svg", scores)
    return scores


def submit(task: str, predictions: Mapping[str, Any], folder: Path, glue: Path) -> dict[str, Any]:
    """The files of a submission, for the test splits among the predictions; for the stats, what is in them.

    submission/SPLIT.jsonl has a test's rows as predictions.jsonl has the others.
    """
    files: dict[str, Any] = {}
    for split, rows in predictions.items():
        if split.startswith("test"):
            found = _predicted(task, split, rows, GlueTable(glue / f"{split}.arrow"))
            files |= write_submission(folder, task, split, found.indexes, found.answers, found.names)
            if found.is_test:
                _write_lines(folder / SUBMISSION / f"{split}.jsonl", [found.line(i) for i in range(len(found.indexes))])
    return {"submission": files} if files else {}


def _predicted(task: str, split: str, rows: Mapping[str, Any], table: GlueTable) -> Predicted:
    num_labels = len(rows["logits"][0])
    names = named_classes(table.label_names, num_labels)
    answers = predict(rows["logits"], num_labels)
    return Predicted(task, split, num_labels, names, rows["index"], rows["label"], rows["logits"], answers)


def worst_rows(found: Predicted, places: Sequence[int], table: GlueTable) -> list[dict[str, Any]]:
    """The rows with the greatest loss, of a regression the greatest error, worst first, with their texts."""
    logits = np.asarray([found.logits[i] for i in places], np.float64)
    labels = np.asarray([found.labels[i] for i in places])
    if found.num_labels == 1:
        name, amounts, shares = "error", np.abs(logits[:, 0] - labels), None
    else:
        logits -= logits.max(1, keepdims=True)
        log_shares = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        name, amounts, shares = "loss", -log_shares[np.arange(len(places)), labels], np.exp(log_shares.max(1))
    chosen = np.argsort(-amounts, kind="stable")[:WORST].tolist()
    texts = table.texts([places[i] for i in chosen])
    return [
        {
            "split": found.split,
            "index": found.indexes[places[i]],
            "texts": text,
            "label": found.named(found.labels[places[i]]),
            "prediction": found.named(found.answers[places[i]]),
            **({} if shares is None else {"probability": round(float(shares[i]), 6)}),
            name: round(float(amounts[i]), 6),
        }
        for i, text in zip(chosen, texts, strict=True)
    ]


def clean_rows(task: str, split: str, subset: str, contamination: Source | None) -> set[int] | None:
    """Indexes of the split's rows in one of SUBSETS; None where they are not known."""
    file = contamination.path / subset / f"{task}.json" if contamination else None
    if file is None or not file.exists():
        return None
    rows = store.read_json(file)
    return set(rows[split]) if split in rows else None


def metrics_of(scores: Scores) -> Scores:
    """Numbers alone, for the stats that `dvc metrics show` shows: no matrices, of intervals the headline's."""
    found: Scores = {}
    for split, values in scores.items():
        found[split] = {name: value for name, value in values.items() if isinstance(value, (int, float))}
        found[split] |= {f"{name}_std": value for name, value in values.get("std", {}).items()}
        if "interval" in values:
            low, high = values["interval"]["headline"]
            found[split] |= {"headline_low": low, "headline_high": high}
    return found


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with store.create(path) as file:
        file.write("".join(f"{json.dumps(row)}\n" for row in rows).encode())


def _draw_confusion(path: Path, scores: Scores) -> None:
    from trainer.glue_pictures import Confusion, confusions

    found = {split: Confusion.of(values["confusion"]) for split, values in scores.items() if "confusion" in values}
    if found:
        with store.create(path) as file:
            file.write(confusions(found).encode())
