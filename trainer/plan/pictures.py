"""Pictures of a planned step: when each process of a pipeline works, and the memory of a process over time."""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import store
from trainer.plan.machines import GIB, Machine
from trainer.plan.offloading import MARGIN
from trainer.plan.prediction import Prediction, kept_bytes, memory_of, pass_seconds, ranks_to_look_at, sizes_of
from trainer.plan.schedule import Action, order
from trainer.plan.search import name_of
from trainer.reporting.schedule import INK, Pass, draw

MOST_DRAWN = 32
"""Micro batches that are drawn at most; the others of a step look like those in the middle."""
LEAST_DRAWN = 0.002
"""Share of the memory below which a part could not be seen."""
COLORS = {
    "weights": "#0c4a5e",
    "optimizer": "#1f7a96",
    "gradients": "#6aa9bd",
    "gathered": "#b9dbe6",
    "buffers": "#b9c6cc",
    "received": "#a58ab5",
    "visits": "#8fb39a",
    "activations": "#b5482f",
    "loss or block": "#dd9b6f",
}
"""Part of the memory -> its colour, from the bottom."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The memory of a process at one time."""

    ms: float
    memory: dict[str, float]
    """Bytes by what they are for."""


def write_pictures(found: Prediction, machine: Machine, folder: Path) -> list[Path]:
    """Draw a layout's memory, and its pipeline if it has one, as PNG files in `folder`; return their paths."""
    passes = planned_passes(found, machine)
    drawn = {"memory": draw_memory(found, machine, passes)}
    if found.parallel.pp > 1:
        drawn["pipeline"] = draw(passes, f"planned: {name_of(found)}{_of_all(found)}")
    for name, picture in drawn.items():
        with store.create(folder / f"{name}.png") as file:
            file.write(picture)
    return [folder / f"{name}.png" for name in drawn]


def drawn_passes(found: Prediction) -> int:
    """Return how many micro batches of a step are drawn: all, or as many whole rounds as MOST_DRAWN holds."""
    most = MOST_DRAWN if found.parallel.pp > 1 else 2
    rounds = max(1, most // found.parallel.pp)
    return found.passes if found.passes <= most else min(found.passes, rounds * found.parallel.pp)


def _of_all(found: Prediction) -> str:
    number = drawn_passes(found)
    return "" if number == found.passes else f", {number} of the {found.passes} micro batches of a step"


def planned_passes(found: Prediction, machine: Machine) -> list[Pass]:
    """Return when each process runs which pass; sends take no time."""
    parallel, number = found.parallel, drawn_passes(found)
    orders = {rank: order(parallel.schedule, parallel.pp, parallel.chunks, number, rank) for rank in range(parallel.pp)}
    tokens = found.micro_batch * found.task.config.sequence_length
    slower = machine.learned(parallel).seconds
    both = {
        rank: 1e3 * slower * sum(pass_seconds(found.task, machine, parallel, tokens, rank).values()) / parallel.chunks
        for rank in range(parallel.pp)
    }
    forward = 1 / 4 if parallel.activation_checkpointing == "full" else 1 / 3
    last, clocks = parallel.pp * parallel.chunks - 1, dict.fromkeys(orders, 0.0)
    ends: dict[Action, float] = {}
    passes: list[Pass] = []
    while any(orders.values()):
        before = len(passes)
        for rank, left in orders.items():
            while left and (needed := _waits_for(left[0], last)) <= ends.keys():
                kind, stage, micro = left.pop(0)
                begin = max([clocks[rank], *(ends[each] for each in needed)])
                clocks[rank] = begin + both[rank] * (forward if kind == "forward" else 1 - forward)
                ends[kind, stage, micro] = clocks[rank]
                passes.append(Pass(rank, stage, kind, micro, begin, clocks[rank]))
        assert len(passes) > before, f"{parallel.schedule}: processes wait for each other; `order` only approximates it"
    return passes


def _waits_for(action: Action, last: int) -> set[Action]:
    """Return the passes whose results a pass takes."""
    kind, stage, micro = action
    if kind == "forward":
        return {("forward", stage - 1, micro)} if stage else set()
    return {("backward", stage + 1, micro)} if stage < last else {("forward", stage, micro)}


def memory_over_time(found: Prediction, machine: Machine, passes: Sequence[Pass], rank: int) -> list[Moment]:
    """Return the memory of a process at the begin and end of each of its passes."""
    task, parallel = found.task, found.parallel
    parts = memory_of(task, parallel, found.micro_batch, found.passes, rank)
    layers = sizes_of(task, parallel)
    size = 2 if task.config.precision == "fp32" else 1
    per_layer = found.micro_batch * task.config.sequence_length * kept_bytes(task, parallel) * size
    last, kept = len(layers) - 1, 0.0
    recomputes = parallel.activation_checkpointing != "none"
    moments: list[Moment] = []

    def note(ms: float, working: float) -> None:
        values = {**parts, "activations": kept, "loss or block": working}
        learned = machine.learned(parallel).memory
        moments.append(Moment(ms, {name: value * learned for name, value in values.items()}))

    for each in (each for each in passes if each.process == rank):
        working = parts["loss or block"] if each.stage == last or recomputes else 0.0
        note(each.begin_ms, working if each.kind == "backward" else 0.0)
        kept += per_layer * layers[each.stage] * (1 if each.kind == "forward" else -1)
        note(each.end_ms, 0.0)
    return moments


def draw_memory(found: Prediction, machine: Machine, passes: Sequence[Pass]) -> bytes:
    """Draw a PNG of the memory of the process that needs most, by what it is for, over the passes that are drawn."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    task, parallel = found.task, found.parallel
    rank = max(
        ranks_to_look_at(task, parallel),
        key=lambda each: sum(memory_of(task, parallel, found.micro_batch, found.passes, each).values()),
    )
    moments = memory_over_time(found, machine, passes, rank)
    figure = Figure(figsize=(13, 5), dpi=130, layout="constrained")
    axes: Any = figure.add_subplot()
    names = [
        name for name in COLORS if any(moment.memory.get(name, 0) > LEAST_DRAWN * found.bytes for moment in moments)
    ]
    times = [moment.ms for moment in moments]
    values = [[moment.memory.get(name, 0.0) / GIB for moment in moments] for name in names]
    axes.stackplot(times, values, labels=names, colors=[COLORS[name] for name in names], linewidth=0)
    limit = machine.gpu.memory / GIB
    top = 1.1 * limit
    if found.bytes / GIB > limit / 2:
        axes.axhline(limit, color=INK, linewidth=1.2)
        axes.axhline(MARGIN * limit, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        note = f"{limit:,.0f} GiB for a process; dashed: {MARGIN:.0%} of it, the most that a plan may need"
        axes.annotate(note, (0, limit), xytext=(4, 4), textcoords="offset points", color=INK, fontsize=9)
    else:  # its parts could not be told apart below the limit
        top = 1.3 * found.bytes / GIB
    who = f"process {rank}" if parallel.pp > 1 else "each process"
    title = f"{who}: {found.bytes / GIB:,.0f} of {limit:,.0f} GiB, planned: {name_of(found)}{_of_all(found)}"
    axes.set_title(textwrap.fill(title, 110), loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set(xlim=(0, max(times)), ylim=(0, top), xlabel="ms", ylabel="GiB")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK)
    figure.legend(loc="outside lower right", ncols=len(names), frameon=False, fontsize=9)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)
    return buffer.getvalue()
