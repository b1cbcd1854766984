"""The files of a run besides its tensors, and the names of its folders. No torch, so that stages start fast.

`step-00001000/` is a checkpoint: its `run.json` identifies run, model and step, its `files.json` lists the size and
digest of each file. `curve.csv` has one row per step.
"""

import csv
import math
import re
import reprlib
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.config import check
from pipelines.errors import ConfigError, UserError
from pipelines.tokens import TokenMeta
from trainer.weights.exported import SIZES, check_sizes, read_object

RECORD = "run.json"
INDEX = ".metadata"
FILES = "files.json"
OPTIMIZERS = ("adamw", "muon")
PARTS = ("model", "tokenizer")
COUNTERS = ("step", "position", "tokens", "optimizer_steps")
SECTIONS = ("pretrain", "finetune", "data", "loss_scale", "outliers")
"""Parts of a record that not every one has."""
COLUMNS = ("step", "loss", "lr", "grad_norm", "tokens", "val_loss")


def step_folder(root: Path, step: int) -> Path:
    """Return the folder of the checkpoint of `step`."""
    return root / f"step-{step:08d}"


def checkpoints(root: Path) -> dict[int, Path]:
    """Return step -> folder of all complete checkpoints in `root`, oldest first."""
    folders = {int(match[1]): path for path in root.glob("step-*") if (match := re.fullmatch(r"step-(\d+)", path.name))}
    return dict(sorted(folders.items()))


def newest_checkpoint(path: Path, last: int = 0) -> Path:
    """Return the checkpoint that `path` names: itself, or the newest one inside, up to step `last` if given."""
    if re.fullmatch(r"step-\d+", path.name) and (path / RECORD).exists():
        return path
    inside = checkpoints(path)
    if last and inside:
        if not (reached := {step: folder for step, folder in inside.items() if step <= last}):
            raise UserError(f"{path}: its first checkpoint is of step {next(iter(inside))}; raise --limit {last} to it")
        inside = reached
    if not inside:
        raise UserError(f"{path}: holds no checkpoint (a step-* folder with {RECORD}); name another folder")
    return list(inside.values())[-1]


def read_record(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's record. Raises UserError if it is not one that this trainer wrote."""
    record, path = read_object(folder / RECORD), folder / RECORD
    missing = {*PARTS, *COUNTERS} - record.keys()
    if missing:
        raise UserError(f"{path}: lacks {', '.join(sorted(missing))}; not a checkpoint of this trainer")
    wrong = [name for name in (*PARTS, *SECTIONS) if not isinstance(record.get(name, {}), dict)]
    wrong += [name for name in COUNTERS if not _is_count(record[name])]
    if wrong:
        raise UserError(
            f"{path}: {wrong[0]} is {reprlib.repr(record[wrong[0]])}, expected "
            f"{'a number' if wrong[0] in COUNTERS else 'keys with values'}; get the checkpoint again"
        )
    if (optimizer := optimizer_of(record)) not in OPTIMIZERS:
        raise UserError(f"{path}: optimizer is {reprlib.repr(optimizer)}; not a checkpoint of this trainer")
    if not _is_scale(record.get("loss_scale")):
        raise UserError(f"{path}: loss_scale is {reprlib.repr(record['loss_scale'])}; get the checkpoint again")
    if not _is_outliers(record.get("outliers")):
        raise UserError(f"{path}: outliers is {reprlib.repr(record['outliers'])}; get the checkpoint again")
    check_sizes(record["model"], path)
    if record["model"].keys() != {*SIZES, "num_labels"} or not _is_count(record["model"]["num_labels"]):
        raise UserError(f"{path}: model is {reprlib.repr(record['model'])}; not a checkpoint of this trainer")
    return record


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_scale(scale: Mapping[str, Any] | None) -> bool:
    """Whether this is the state of a loss scale that `LossScale.record` wrote, or there is none."""
    if scale is None:
        return True
    value, *counters = (scale.get(name) for name in ("value", "good_steps", "overflows"))
    return isinstance(value, (int, float)) and 0 < value < math.inf and all(map(_is_count, counters))


def _is_outliers(outliers: Mapping[str, Any] | None) -> bool:
    """Whether this is the state that `Outliers.record` wrote, or there is none."""
    if outliers is None:
        return True
    windows, counters = (outliers.get("losses"), outliers.get("norms")), map(outliers.get, ("skipped", "in_a_row"))
    lists = all(isinstance(each, list) and all(map(_is_finite, each)) for each in windows)
    return lists and all(map(_is_count, counters))


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def tokenizer_of(folder: Path, record: Mapping[str, Any]) -> TokenMeta:
    """Return the tokenizer in a checkpoint's record. Raises UserError if it is not described."""
    try:
        return check(TokenMeta, record["tokenizer"], "tokenizer", str(folder / RECORD))
    except ConfigError as error:
        raise UserError(f"{str(error).splitlines()[0]}; get the checkpoint again") from None


def require_same_model(folder: Path, record: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raise UserError, naming the first field that differs, unless the checkpoint is of the expected model."""
    for field, value in expected.items():
        recorded = record["model"].get(field)
        if recorded != value:
            raise UserError(
                f"{folder}: a checkpoint of another model: its {field} is {recorded}, here it is {value}; "
                f"make {field} agree, or start from another checkpoint"
            )


def optimizer_of(record: Mapping[str, Any]) -> Any:
    """Return the name of the optimizer whose state a checkpoint holds, which records of AdamW do not say."""
    return record.get("optimizer", OPTIMIZERS[0])


def require_same_optimizer(folder: Path, record: Mapping[str, Any], optimizer: str) -> None:
    """Raise UserError unless the checkpoint has the state of this optimizer."""
    if (recorded := optimizer_of(record)) != optimizer:
        raise UserError(
            f"{folder}: trained with pretrain.optimizer {recorded}, and {optimizer} cannot go on from its state: set "
            f"pretrain.optimizer to {recorded}, or begin anew with these weights (python -m trainer.export, then "
            "pretrain.init huggingface)"
        )


class DamagedError(UserError):
    """A checkpoint whose files are not those that were written."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; get the checkpoint again, or start from an older one")
        self.problem = problem


def file_entry(path: Path) -> dict[str, Any]:
    """Return the entry of a file in `files.json`."""
    return {"bytes": path.stat().st_size, "xxh3": store.xxh3(path)}


def damage(folder: Path, rank: int = 0, ranks: int = 1) -> str | None:
    """Describe what is wrong with a checkpoint's files; None if nothing is. Each of `ranks` checks its share."""
    path = folder / FILES
    try:
        entries = sorted(store.read_json(path).items())
        names = [name for name, _ in entries]
        if not {INDEX, RECORD} <= {*names} or any(name != Path(name).name for name in names):
            return f"{path}: not a list of files of this folder with sizes and digests"
        for name, entry in entries[rank::ranks]:
            path = folder / name
            if not path.is_file():
                return f"{path}: is missing"
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
    """Rename a damaged checkpoint so that it is no longer found; return its new folder."""
    aside = folder.with_name(f"damaged-{folder.name}")
    store.remove(aside)
    store.rename(folder, aside)
    return aside


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which of a run's checkpoints are kept."""

    keep: int
    """The number of newest checkpoints kept."""
    every: int
    """Counted are those on multiples of this and the last step's; any other stays only while it is the newest."""
    keep_every: int = 0
    """Also keep all on multiples of this; 0: none."""
    best: bool = False
    """Also keep the one with the lowest validation loss."""

    def of(self, steps: Collection[int], last: int, val_losses: Mapping[int, float]) -> list[int]:
        """Return the steps to keep, of those with a checkpoint; `last`: the run's last step."""
        regular = sorted(step for step in steps if step % self.every == 0 or step == last)
        stays = {*regular[-self.keep :], *(step for step in regular if self.keep_every and step % self.keep_every == 0)}
        if self.best and (best := best_step(regular, val_losses)) is not None:
            stays.add(best)
        return sorted(stays)


def best_step(steps: Collection[int], val_losses: Mapping[int, float]) -> int | None:
    """Return the step with the lowest validation loss, the first if several are equal; None if none was measured."""
    measured = [step for step in sorted(steps) if step in val_losses]
    return min(measured, key=val_losses.__getitem__, default=None)


def lost_best(root: Path, curve: Path) -> tuple[int, float] | None:
    """Return the best step of a run and its validation loss if no checkpoint as good is left; None otherwise.

    This happens when `keep_best` was not set from the beginning.
    """
    # A row without a learning rate belongs to the initial weights, which have no checkpoint.
    losses = {
        int(row["step"]): float(row["val_loss"]) for row in read_curve_rows(curve) if row["lr"] and row["val_loss"]
    }
    best, kept = best_step(losses, losses), best_step(checkpoints(root), losses)
    if best is None or (kept is not None and losses[kept] <= losses[best]):
        return None
    return best, losses[best]


def prune(root: Path, retention: Retention, last: int, val_losses: Mapping[int, float]) -> None:
    """Delete all checkpoints but the newest one and those to keep."""
    steps = list(checkpoints(root))
    for step in sorted(set(steps) - set(retention.of(steps, last, val_losses)) - set(steps[-1:])):
        # Renamed first: a kill must not leave half a checkpoint under a whole one's name.
        leftover = root / f".{step_folder(root, step).name}.old"
        store.remove(leftover)
        store.rename(step_folder(root, step), leftover)
        store.remove(leftover)


def remove_leftovers(root: Path) -> None:
    """Delete checkpoints that a killed process left half written or half deleted."""
    for path in sorted(root.glob(".step-*")):
        store.remove(path)


@contextmanager
def open_curve(path: Path) -> Generator["csv.DictReader[str]"]:
    """Open a curve to read its complete rows, as text: a kill can cut the last line short."""
    with path.open(newline="", encoding="utf-8") as file:
        yield csv.DictReader(line for line in file if line.endswith("\n"))


def read_curve_rows(path: Path) -> list[dict[str, str]]:
    """Return the complete rows of a curve, as text; none if there is no file.

    For a run that may have been killed; `results.read_curve_columns` reads a published one.
    """
    if not path.exists():
        return []
    with open_curve(path) as rows:
        return list(rows)


def val_losses(curve: Path) -> dict[int, float]:
    """Return step -> validation loss for the steps where it was measured."""
    return {int(row["step"]): float(row["val_loss"]) for row in read_curve_rows(curve) if row["val_loss"]}


def summary(curve: Path) -> dict[str, float]:
    """Return a run's losses from its curve; the training loss is the mean of the last tenth of the steps."""
    rows = read_curve_rows(curve)
    losses = [float(row["loss"]) for row in rows if row["loss"]]
    last = losses[-max(1, len(losses) // 10) :]
    values = {"train_loss": round(math.fsum(last) / len(last), 6)}
    validations = list(val_losses(curve).values())
    if validations:
        values |= {
            "untrained_val_loss": round(validations[0], 6),
            "val_loss": round(validations[-1], 6),
            "val_perplexity": round(math.exp(min(validations[-1], 700.0)), 4),
        }
    return values
