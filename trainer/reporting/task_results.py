"""Reads the results of fine-tuning on each GLUE task: epochs, confusion matrices and worst rows."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from pipelines import store
from pipelines.errors import UserError
from trainer.reporting.results import SCORING, Curve, Tasks, best_run, read_curve_columns


@dataclass(frozen=True, slots=True)
class Confusion:
    """Counts of rows by class (down) and predicted class (across)."""

    labels: list[str]
    counts: list[list[int]]

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "Confusion":
        """Build from a value of scores.json; raise KeyError, TypeError or ValueError for anything else."""
        matrix = cls(
            [str(label) for label in value["labels"]], [[int(cell) for cell in row] for row in value["counts"]]
        )
        if {len(matrix.labels), *map(len, matrix.counts)} != {len(matrix.counts)}:
            raise ValueError("labels and counts differ in number")
        return matrix


@dataclass(frozen=True, slots=True)
class WorstRow:
    """One of the rows with the greatest loss or error."""

    split: str
    texts: str
    label: str
    prediction: str
    amount: str
    """The probability of the prediction, or for a regression its error."""


@dataclass(frozen=True, slots=True)
class TaskResults:
    """The results of one task; those that do not exist are empty."""

    task: str
    epochs: Curve = field(default_factory=dict[str, list[float]])
    confusions: dict[str, Confusion] = field(default_factory=dict[str, Confusion])
    worst: list[WorstRow] = field(default_factory=list[WorstRow])

    @property
    def several_epochs(self) -> bool:
        """Whether its epochs make a curve."""
        return len(self.epochs.get("loss", ())) > 1

    @property
    def picture(self) -> str:
        """The name of the picture of its epochs: the task's name may contain any character."""
        return f"glue_{re.sub(r'[^A-Za-z0-9]', '_', self.task)}"


def read_tasks(runs: Path, shown: Tasks) -> list[TaskResults]:
    """Read every task of a run that has something to show. `shown`: the tasks that count."""
    tasks = [read_task(folder) for stage in SCORING for folder in shown.folders(runs, stage)]
    return [task for task in tasks if task.epochs or task.confusions or task.worst]


def read_task(folder: Path) -> TaskResults:
    """Read an output folder of finetune or glue_score; raise UserError for a broken file."""
    epochs, scores, worst = (best_run(folder) / name for name in ("epochs.csv", "scores.json", "worst.jsonl"))
    return TaskResults(
        folder.name,
        read_curve_columns(epochs) if epochs.is_file() else {},
        read_confusions(scores) if scores.is_file() else {},
        read_worst(worst) if worst.is_file() else [],
    )


def read_confusions(file: Path) -> dict[str, Confusion]:
    """Read the confusion matrix of each split that has one."""
    splits: Any = store.read_json(file)
    scores = cast(Mapping[str, Any], splits if isinstance(splits, dict) else {})
    try:
        return {
            split: Confusion.of(cast(Mapping[str, Any], values)["confusion"])
            for split, values in scores.items()
            if isinstance(values, dict) and "confusion" in values
        }
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file}: a confusion matrix is broken ({error}); run its stage again") from None


def read_worst(file: Path) -> list[WorstRow]:
    """Read the rows of worst.jsonl, with their texts joined."""
    rows: list[WorstRow] = []
    for number, line in enumerate(store.read_lines(file), start=1):
        try:
            row = json.loads(line)
            amount = row["probability"] if "probability" in row else row["error"]
            values = (" ↔ ".join(map(str, row["texts"].values())), _shown(row["label"]), _shown(row["prediction"]))
            rows.append(WorstRow(str(row["split"]), *values, f"{float(amount):.4f}"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}:{number}: not a row of worst.jsonl ({error}); run its stage again") from None
    return rows


def _shown(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
