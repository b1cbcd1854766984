"""What happens around the steps of training: validation, curve, progress, speeds, checkpoints.

The loop calls each hook before the first step, after every step and at the end, in the order of the list, in every
process. `curve.csv` has deterministic columns only; speeds and layout go to `segments.json`, for the provenance.
"""

import contextlib
import csv
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipelines import store
from trainer import checkpoint
from trainer.records import COLUMNS, prune, read_curve

if TYPE_CHECKING:
    from trainer.loop import StepReport, Training

logger = logging.getLogger(__name__)


class Hook:
    """Something that happens around steps; each method does nothing unless overridden."""

    def before_training(self, training: "Training") -> None:
        """Before the first step, resumed or not."""

    def after_step(self, training: "Training", report: "StepReport") -> None:
        """After each step; `report.stop` says that it is the last one before a requested stop."""

    def after_training(self, training: "Training") -> None:
        """After the last step, or the error that ended training."""


class Validation(Hook):
    """Fills `report.val_loss`, every so many steps and after the last one; 0: only then."""

    def __init__(self, measure: Callable[["Training"], float], every: int) -> None:
        self.measure = measure
        self.every = every

    def after_step(self, training: "Training", report: "StepReport") -> None:
        """Measure when it is time."""
        if training.finished or (self.every and report.step % self.every == 0):
            report.val_loss = self.measure(training)


class Curve(Hook):
    """One row per step in a CSV file; rows after the checkpoint that training goes on from are written again."""

    def __init__(self, path: Path, untrained: Callable[["Training"], float] | None = None) -> None:
        self.path = path
        self._untrained = untrained
        self._file: Any = None

    def before_training(self, training: "Training") -> None:
        """Keep the rows up to the step that was loaded; a fresh run begins with the untrained model's loss."""
        rows = [row for row in read_curve(self.path) if int(row["step"]) <= training.step]
        value = self._untrained(training) if self._untrained and not rows else None
        if not training.mesh.is_first:
            return
        with store.create(self.path) as file:
            lines = [",".join(COLUMNS), *(",".join(row[name] for name in COLUMNS) for row in rows)]
            file.write("".join(f"{line}\n" for line in lines).encode())
        self._file = self.path.open("a", newline="")
        if value is not None:
            self._write(training.step, "", "", "", training.tokens, _number(value))

    def after_step(self, training: "Training", report: "StepReport") -> None:
        """Write the step's row; before a checkpoint it is on disk."""
        if self._file is None:
            return
        numbers = (_number(value) for value in (report.loss, report.lr, report.grad_norm))
        val_loss = "" if report.val_loss is None else _number(report.val_loss)
        self._write(report.step, *numbers, training.tokens, val_loss)
        self._file.flush()
        if training.saves_now(report):
            os.fsync(self._file.fileno())

    def after_training(self, training: "Training") -> None:  # noqa: ARG002 (Hook's signature)
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, *values: object) -> None:
        csv.writer(self._file, lineterminator="\n").writerow(values)


def _number(value: float) -> str:
    return f"{value:.9g}"


class Progress(Hook):
    """A bar with loss, rate and time left on a terminal; a line every so many steps elsewhere."""

    def __init__(self, name: str, every: int) -> None:
        self.name = name
        self.every = every
        self._stack = contextlib.ExitStack()
        self._bar: Any = None
        self._task: Any = None
        self._last = (time.monotonic(), 0)

    def before_training(self, training: "Training") -> None:
        """Show the bar, where it can be seen."""
        self._last = (time.monotonic(), training.tokens)
        if not training.mesh.is_first or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]}"),
        )
        bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
        self._bar = self._stack.enter_context(bar)
        self._task = self._bar.add_task(self.name, total=training.recipe.steps, completed=training.step, now="")

    def after_step(self, training: "Training", report: "StepReport") -> None:
        """Move the bar, or write the line."""
        if not training.mesh.is_first:
            return
        due = report.step % self.every == 0 or training.finished
        if not due and self._bar is None:
            return
        then, tokens = self._last
        rate = (training.tokens - tokens) / max(time.monotonic() - then, 1e-9)
        text = f"loss {report.loss:.4f}  {rate:,.0f} tokens/s"
        if self._bar is not None:
            self._bar.update(self._task, completed=report.step, now=text)
        else:
            tail = "" if report.val_loss is None else f"  validation {report.val_loss:.4f}"
            logger.info("%s: step %d of %d  %s%s", self.name, report.step, training.recipe.steps, text, tail)
        if due:
            self._last = (time.monotonic(), training.tokens)

    def after_training(self, training: "Training") -> None:  # noqa: ARG002 (Hook's signature)
        """Take the bar away."""
        self._stack.close()


class Speeds(Hook):
    """Appends this segment of the run, its layout, versions and speed, to `segments.json`."""

    def __init__(self, path: Path, layout: dict[str, Any]) -> None:
        self.path = path
        self.layout = layout
        self._before: list[Any] = []
        self._seconds: list[float] = []
        self._start = (0, 0)
        self._last = 0.0

    def before_training(self, training: "Training") -> None:
        """Read the earlier segments."""
        self._before = store.read_json(self.path) if self.path.exists() else []
        self._start = (training.step, training.tokens)
        self._last = time.monotonic()

    def after_step(self, training: "Training", report: "StepReport") -> None:
        """Time the step; write the record with each checkpoint."""
        now = time.monotonic()
        self._seconds.append(now - self._last)
        self._last = now
        if training.mesh.is_first and training.saves_now(report):
            store.write_json(self.path, [*self._before, self._record(training)])

    def _record(self, training: "Training") -> dict[str, Any]:
        step, tokens = self._start
        median = statistics.median(self._seconds)
        on_gpu = training.mesh.device.type == "cuda"
        return {
            "from_step": step,
            "to_step": training.step,
            "layout": self.layout,
            "device": torch.cuda.get_device_name() if on_gpu else "cpu",
            "peak_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if on_gpu else None,
            "torch": torch.__version__,
            "seconds": round(sum(self._seconds), 3),
            "median_step_seconds": round(median, 5),
            "tokens_per_second": round((training.tokens - tokens) / (training.step - step) / median, 1),
        }


class Checkpoints(Hook):
    """Saves on the cadence, at the end, and when a stop was asked for; keeps the last ones."""

    def __init__(self, root: Path, keep: int) -> None:
        self.root = root
        self.keep = keep

    def after_step(self, training: "Training", report: "StepReport") -> None:
        """Save when it is time."""
        if not training.saves_now(report):
            return
        checkpoint.save(self.root, training.step, training.tensors(), training.record(), training.mesh)
        if training.mesh.is_first:
            prune(self.root, self.keep, training.checkpoint_every)
