"""What a run leaves on disk besides tensors, and how its folders are called. No torch, so that the stages start fast.

`step-00001000/` is a checkpoint, `run.json` in it says of which run, model and step, `files.json` what its files have
to be; `curve.csv` has one row per step.
"""

import csv
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.errors import UserError

RECORD = "run.json"
FILES = "files.json"
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


class DamagedError(UserError):
    """A checkpoint whose files are not those that were written."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; get the checkpoint again, or start from an older one")
        self.problem = problem


def file_entry(path: Path) -> dict[str, Any]:
    """What `files.json` says of a file."""
    return {"bytes": path.stat().st_size, "xxh3": store.xxh3(path)}


def damage(folder: Path, rank: int = 0, ranks: int = 1) -> str | None:
    """What is wrong with a checkpoint's files, of which process `rank` of `ranks` looks at its share; None: nothing."""
    path = folder / FILES
    try:
        entries = sorted(store.read_json(path).items())
        for name, entry in entries[rank::ranks]:
            path = folder / name
            size = path.stat().st_size
            if size != entry["bytes"]:
                return f"{path}: has {size} bytes instead of {entry['bytes']}"
            if store.xxh3(path) != entry["xxh3"]:
                return f"{path}: its bytes are not those that were written"
    except FileNotFoundError:
        return f"{path}: is missing"
    except OSError as error:
        return f"{path}: not readable ({error.strerror})"
    except UserError as error:
        return str(error)
    except (AttributeError, KeyError, TypeError):
        return f"{folder / FILES}: not a list of files with sizes and digests"
    return None


def set_aside(folder: Path) -> Path:
    """Give a damaged checkpoint a name under which none is looked for; returns it."""
    aside = folder.with_name(f"damaged-{folder.name}")
    store.remove(aside)
    store.rename(folder, aside)
    return aside


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which of a run's checkpoints stay."""

    keep: int
    """The last so many."""
    every: int
    """Of those on multiples of this, and the last step's; any other is there only while it is the newest."""
    keep_every: int = 0
    """And all on multiples of this; 0: none."""
    best: bool = False
    """And the one with the least validation loss."""

    def of(self, steps: Collection[int], last: int, val_losses: Mapping[int, float]) -> list[int]:
        """The steps that stay, of those with a checkpoint; `last`: the run's last one."""
        regular = sorted(step for step in steps if step % self.every == 0 or step == last)
        stays = {*regular[-self.keep :], *(step for step in regular if self.keep_every and step % self.keep_every == 0)}
        if self.best and (best := best_step(regular, val_losses)) is not None:
            stays.add(best)
        return sorted(stays)


def best_step(steps: Collection[int], val_losses: Mapping[int, float]) -> int | None:
    """The step with the least validation loss, the first of equal ones; None where none was measured."""
    measured = [step for step in sorted(steps) if step in val_losses]
    return min(measured, key=val_losses.__getitem__, default=None)


def lost_best(root: Path, curve: Path) -> tuple[int, float] | None:
    """Step and validation loss of the best step of a run, where its checkpoint is gone and none as good is there.

    That is so when the best one was not kept from the beginning.
    """
    # A row without a training loss is of the weights that the run began with, which have no checkpoint here.
    losses = {int(row["step"]): float(row["val_loss"]) for row in read_curve(curve) if row["loss"] and row["val_loss"]}
    best, kept = best_step(losses, losses), best_step(checkpoints(root), losses)
    if best is None or (kept is not None and losses[kept] <= losses[best]):
        return None
    return best, losses[best]


def prune(root: Path, retention: Retention, last: int, val_losses: Mapping[int, float]) -> None:
    """Delete all checkpoints but the newest one and those that stay."""
    steps = list(checkpoints(root))
    for step in sorted(set(steps) - set(retention.of(steps, last, val_losses)) - set(steps[-1:])):
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


def val_losses(curve: Path) -> dict[int, float]:
    """Step -> validation loss, where one was measured."""
    return {int(row["step"]): float(row["val_loss"]) for row in read_curve(curve) if row["val_loss"]}


def summary(curve: Path) -> dict[str, float]:
    """A run's losses, from its curve: the training loss is the mean of the last tenth of the steps."""
    rows = read_curve(curve)
    losses = [float(row["loss"]) for row in rows if row["loss"]]
    last = losses[-max(1, len(losses) // 10) :]
    found = {"train_loss": round(math.fsum(last) / len(last), 6)}
    validations = list(val_losses(curve).values())
    if validations:
        found |= {
            "untrained_val_loss": round(validations[0], 6),
            "val_loss": round(validations[-1], 6),
            "val_perplexity": round(math.exp(min(validations[-1], 700.0)), 4),
        }
    return found
