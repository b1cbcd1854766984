"""The charts of the report that answer to the mouse: curves as data, and the library that draws them.

The library is uPlot (https://github.com/leeoniya/uPlot, MIT, release 1.6.32): 51 kB without dependencies, which go into
the page. `charts.js` makes its charts of the data; without JavaScript, and on paper, the page shows `pictures` instead.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trainer.reporting.pictures import SPEEDS, by_measure, column_label, in_unit, smooth, thin, training_column
from trainer.reporting.results import Curve

COLORS = 6
"""Of lines, in the palette of the page."""
Style = Literal["line", "faint", "points", "dashed"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; `points`: values at some places only, joined."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style = "line"
    color: int = 0
    """Number of its colour in the palette of the page."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one axis."""

    title: str
    lines: list[Line] = field(default_factory=list[Line])
    x_name: str = "step"
    wide: bool = False
    """Whether it is as wide as the page."""


def pretraining(curve: Curve, uniform_loss: float | None) -> list[Chart]:
    """Return losses, learning rate and gradient norm by step."""
    charts = [Chart("Loss (nats per token)", _losses(curve), wide=True)]
    if uniform_loss and curve["step"]:
        ends = [curve["step"][0], curve["step"][-1]]
        charts[0].lines.append(Line("a uniform guess", ends, [uniform_loss] * 2, "dashed", 4))
    for column, title in (("lr", "Learning rate"), ("grad_norm", "Gradient norm")):
        if column in curve:
            charts.append(Chart(title, [Line(title.lower(), *thin(curve["step"], curve[column]), color=2)]))
    return charts


def _losses(curve: Curve) -> list[Line]:
    steps, losses = thin(curve["step"], curve["loss"])
    lines = [Line("each step", steps, losses, "faint"), Line("training", steps, smooth(losses))]
    validated = _points(curve["step"], curve.get("val_loss", ()))
    return [*lines, Line("validation", *validated, "points", 1)] if validated[0] else lines


def _points(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the places that have a value, and their values."""
    pairs = [pair for pair in zip(x, y, strict=False) if math.isfinite(pair[1])]
    return [a for a, _ in pairs], [b for _, b in pairs]


def finetuning(curves: Mapping[str, Curve]) -> list[Chart]:
    """Return for each task its loss by step."""
    return [Chart(f"{task}: loss", _losses(curve)) for task, curve in curves.items()]


def epochs(table: Curve) -> list[Chart]:
    """Return the losses and the scores of a task by epoch."""
    known = {"epoch", "step", "loss", "lr"}
    names = [name for name in table if name not in known]
    losses = [name for name in names if name.endswith("_loss")]
    charts = [
        Chart("Loss by epoch", [_by_epoch(table, "loss", "while training"), *_epoch_lines(table, losses)]),
        Chart("Scores by epoch", _epoch_lines(table, [name for name in names if name not in losses])),
    ]
    return [replace(chart, x_name="epoch") for chart in charts if any(line.x for line in chart.lines)]


def _epoch_lines(table: Curve, names: Sequence[str]) -> list[Line]:
    """Return a line for each column; one on training rows is dashed, in the colour of the same on validation rows."""
    validated = [name for name in names if not name.startswith("train_")]
    same = [next((i for i, each in enumerate(validated) if name in (each, training_column(each))), 4) for name in names]
    return [
        _by_epoch(table, name, column_label(name), _kind(name), 1 + color)
        for name, color in zip(names, same, strict=True)
    ]


def _by_epoch(table: Curve, column: str, label: str, style: Style = "line", color: int = 0) -> Line:
    return Line(label, *_points(table.get("epoch", table["step"]), table[column]), style, color)


def _kind(column: str) -> Style:
    return "dashed" if column.startswith("train_") else "points"


def speeds(curve: Curve) -> list[Chart]:
    """Return tokens per second, memory and, on known GPUs, MFU by time of training."""
    times, time_unit = in_unit(curve["seconds"])
    lines = [(title, Line(unit, *thin(times, curve[column]))) for column, title, unit in SPEEDS]
    return [Chart(title, [line], x_name=time_unit) for title, line in lines if line.x]


def task_scores(curve: Curve) -> list[Chart]:
    """Return the scores of tasks by step of pretraining, a chart for each measure."""
    return [
        Chart(
            f"Tasks: {measure}",
            [Line(task, curve["step"], curve[column], "points", i % COLORS) for i, (task, column) in each],
        )
        for measure, each in by_measure(curve).items()
    ]


def chart_data(charts: Mapping[str, Sequence[Chart]]) -> str:
    """Return the charts of each figure as JSON that may stand in a <script>: `<` is escaped."""
    plain = {name: [_plain(chart) for chart in each] for name, each in charts.items() if each}
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _plain(chart: Chart) -> dict[str, Any]:
    """Return a chart as uPlot takes it: one list of places, and a value or null there for each line."""
    places = sorted({place for line in chart.lines for place in line.x})
    values = [dict(zip(line.x, line.y, strict=True)) for line in chart.lines]
    return {
        "title": chart.title,
        "x": chart.x_name,
        "wide": chart.wide,
        "lines": [{"name": line.name, "style": line.style, "color": line.color} for line in chart.lines],
        "data": [
            [_short(place) for place in places],
            *([_short(each.get(place)) for place in places] for each in values),
        ],
    }


def _short(value: float | None) -> float | int | None:
    """Return the value with six digits, which no screen can show more of."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def scripts() -> dict[str, str]:
    """Return what a page with charts holds: the library with its style and licence, and our own script."""
    folder = Path(__file__).parent
    return {
        "library": (folder / "uplot/uPlot.iife.min.js").read_text("utf-8"),
        "library_style": (folder / "uplot/uPlot.min.css").read_text("utf-8"),
        "licence": (folder / "uplot/LICENSE").read_text("utf-8"),
        "script": (folder / "charts.js").read_text("utf-8"),
    }
