"""The pictures of the report, as SVG text: the funnel of documents, loss curves, fine-tuning curves.

The same values give the same bytes: figures are drawn without any global state, ids come from a fixed
salt, and no date or version is written. Text stays text, so that a page shows it in its own font.
"""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.results import Curve, StageCounts

INK, MUTED, GRID, PAPER = "#1c2b33", "#64757e", "#dfe5e8", "#ffffff"
WATER, DEEP, SAND = "#1f7a96", "#0c4a5e", "#b9c6cc"
CLAY = ("#b5482f", "#d0774f", "#dd9b6f", "#e7b994", "#eed0b5", "#f3e2d2")
"""Rejected rows, by reason, the most frequent first."""
LEGEND_CHARACTERS = 115
"""Characters in a line under a bar."""
MAX_POINTS = 800
"""Points drawn of a curve; a longer one is averaged, or a long run would make a page of megabytes."""

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "millrace",
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": SAND,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.formatter.use_mathtext": False,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "figure.facecolor": PAPER,
}


def draw(name: str, width: float, height: float, paint: Any, *arguments: Any) -> str:
    """`paint(figure, *arguments)` on a figure of `width` x `height` inches, as an SVG element.

    Ids get the picture's `name` in front, so that several pictures can stand on one page.
    """
    import matplotlib.style
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", _STYLE]):
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure, *arguments)
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(buffer, metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)


Legend = list[tuple[str, str]]
"""Texts, each with the colour of what it explains."""


def funnel(stages: Sequence[StageCounts]) -> str:
    """Documents through the stages: what each kept, and what it rejected by reason."""
    legends = [_legend_lines(stage) for stage in stages]
    lines = sum(len(legend) for legend in legends)
    return draw("funnel", 9.6, 0.1 + 0.5 * len(stages) + 0.2 * lines, _paint_funnel, stages, legends)


def _parts(stage: StageCounts) -> list[tuple[str, int, str]]:
    """(reason, rows, colour) of every part of a stage's bar that did not come out."""
    reasons = [reason for reason in (*stage.rejected, ("no reason given", stage.unexplained)) if reason[1]]
    return [(rule, rows, CLAY[min(i, len(CLAY) - 1)]) for i, (rule, rows) in enumerate(reasons)]


def _legend_lines(stage: StageCounts) -> list[Legend]:
    """The kept rows and every reason with its number, in lines that fit under the bar."""
    lines: list[Legend] = [[(f"{stage.rows_out:,} of {stage.rows_in:,} kept", WATER)]]
    for rule, rows, color in _parts(stage):
        text = f"{rule} {rows:,}"
        if sum(len(other) + 5 for other, _ in lines[-1]) + len(text) > LEGEND_CHARACTERS:
            lines.append([])
        lines[-1].append((text, color))
    return lines


def _paint_funnel(figure: Any, stages: Sequence[StageCounts], legends: Sequence[list[Legend]]) -> None:
    axes = figure.add_subplot()
    y, names = 0.0, list[float]()
    for stage, legend in zip(stages, legends, strict=True):
        names.append(y)
        _paint_bar(axes, y, stage)
        for number, line in enumerate(legend):
            y += 0.2 if number else 0.25
            _paint_legend(axes, y, line)
        y += 0.45
    axes.set(xlim=(0, max(stage.rows_in for stage in stages)), ylim=(y - 0.3, -0.15), xticks=[], yticks=names)
    axes.set_yticklabels([stage.name for stage in stages], color=INK, fontsize=10.5, fontweight="medium")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(axis="y", pad=8)


def _paint_bar(axes: Any, y: float, stage: StageCounts) -> None:
    axes.barh(y, stage.rows_out, height=0.24, color=WATER)
    left = stage.rows_out
    for _, rows, color in _parts(stage):
        axes.barh(y, rows, left=left, height=0.24, color=color, edgecolor=PAPER, linewidth=0.6)
        left += rows


def _paint_legend(axes: Any, y: float, legend: Legend) -> None:
    """A line of small squares with their texts, each beginning where the one before it ends."""
    style = {"textcoords": "offset points", "fontsize": 8.5, "va": "center", "annotation_clip": False}
    before: Any = None
    for text, color in legend:
        place: Any = ((0, y), "data") if before is None else ((1, 0.5), before)
        offset = 0 if before is None else 11
        square = axes.annotate("\u25a0", place[0], xycoords=place[1], xytext=(offset, 0), color=color, **style)
        before = axes.annotate(text, (1, 0.5), xycoords=square, xytext=(3, 0), color=MUTED, **style)
        square.set_in_layout(False)
        before.set_in_layout(False)


def pretraining(curve: Curve, uniform_loss: float | None) -> str:
    """Training and validation loss by step; beside it learning rate and gradient norm."""
    return draw("pretraining", 9.6, 3.7, _paint_pretraining, curve, uniform_loss)


def _paint_pretraining(figure: Any, curve: Curve, uniform_loss: float | None) -> None:
    side = [
        (column, title)
        for column, title in (("lr", "Learning rate"), ("grad_norm", "Gradient norm"))
        if column in curve
    ]
    grid = figure.add_gridspec(2, 2 if side else 1, width_ratios=(2.6, 1) if side else None)
    axes = figure.add_subplot(grid[:, 0])
    _paint_loss(axes, curve)
    axes.legend(loc="center right", fontsize=9, labelcolor=INK)
    if uniform_loss:
        axes.axhline(uniform_loss, color=SAND, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"a uniform guess: {uniform_loss:.2f}",
            (1, uniform_loss),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            fontsize=8.5,
            color=MUTED,
        )
    axes.set_title("Loss (nats per token)")
    axes.set_xlabel("step")
    for row, (column, title) in enumerate(side):
        small = figure.add_subplot(grid[row, 1])
        small.plot(*thin(curve["step"], curve[column]), color=DEEP, linewidth=1.1)
        small.set_title(title)
        _steps(small)
    _steps(axes)


def _paint_loss(axes: Any, curve: Curve) -> None:
    """Training loss, light as it is and dark averaged; validation loss as points."""
    steps, losses = thin(curve["step"], curve["loss"])
    axes.plot(steps, losses, color=WATER, alpha=0.3, linewidth=0.8)
    axes.plot(steps, smooth(losses), color=WATER, linewidth=1.8, label="training")
    _paint_points(axes, curve, "val_loss")


def _paint_points(axes: Any, curve: Curve, column: str) -> None:
    """The values of a column that has one now and then."""
    points = [(s, v) for s, v in zip(curve["step"], curve.get(column, ()), strict=False) if math.isfinite(v)]
    if points:
        axes.plot(
            *zip(*points, strict=True), color=CLAY[0], linewidth=1.4, marker="o", markersize=3.5, label="validation"
        )


def _steps(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def finetuning(curves: Mapping[str, Curve]) -> str:
    """Training and validation loss of every task, one small picture each; of a single task its scores too."""
    panels = [(task, curve, "loss") for task, curve in curves.items()]
    if len(panels) == 1:
        ((task, curve, _),) = panels
        scores = [name for name in curve if name.startswith("val_") and name != "val_loss"]
        panels = [(f"{task} loss", curve, "loss"), *((f"{task} {name[4:]}", curve, name) for name in scores[:2])]
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    return draw("finetuning", 9.6, 0.2 + 2.5 * rows, _paint_finetuning, panels, rows, columns)


def _paint_finetuning(figure: Any, panels: Sequence[tuple[str, Curve, str]], rows: int, columns: int) -> None:
    for number, (title, curve, column) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        if column == "loss":
            _paint_loss(axes, curve)
        else:
            _paint_points(axes, curve, column)
            last = max(curve["step"], default=1)
            axes.set_xlim(-0.04 * last, 1.04 * last)
        axes.set_title(title)
        _steps(axes)
        if number == 1:
            axes.legend(loc="best", fontsize=9, labelcolor=INK)


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """At most MAX_POINTS points: the means of equal stretches, NaN left out."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    size = math.ceil(len(points) / MAX_POINTS) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    means = [tuple(sum(values) / len(group) for values in zip(*group, strict=True)) for group in groups]
    return [mean[0] for mean in means], [mean[1] for mean in means]


def smooth(values: Sequence[float]) -> list[float]:
    """The mean of each value and its neighbours, a thirtieth of the curve to either side.

    At the start, where a loss falls fast, the same few on both sides: or the line would begin too low.
    """
    most = max(1, len(values) // 30)
    windows = [values[max(0, i - most) : i + min(i, most) + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]
