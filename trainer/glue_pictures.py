"""Pictures of a fine-tuning: loss and scores by epoch, and confusion matrices."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.pictures import CLAY, DEEP, INK, MUTED, PAPER, SAND, WATER, draw
from trainer.results import Curve

NUMBERS = 10
"""Most classes whose cells have numbers in them."""
NAMES = 16
"""Most classes that are named, and have lines between them."""
_COLORS = (CLAY[0], DEEP, CLAY[2], "#6b8f3c", SAND)
_WIDTH = 9.6

Panel = Callable[[Any], None]
"""Draws on one pair of axes."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """Rows by class (down) and predicted class (across)."""

    labels: list[str]
    counts: list[list[int]]

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "Confusion":
        """As it stands in scores.json; raises KeyError, TypeError or ValueError for anything else."""
        found = cls([str(label) for label in value["labels"]], [[int(cell) for cell in row] for row in value["counts"]])
        if {len(found.labels), *map(len, found.counts)} != {len(found.counts)}:
            raise ValueError("labels and counts differ in number")
        return found


def epochs(table: Curve) -> str:
    """epochs.csv as two panels: loss, and scores."""
    return draw("epochs", _WIDTH, 3.2, _paint, _epoch_panels(table), 2)


def confusions(found: Mapping[str, Confusion]) -> str:
    """The confusion matrices of a task's splits, side by side."""
    return draw("confusion", 4.8 * len(found), 3.9, _paint, _confusion_panels(found), len(found))


def task(name: str, table: Curve, found: Mapping[str, Confusion]) -> str:
    """Everything of a task in one picture as wide as a page; `name` is part of its ids."""
    panels = [*(_epoch_panels(table) if table else []), *_confusion_panels(found)]
    columns = 2 if len(panels) in (2, 4) else 3
    return draw(name, _WIDTH, 3.1 * math.ceil(len(panels) / columns), _paint, panels, columns)


def _paint(figure: Any, panels: Sequence[Panel], columns: int) -> None:
    grid = figure.add_gridspec(math.ceil(len(panels) / columns), columns)
    for number, panel in enumerate(panels):
        panel(figure.add_subplot(grid[divmod(number, columns)]))


def _epoch_panels(table: Curve) -> list[Panel]:
    losses = {name: label for name in table if name.endswith("_loss") and (label := _words(name.removesuffix("_loss")))}
    known = {"epoch", "step", "loss", "lr", *losses}
    scores = {name: _words(name) for name in table if name not in known}

    def loss(axes: Any) -> None:
        _lines(axes, table, {"loss": "while training", **losses}, (WATER, *_COLORS))
        axes.set_title("Loss by epoch")

    def score(axes: Any) -> None:
        _lines(axes, table, scores, _COLORS)
        axes.set_title("Scores by epoch")

    return [loss, score] if scores else [loss]


def _words(column: str) -> str:
    """`validation_f1` -> `f1`, `validation_matched` -> `validation matched`."""
    words = column.split("_")
    return " ".join(words[1:] if words[0] == "validation" and len(words) > 1 and column[11:] not in _SPLITS else words)


_SPLITS = ("matched", "mismatched")


def _lines(axes: Any, table: Curve, columns: Mapping[str, str], colors: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    places, on_validation = table.get("epoch", table["step"]), [name for name in columns if not _is_train(name)]
    for column, label in columns.items():
        # Training rows have a broken line in the colour of the same score on validation rows.
        alike = [each for each in on_validation if column in (each, training_column(each))]
        place = on_validation.index((alike or on_validation)[0])
        style = {"linestyle": (0, (3, 2)) if _is_train(column) else "-", "marker": "o", "markersize": 3.5}
        style |= {"markerfacecolor": PAPER} if _is_train(column) else {}
        axes.plot(places, table[column], color=colors[place % len(colors)], linewidth=1.6, label=label, **style)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel("epoch")
    axes.margins(x=0.06, y=0.12)
    if len(columns) > 1:
        axes.legend(loc="best", fontsize=8.5, labelcolor=INK)
    elif columns:
        axes.set_ylabel(next(iter(columns.values())))


def training_column(column: str) -> str:
    """The column of the same score on training rows: `validation_matched_macro_f1` -> `train_macro_f1`."""
    return "train_" + re.sub(r"^validation_((mis)?matched_)?", "", column)


def _is_train(column: str) -> bool:
    return column.startswith("train_")


def _confusion_panels(found: Mapping[str, Confusion]) -> list[Panel]:
    def panel(split: str, confusion: Confusion) -> Panel:
        return lambda axes: _paint_confusion(axes, split, confusion)

    return [panel(split, confusion) for split, confusion in found.items()]


def _paint_confusion(axes: Any, split: str, confusion: Confusion) -> None:
    """Each class is a row; a cell is as dark as its share of the row, and says how many rows it has."""
    from matplotlib.colors import LinearSegmentedColormap

    size = len(confusion.labels)
    shares = [[cell / max(1, sum(row)) for cell in row] for row in confusion.counts]
    colors = LinearSegmentedColormap.from_list("shares", [PAPER, WATER])
    axes.pcolormesh(shares, cmap=colors, vmin=0, vmax=1, edgecolor=SAND, linewidth=0.6 if size <= NAMES else 0)
    for row, cells in enumerate(confusion.counts if size <= NUMBERS else []):
        for column, cell in enumerate(cells):
            share = shares[row][column]
            ink = PAPER if share > 0.75 else INK
            text = f"{cell:,}\n{share:.0%}" if size <= 4 else f"{cell:,}"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=ink, fontsize=9)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    places, names = [i + 0.5 for i in range(size)], [_short(label) for label in confusion.labels]
    shown = size <= NAMES
    axes.set_xticks(places if shown else [], names if shown else [], rotation=0 if size <= 3 else 90, fontsize=8.5)
    axes.set_yticks(places if shown else [], names if shown else [], fontsize=8.5)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    axes.tick_params(colors=MUTED)
    axes.set_title(f"Confusion, {split.replace('_', ' ')}")


def _short(label: str) -> str:
    return label if len(label) <= 18 else f"{label[:17]}…"
