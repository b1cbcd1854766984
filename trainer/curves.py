"""The learning curves of several runs in one picture: losses by step, and scores by epoch where there are any.

    python -m trainer.curves curves.svg runs/one/finetune/mrpc runs/other/finetune/mrpc

A run is a folder that `pretrain` or `finetune` published (with several seeds: one colour, a line for each). In the
panels by epoch a broken line is that of training rows.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.errors import UserError
from trainer import pictures
from trainer.glue_pictures import training_column
from trainer.results import Curve, read_curve

COLORS = (pictures.WATER, pictures.CLAY[0], "#6a8f3c", "#8a5a9e", "#c99a2e", "#4a6076", "#b0578d", "#2f8f7a")
VALIDATION = "validation"
"""Beginning of the columns of epochs.csv that were measured on validation rows."""


@dataclass(frozen=True, slots=True)
class Run:
    """The curves of one run: one pair of files, or one for each of its seeds."""

    name: str
    curves: tuple[Curve, ...]
    epochs: tuple[Curve, ...]


def read_run(folder: Path) -> Run:
    """What a folder holds; UserError when there is no curve in it."""
    parts = [folder] if (folder / "curve.csv").exists() else sorted(path.parent for path in folder.glob("*/curve.csv"))
    if not parts:
        raise UserError(f"{folder}: has no curve.csv; name a folder that pretrain or finetune published")
    epochs = [read_curve(part / "epochs.csv") for part in parts if (part / "epochs.csv").exists()]
    return Run(str(folder), tuple(read_curve(part / "curve.csv") for part in parts), tuple(epochs))


def short_names(names: Sequence[str]) -> list[str]:
    """The names without the folders that all begin with, nor those that all end with."""
    parts = [Path(name).parts for name in names]
    if len(parts) == 1:
        return [parts[0][-1]]
    start = _alike(parts)
    end = _alike([each[start:][::-1] for each in parts])
    return [str(Path(*each[start : len(each) - end])) if len(each) > start + end else each[-1] for each in parts]


def _alike(parts: Sequence[Sequence[str]]) -> int:
    """How many of the first parts are the same in all."""
    return len(list(itertools.takewhile(lambda each: len(set(each)) == 1, zip(*parts, strict=False))))


def panels(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(file, column) of each panel: losses by step, then what was measured on validation rows by epoch."""
    found = [("curve", "loss")]
    if any(math.isfinite(value) for run in runs for curve in run.curves for value in curve.get("val_loss", ())):
        found.append(("curve", "val_loss"))
    names = dict.fromkeys(name for run in runs for epochs in run.epochs for name in epochs)
    return found + [("epochs", name) for name in names if name.startswith(VALIDATION)]


def draw_curves(runs: Sequence[Run]) -> str:
    """One SVG with a panel for each loss and score."""
    drawn = panels(runs)
    columns = 2 if len(drawn) in (2, 4) else min(3, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    legend = 0.25 * math.ceil(len(runs) / 3)
    return pictures.draw("curves", 9.6, 0.3 + 2.6 * rows + legend, _paint, runs, drawn, rows, columns)


def _paint(figure: Any, runs: Sequence[Run], drawn: Sequence[tuple[str, str]], rows: int, columns: int) -> None:
    from matplotlib.ticker import MaxNLocator

    names = short_names([run.name for run in runs])
    for number, (file, column) in enumerate(drawn, start=1):
        axes = figure.add_subplot(rows, columns, number)
        for run, name, color in zip(runs, names, _colors(len(runs)), strict=True):
            style = {"color": color, "alpha": 1.0 if len(run.curves) == 1 else 0.6, "label": name}
            if file == "curve":
                _paint_steps(axes, run.curves, column, style)
            else:
                _paint_epochs(axes, run.epochs, column, style)
        title = {"loss": "training loss", "val_loss": "validation loss"}.get(column, column.replace("_", " "))
        axes.set_title(title[0].upper() + title[1:])
        axes.set_xlabel("step" if file == "curve" else "epoch")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        if number == 1:
            lines = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
            figure.legend(lines.values(), lines, loc="outside lower left", ncols=3, fontsize=9, labelcolor=pictures.INK)


def _colors(number: int) -> list[Any]:
    from matplotlib import colormaps

    return (
        list(COLORS[:number])
        if number <= len(COLORS)
        else list(colormaps["turbo"]([i / number for i in range(number)]))
    )


def _paint_steps(axes: Any, curves: Sequence[Curve], column: str, style: Mapping[str, Any]) -> None:
    for curve in curves:
        steps, values = pictures.thin(curve["step"], curve[column])
        few = column != "loss"
        axes.plot(steps, values if few else pictures.smooth(values), linewidth=1.5, marker="o" * few, ms=3.5, **style)


def _paint_epochs(axes: Any, several: Sequence[Curve], column: str, style: Mapping[str, Any]) -> None:
    for epochs in several:
        if column in epochs:
            axes.plot(epochs["epoch"], epochs[column], linewidth=1.5, marker="o", markersize=3.5, **style)
        training = training_column(column)
        if training in epochs:
            broken = {**style, "label": None, "linestyle": (0, (3, 2))}
            axes.plot(epochs["epoch"], epochs[training], linewidth=1.2, **broken)


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.curves", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path, help="the SVG to write")
    parser.add_argument("runs", type=Path, nargs="+", help="folders that pretrain or finetune published")
    parser.add_argument("--overwrite", action="store_true", help="replace a picture that exists")
    call = parser.parse_args(arguments)
    try:
        if call.picture.exists() and not call.overwrite:
            raise UserError(f"{call.picture}: exists already; --overwrite replaces it")
        if call.picture.suffix != ".svg":
            raise UserError(f"{call.picture}: only SVG is drawn; name a file that ends with .svg")
        with store.create(call.picture) as file:
            file.write(draw_curves([read_run(run) for run in call.runs]).encode())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
