"""Draws the learning curves of several runs in one picture: losses by step, and scores by epoch if there are any.

    python -m trainer.curves curves.svg runs/one/finetune/mrpc runs/other/finetune/mrpc

A run is a folder that `pretrain` or `finetune` published; if it has several seeds, each has a line in the same colour.
In the panels by epoch, dashed lines are scores on training rows.
"""

import itertools
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import exits, store
from pipelines.arguments import Parser
from pipelines.called import called
from pipelines.errors import ConfigError, UserError
from pipelines.terminal import print_error
from trainer.reporting import pictures
from trainer.reporting.results import Curve, read_curve_columns

COLORS = (pictures.WATER, pictures.CLAY[0], "#6a8f3c", "#8a5a9e", "#c99a2e", "#4a6076", "#b0578d", "#2f8f7a")
VALIDATION = "validation"
"""Prefix of the columns of epochs.csv that were measured on validation rows."""
TRAINING_ROWS: dict[str, Any] = {
    "linestyle": (0, (3, 2)),
    "linewidth": 1.2,
    "marker": "o",
    "markersize": 3.5,
    "markerfacecolor": pictures.PAPER,
}
"""Of the lines of scores on training rows; after a single epoch there is only the marker."""


@dataclass(frozen=True, slots=True)
class Run:
    """The curves of one run: one pair of files, or a pair for each seed."""

    name: str
    curves: tuple[Curve, ...]
    epochs: tuple[Curve, ...]


def read_run(folder: Path) -> Run:
    """Read the curves of a run; raise UserError if the folder has none."""
    folders = (
        [folder] if (folder / "curve.csv").exists() else sorted(path.parent for path in folder.glob("*/curve.csv"))
    )
    if not folders:
        raise UserError(f"{folder}: has no curve.csv; name a folder that pretrain or finetune published")
    epochs = [read_curve_columns(each / "epochs.csv") for each in folders if (each / "epochs.csv").exists()]
    return Run(str(folder), tuple(read_curve_columns(each / "curve.csv") for each in folders), tuple(epochs))


def short_names(names: Sequence[str]) -> list[str]:
    """Return the names without the leading and trailing folders that all of them share."""
    parts = [Path(name).parts for name in names]
    if len(parts) == 1:
        return [parts[0][-1]]
    start = _shared(parts)
    end = _shared([each[start:][::-1] for each in parts])
    return [str(Path(*each[start : len(each) - end])) if len(each) > start + end else each[-1] for each in parts]


def _shared(parts: Sequence[Sequence[str]]) -> int:
    """Return how many leading parts are the same in all."""
    return len(list(itertools.takewhile(lambda each: len(set(each)) == 1, zip(*parts, strict=False))))


def panels(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return (file, column) of each panel: losses by step, then scores on validation rows by epoch."""
    drawn = [("curve", "loss")]
    if any(math.isfinite(value) for run in runs for curve in run.curves for value in curve.get("val_loss", ())):
        drawn.append(("curve", "val_loss"))
    names = dict.fromkeys(name for run in runs for epochs in run.epochs for name in epochs)
    return drawn + [("epochs", name) for name in names if name.startswith(VALIDATION)]


def draw_curves(runs: Sequence[Run]) -> str:
    """Return one SVG with a panel for each loss and score."""
    drawn = panels(runs)
    columns = 2 if len(drawn) in (2, 4) else min(3, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    legend = 0.25 * math.ceil((len(runs) + _have_training(runs, drawn)) / 3)
    return pictures.draw("curves", pictures.WIDTH, 0.3 + 2.6 * rows + legend, _paint, runs, drawn, rows, columns)


def _have_training(runs: Sequence[Run], drawn: Sequence[tuple[str, str]]) -> bool:
    """Return whether a panel has scores on training rows."""
    columns = {pictures.training_column(column) for file, column in drawn if file == "epochs"}
    return any(columns & epochs.keys() for run in runs for epochs in run.epochs)


def _paint(figure: Any, runs: Sequence[Run], drawn: Sequence[tuple[str, str]], rows: int, columns: int) -> None:
    from matplotlib.lines import Line2D
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
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
        if number == 1:
            lines = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
            if _have_training(runs, drawn):
                lines["on training rows"] = Line2D([], [], color=pictures.MUTED, **TRAINING_ROWS)
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
        training = pictures.training_column(column)
        if training in epochs:
            axes.plot(epochs["epoch"], epochs[training], **{**style, **TRAINING_ROWS, "label": None})


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    parser = Parser(prog=called("trainer.curves"), description=__doc__)
    parser.add_argument("picture", type=Path, help="the SVG to write")
    parser.add_argument("runs", type=Path, nargs="+", help="folders that pretrain or finetune published")
    parser.add_argument("--overwrite", action="store_true", help="replace a picture that exists")
    try:
        call = parser.parse_args(arguments)
        store.real_path(call.picture)  # refuses a pipe, before it is read
        if call.picture.exists() and not call.overwrite:
            raise UserError(f"{call.picture}: exists already; --overwrite replaces it")
        if call.picture.suffix != ".svg":
            raise UserError(f"{call.picture}: only SVG is drawn; name a file that ends with .svg")
        if call.picture.exists() and b'id="curves-' not in call.picture.read_bytes():
            raise UserError(f"{call.picture}: not drawn by this command; name another file, or remove it yourself")
        with store.create(call.picture) as file:
            file.write(draw_curves([read_run(run) for run in call.runs]).encode())
    except UserError as error:
        print_error(error)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    exits.run(lambda: main(sys.argv[1:]))
