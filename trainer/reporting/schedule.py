"""A picture of a pipeline's step: when each process runs which pass of which micro batch, and when it waits."""

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from pipelines import store

COLORS = {"forward": "#1f7a96", "backward": "#b5482f", "input": "#dd9b6f", "weight": "#6f8f3f"}
WORDS = {"forward": "forward", "backward": "backward", "input": "backward, input", "weight": "backward, weights"}
INK, GRID = "#1c2b33", "#dfe5e8"
LIGHT = 0.8
"""Opacity of a box up to which its number is dark."""
SIZES = (8, 6)
"""Of the numbers in boxes, in points: the first that fits, and none in narrower boxes."""
DIGIT = 0.0008
"""Width of a digit of one point, with some room, as a share of the picture's width."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one micro batch through a stage."""

    process: int
    """Its pp rank."""
    stage: int
    kind: str
    """forward, backward; input and weight if the schedule splits the backward pass."""
    micro_batch: int
    begin_ms: float
    end_ms: float


def bubble(passes: Sequence[Pass]) -> float:
    """Return the fraction of the processes' time, from the first pass to the last, spent idle."""
    whole = max(each.end_ms for each in passes) - min(each.begin_ms for each in passes)
    busy = sum(each.end_ms - each.begin_ms for each in passes)
    return 1 - busy / (whole * len({each.process for each in passes}))


def write_csv(path: Path, passes: Sequence[Pass]) -> None:
    """Write one row per pass."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(field.name for field in fields(Pass))
    for each in sorted(passes, key=lambda each: (each.process, each.begin_ms)):
        writer.writerow((*astuple(each)[:4], f"{each.begin_ms:.4f}", f"{each.end_ms:.4f}"))
    with store.create(path) as file:
        file.write(text.getvalue().encode())


def draw(passes: Sequence[Pass], title: str) -> bytes:
    """Draw a PNG with a row per process: a box per micro batch with its number, later stages of a process lighter."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    processes = 1 + max(each.process for each in passes)
    figure = Figure(figsize=(13, 1.5 + 0.62 * processes), dpi=130, layout="constrained")
    axes: Any = figure.add_subplot()
    start = min(each.begin_ms for each in passes)
    whole = max(each.end_ms for each in passes) - start
    for each in passes:
        _paint_pass(axes, each, start, whole, passes)
    stages, batches = 1 + max(each.stage for each in passes), 1 + max(each.micro_batch for each in passes)
    facts = (
        f"{processes} processes, {stages} stages, {batches} micro batch{'es' * (batches > 1)}, "
        f"{bubble(passes):.1%} bubble in this picture"
    )
    axes.set_title(textwrap.fill(f"{title}: {facts}", 120), loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set(xlim=(0, whole), ylim=(processes - 0.5, -0.5), yticks=range(processes), xlabel="ms")
    axes.set_yticklabels([f"process {number}" for number in range(processes)])
    axes.set_facecolor(GRID)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
    _paint_legend(figure, passes, several=stages > processes)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()


def _paint_pass(axes: Any, each: Pass, start: float, whole: float, passes: Sequence[Pass]) -> None:
    stages = sorted({other.stage for other in passes if other.process == each.process})
    alpha = 1 - 0.45 * stages.index(each.stage) / max(1, len(stages) - 1)
    width = each.end_ms - each.begin_ms
    axes.barh(
        each.process,
        width,
        left=each.begin_ms - start,
        height=0.86,
        color=COLORS[each.kind],
        alpha=alpha,
        edgecolor="white",
        linewidth=0.5,
    )
    number = str(each.micro_batch)
    if size := next((size for size in SIZES if width > DIGIT * size * len(number) * whole), 0):
        middle, ink = (each.begin_ms + each.end_ms) / 2 - start, "white" if alpha > LIGHT else INK
        axes.text(middle, each.process, number, ha="center", va="center", color=ink, fontsize=size)


def _paint_legend(figure: Any, passes: Sequence[Pass], *, several: bool) -> None:
    from matplotlib.patches import Patch

    kinds = {each.kind for each in passes}
    patches = [Patch(color=color, label=WORDS[kind]) for kind, color in COLORS.items() if kind in kinds]
    patches.append(Patch(color=GRID, label="waiting"))
    if several:
        patches.append(Patch(alpha=0, label="(lighter: later stages of a process)"))
    figure.legend(handles=patches, loc="outside lower right", ncols=len(patches), frameon=False, fontsize=9)
