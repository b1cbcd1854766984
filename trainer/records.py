"""What a run leaves on disk besides tensors, and how its folders are called. No torch, so that the stages start fast.

`step-00001000/` is a checkpoint, `run.json` in it says of which run, model and step; `curve.csv` has one row per step.
"""

import csv
import math
import re
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.errors import UserError

RECORD = "run.json"
COLUMNS = ("step", "loss", "lr", "grad_norm", "tokens", "val_loss")


def step_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of `step` lies."""
    return root / f"step-{step:08d}"


def checkpoints(root: Path) -> dict[int, Path]:
    """Step -> folder of all complete checkpoints in `root`, oldest first."""
    found = {int(match[1]): path for path in root.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", path.name))}
    return dict(sorted(found.items()))


def newest_checkpoint(path: Path) -> Path:
    """The checkpoint meant by `path`: itself, or the newest one inside."""
    if re.fullmatch(r"step-\d+", path.name) and (path / RECORD).exists():
        return path
    inside = checkpoints(path)
    if not inside:
        raise UserError(f"{path}: holds no checkpoint (a step-* folder with {RECORD}); name another folder")
    return list(inside.values())[-1]


def read_record(folder: Path) -> dict[str, Any]:
    """What a checkpoint says of itself; UserError when it is not one of ours."""
    record = store.read_json(folder / RECORD)
    missing = {"model", "tokenizer", "step", "position", "tokens", "optimizer_steps"} - set(record)
    if missing:
        raise UserError(f"{folder / RECORD}: lacks {', '.join(sorted(missing))}; not a checkpoint of ours")
    return record


def require_same_model(folder: Path, record: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise UserError, naming the first field that differs, unless the checkpoint is of the expected model."""
    for field, value in expected.items():
        found = record["model"].get(field)
        if found != value:
            raise UserError(
                f"{folder}: a checkpoint of another model: its {field} is {found}, here it is {value}; "
                f"make {field} agree, or start from another checkpoint"
            )


def prune(root: Path, keep: int, every: int) -> None:
    """Delete all checkpoints but the newest one and the last `keep` on multiples of `every`."""
    steps = list(checkpoints(root))
    regular = [step for step in steps if step % every == 0]
    for step in sorted(set(steps) - set(regular[-keep:]) - set(steps[-1:])):
        # Renamed first: a kill must not leave half a checkpoint under a whole one's name.
        leftover = root / f".{step_folder(root, step).name}.old"
        store.remove(leftover)
        store.rename(step_folder(root, step), leftover)
        store.remove(leftover)


def remove_leftovers(root: Path) -> None:
    """Delete what a kill left half written or half deleted."""
    for path in sorted(root.glob(".step-*")):
        store.remove(path)


def read_curve(path: Path) -> list[dict[str, str]]:
    """The complete rows of a curve, as text; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        # A kill can cut the last line short.
        return list(csv.DictReader(line for line in file if line.endswith("\n")))


def summary(curve: Path) -> dict[str, float]:
    """A run's losses, from its curve: the training loss is the mean of the last tenth of the steps."""
    rows = read_curve(curve)
    losses = [float(row["loss"]) for row in rows if row["loss"]]
    last = losses[-max(1, len(losses) // 10) :]
    found = {"train_loss": round(math.fsum(last) / len(last), 6)}
    validations = [float(row["val_loss"]) for row in rows if row["val_loss"]]
    if validations:
        found |= {
            "untrained_val_loss": round(validations[0], 6),
            "val_loss": round(validations[-1], 6),
            "val_perplexity": round(math.exp(min(validations[-1], 700.0)), 4),
        }
    return found
