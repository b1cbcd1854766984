"""Draws the pictures of the report as SVG text: curves, and confusion matrices.

The same values give the same bytes: figures are drawn without global state, ids come from a fixed salt, and no date or
version is written. Text stays text, so that a page shows it in its own font.
"""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.reporting.results import Curve
from trainer.reporting.task_results import Confusion

INK, MUTED, GRID, PAPER = "#1c2b33", "#64757e", "#dfe5e8", "#ffffff"
WATER, DEEP, SAND = "#1f7a96", "#0c4a5e", "#b9c6cc"
CLAY = ("#b5482f", "#d0774f", "#dd9b6f", "#e7b994", "#eed0b5", "#f3e2d2")
"""Colours of rejected rows, by reason, the most frequent first."""
WIDTH = 9.6
"""Width of a picture that is as wide as the page, in inches."""
NUMBERED_CLASSES = 10
"""Most classes of a confusion matrix with numbers in its cells."""
NAMED_CLASSES = 16
"""Most classes of a confusion matrix with their names, and lines between them."""
MAX_POINTS = 800
"""Most points of a curve; a longer one is averaged, since a long run would make a page of megabytes."""
SPEEDS = (
    ("tokens_per_second", "Tokens per second", "tokens/s"),
    ("memory_gb", "Memory of the first process (GB)", "GB"),
    ("mfu", "MFU", "MFU"),
)
"""Columns of speed.csv that are shown, with titles and units."""
Panel = Callable[[Any], None]
"""Draws on one pair of axes."""
_LINE_COLORS = (CLAY[0], DEEP, CLAY[2], "#6b8f3c", SAND)

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
    """Call `paint(figure, *arguments)` on a figure of `width` x `height` inches, and return it as an SVG element.

    Ids are prefixed with the picture's `name`, so that one page can hold several pictures.
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


def pretraining(curve: Curve, uniform_loss: float | None) -> str:
    """Draw training and validation loss by step, with learning rate and gradient norm beside them."""
    return draw("pretraining", WIDTH, 3.7, _paint_pretraining, curve, uniform_loss)


def _paint_pretraining(figure: Any, curve: Curve, uniform_loss: float | None) -> None:
    side = [
        (column, title)
        for column, title in (("lr", "Learning rate"), ("grad_norm", "Gradient norm"))
        if column in curve
    ]
    grid = figure.add_gridspec(2, 2 if side else 1, width_ratios=(2.6, 1) if side else None)
    axes = figure.add_subplot(grid[:, 0])
    _paint_loss(axes, curve)
    if uniform_loss:
        label = f"a uniform guess: {uniform_loss:.2f}"
        axes.axhline(uniform_loss, color=SAND, linewidth=1, linestyle=(0, (4, 3)), label=label)
    axes.legend(loc="upper right", fontsize=9, labelcolor=INK)  # where a falling loss is not
    axes.set_title("Loss (nats per token)")
    axes.set_xlabel("step")
    for row, (column, title) in enumerate(side):
        small = figure.add_subplot(grid[row, 1])
        small.plot(*thin(curve["step"], curve[column]), color=DEEP, linewidth=1.1)
        small.set_title(title)
        _steps(small)
    _steps(axes)


def _paint_loss(axes: Any, curve: Curve) -> None:
    """Paint training loss in a light colour, its running mean in a dark one, and validation loss as points."""
    steps, losses = thin(curve["step"], curve["loss"])
    axes.plot(steps, losses, color=WATER, alpha=0.3, linewidth=0.8)
    axes.plot(steps, smooth(losses), color=WATER, linewidth=1.8, label="training")
    _paint_points(axes, curve, "val_loss")


def _paint_points(axes: Any, curve: Curve, column: str) -> None:
    """Paint a column that has values at some steps only."""
    points = [(s, v) for s, v in zip(curve["step"], curve.get(column, ()), strict=False) if math.isfinite(v)]
    if points:
        axes.plot(
            *zip(*points, strict=True), color=CLAY[0], linewidth=1.4, marker="o", markersize=3.5, label="validation"
        )


def speed(curve: Curve) -> str:
    """Draw tokens per second and memory by time of training."""
    return draw("speed", WIDTH, 2.6, _paint_speed, curve)


def _paint_speed(figure: Any, curve: Curve) -> None:
    times, unit = in_unit(curve["seconds"])
    for number, (column, title, _) in enumerate(SPEEDS[:2], start=1):
        axes = figure.add_subplot(1, 2, number)
        axes.plot(*thin(times, curve[column]), color=WATER, linewidth=1.4)
        axes.set_title(title)
        axes.set_xlabel(unit)


def by_measure(curve: Curve) -> dict[str, list[tuple[int, tuple[str, str]]]]:
    """Return measure -> the number of each task's line, its name and its column."""
    columns = [(column.rpartition(" "), column) for column in curve if column != "step"]
    measures = dict.fromkeys(parts[2] for parts, _ in columns)
    return {
        measure: list(enumerate((parts[0], column) for parts, column in columns if parts[2] == measure))
        for measure in measures
    }


def task_scores(curve: Curve) -> str:
    """Draw the scores of tasks by step of pretraining, a panel for each measure."""
    panels = [_task_panel(curve, measure, [each for _, each in tasks]) for measure, tasks in by_measure(curve).items()]
    return draw("task-scores", WIDTH, 3.2 * math.ceil(len(panels) / 2), _paint_panels, panels, 2)


def _task_panel(curve: Curve, measure: str, tasks: Sequence[tuple[str, str]]) -> Panel:
    def paint(axes: Any) -> None:
        for number, (task, column) in enumerate(tasks):
            color = _LINE_COLORS[number % len(_LINE_COLORS)]
            axes.plot(curve["step"], curve[column], color=color, linewidth=1.6, marker="o", markersize=3.5, label=task)
        axes.set_title(f"Tasks: {measure}")
        axes.legend(loc="best", fontsize=8.5, labelcolor=INK)
        _steps(axes)

    return paint


def in_unit(seconds: Sequence[float]) -> tuple[list[float], str]:
    """Return times in the unit that suits the last one, and its name."""
    last = max(seconds, default=0)
    size, unit = next(
        (size, unit) for size, unit in ((3600, "hours"), (60, "minutes"), (0, "seconds")) if last >= 3 * size
    )
    return [value / (size or 1) for value in seconds], unit


def _steps(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda step, _: f"{step:,.0f}"))


def finetuning(curves: Mapping[str, Curve]) -> str:
    """Draw training and validation loss of every task in a panel each; of a single task its scores too."""
    panels = [(task, curve, "loss") for task, curve in curves.items()]
    if len(panels) == 1:
        ((task, curve, _),) = panels
        scores = [name for name in curve if name.startswith("val_") and name != "val_loss"]
        panels = [(f"{task} loss", curve, "loss"), *((f"{task} {name[4:]}", curve, name) for name in scores[:2])]
    columns = 2 if len(panels) in (2, 4) else min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    return draw("finetuning", WIDTH, 0.2 + 2.5 * rows, _paint_finetuning, panels, rows, columns)


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


def epochs(table: Curve, name: str = "epochs") -> str:
    """Draw epochs.csv in two panels: losses, and scores; `name` prefixes the ids."""
    return draw(name, WIDTH, 3.2, _paint_panels, _epoch_panels(table), 2)


def confusions(matrices: Mapping[str, Confusion]) -> str:
    """Draw the confusion matrices of a task's splits side by side."""
    return draw("confusion", 4.8 * len(matrices), 3.9, _paint_panels, _confusion_panels(matrices), len(matrices))


def _paint_panels(figure: Any, panels: Sequence[Panel], columns: int) -> None:
    grid = figure.add_gridspec(math.ceil(len(panels) / columns), columns)
    for number, panel in enumerate(panels):
        panel(figure.add_subplot(grid[divmod(number, columns)]))


def _epoch_panels(table: Curve) -> list[Panel]:
    losses = {
        name: label for name in table if name.endswith("_loss") and (label := column_label(name.removesuffix("_loss")))
    }
    known = {"epoch", "step", "loss", "lr", *losses}
    scores = {name: column_label(name) for name in table if name not in known}

    def loss(axes: Any) -> None:
        _paint_by_epoch(axes, table, {"loss": "while training", **losses}, (WATER, *_LINE_COLORS))
        axes.set_title("Loss by epoch")

    def score(axes: Any) -> None:
        _paint_by_epoch(axes, table, scores, _LINE_COLORS)
        axes.set_title("Scores by epoch")

    return [loss, score] if scores else [loss]


def column_label(column: str) -> str:
    """Shorten `validation_f1` to `f1`, but `validation_matched` to `validation matched`."""
    words = column.split("_")
    return " ".join(words[1:] if words[0] == "validation" and len(words) > 1 and column[11:] not in _SPLITS else words)


_SPLITS = ("matched", "mismatched")


def _paint_by_epoch(axes: Any, table: Curve, columns: Mapping[str, str], colors: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    x, on_validation = table.get("epoch", table["step"]), [name for name in columns if not _is_train(name)]
    for column, label in columns.items():
        # Scores on training rows are dashed, in the colour of the same score on validation rows.
        same_score = [each for each in on_validation if column in (each, training_column(each))]
        number = on_validation.index((same_score or on_validation)[0])
        style = {"linestyle": (0, (3, 2)) if _is_train(column) else "-", "marker": "o", "markersize": 3.5}
        style |= {"markerfacecolor": PAPER} if _is_train(column) else {}
        axes.plot(x, table[column], color=colors[number % len(colors)], linewidth=1.6, label=label, **style)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))  # of one epoch a single tick
    axes.set_xlabel("epoch")
    axes.margins(x=0.06, y=0.12)
    if len(columns) > 1:
        axes.legend(loc="best", fontsize=8.5, labelcolor=INK)
    elif columns:
        axes.set_ylabel(next(iter(columns.values())))


def training_column(column: str) -> str:
    """Return the column of the same score on training rows: `validation_matched_macro_f1` -> `train_macro_f1`."""
    return "train_" + re.sub(r"^validation_((mis)?matched_)?", "", column)


def _is_train(column: str) -> bool:
    return column.startswith("train_")


def _confusion_panels(matrices: Mapping[str, Confusion]) -> list[Panel]:
    def panel(split: str, confusion: Confusion) -> Panel:
        return lambda axes: _paint_confusion(axes, split, confusion)

    return [panel(split, confusion) for split, confusion in matrices.items()]


def _paint_confusion(axes: Any, split: str, confusion: Confusion) -> None:
    """Paint each class as a row of cells, darker the larger their fraction of the row, with their counts."""
    from matplotlib.colors import LinearSegmentedColormap

    size = len(confusion.labels)
    shares = [[cell / max(1, sum(row)) for cell in row] for row in confusion.counts]
    colors = LinearSegmentedColormap.from_list("shares", [PAPER, WATER])
    axes.pcolormesh(shares, cmap=colors, vmin=0, vmax=1, edgecolor=SAND, linewidth=0.6 if size <= NAMED_CLASSES else 0)
    for row, cells in enumerate(confusion.counts if size <= NUMBERED_CLASSES else []):
        for column, cell in enumerate(cells):
            share = shares[row][column]
            ink = PAPER if share > 0.75 else INK
            text = f"{cell:,}\n{share:.0%}" if size <= 4 else f"{cell:,}"
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=ink, fontsize=9)
    axes.invert_yaxis()
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    ticks, names = [i + 0.5 for i in range(size)], [_short_name(label) for label in confusion.labels]
    shown = size <= NAMED_CLASSES
    axes.set_xticks(ticks if shown else [], names if shown else [], rotation=0 if size <= 3 else 90, fontsize=8.5)
    axes.set_yticks(ticks if shown else [], names if shown else [], fontsize=8.5)
    axes.set_xlabel("predicted")
    axes.set_ylabel("label")
    axes.tick_params(colors=MUTED)
    axes.set_title(f"Confusion, {split.replace('_', ' ')}")


def _short_name(label: str) -> str:
    return label if len(label) <= 18 else f"{label[:17]}…"


def thin(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return at most MAX_POINTS points: the means of equal stretches, without NaN."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(b)]
    size = math.ceil(len(points) / MAX_POINTS) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    means = [tuple(sum(values) / len(group) for values in zip(*group, strict=True)) for group in groups]
    return [mean[0] for mean in means], [mean[1] for mean in means]


def smooth(values: Sequence[float]) -> list[float]:
    """Return the running mean over a thirtieth of the curve on each side of a value.

    Near the start, where a loss falls fast, it takes equally few on both sides, or the line would begin too low.
    """
    most = max(1, len(values) // 30)
    windows = [values[max(0, i - most) : i + min(i, most) + 1] for i in range(len(values))]
    return [sum(window) / len(window) for window in windows]
