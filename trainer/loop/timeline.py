"""A picture of one step's pipeline: when each process ran which pass of which micro batch, and when it waited."""

import contextlib
import csv
import io
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from pipelines import store
from trainer.loop.timing import Clock
from trainer.loop.training import Hook, StepReport, Training
from trainer.parallel.mesh import Mesh
from trainer.parallel.pipeline import Pipeline

logger = logging.getLogger(__name__)

PASSES = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "weight",
}
"""Methods of torch.distributed.pipelining's stages that compute; schedules wait for neighbours outside them."""
COLORS = {"forward": "#1f7a96", "backward": "#b5482f", "input": "#dd9b6f", "weight": "#6f8f3f"}
WORDS = {"forward": "forward", "backward": "backward", "input": "backward, input", "weight": "backward, weights"}
INK, GRID = "#1c2b33", "#dfe5e8"


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


class Recorder:
    """Times the passes of a step in this process."""

    def __init__(self, mesh: Mesh) -> None:
        """Start the clock, in all processes at once."""
        self._pp_rank = mesh.pp_rank
        self._clock = Clock(mesh.device)
        self._times: list[tuple[int, str, int, Any, Any]] = []
        if mesh.device.type == "cuda":
            torch.cuda.synchronize(mesh.device)
        mesh.barrier()
        mesh.barrier()  # the first barrier waits for all to arrive, this one releases them together
        self._start = self._clock.now()

    @contextlib.contextmanager
    def around(self, stages: Sequence[Any]) -> Generator[None, None, None]:
        """Time the passes of these stages inside this block."""
        for stage in stages:
            for method, kind in PASSES.items():
                setattr(stage, method, self._timed(stage.stage_index, getattr(stage, method), kind))
        try:
            yield
        finally:
            for stage in stages:
                for method in PASSES:
                    delattr(stage, method)

    def _timed(self, stage: int, method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def timed(micro_batch: int, *arguments: Any, **options: Any) -> Any:
            begin = self._clock.now()
            result = method(micro_batch, *arguments, **options)
            recorded_kind = kind if options.get("full_backward", True) else "input"
            self._times.append((stage, recorded_kind, micro_batch, begin, self._clock.now()))
            return result

        return timed

    def passes(self) -> list[Pass]:
        """Return the timed passes, in milliseconds since the start. The device must have finished."""
        return [
            Pass(
                self._pp_rank,
                stage,
                kind,
                number,
                *(1000 * self._clock.seconds(self._start, at) for at in (begin, end)),
            )
            for stage, kind, number, begin, end in self._times
        ]


class DrawSchedule(Hook):
    """Draws the pipeline of one step, and writes its passes as CSV, from real times."""

    def __init__(self, step: int, folder: Path, schedule: str) -> None:
        self.step = step
        self.folder = folder
        self.schedule = schedule
        self._recorder: Recorder | None = None

    def before_training(self, training: Training) -> None:
        """Begin if the step is the first one."""
        self._begin(training)

    def after_step(self, training: Training, report: StepReport) -> None:  # noqa: ARG002 (Hook's signature)
        """Begin after the step before, draw after the step."""
        if self._recorder is not None:
            self._draw(training, self._recorder)
            self._recorder = None
        self._begin(training)

    def _begin(self, training: Training) -> None:
        if training.step + 1 == self.step and not training.finished and isinstance(training.model.pipeline, Pipeline):
            self._recorder = Recorder(training.mesh)
            training.model.pipeline.around = self._recorder.around

    def _draw(self, training: Training, recorder: Recorder) -> None:
        mesh, pipeline = training.mesh, training.model.pipeline
        assert isinstance(pipeline, Pipeline)
        pipeline.around = contextlib.nullcontext
        if mesh.device.type == "cuda":
            torch.cuda.synchronize(mesh.device)
        # The first pipeline stands for all of them.
        local = recorder.passes() if (mesh.data_rank, mesh.tp_rank) == (0, 0) else []
        passes = [Pass(*each) for process in mesh.gather([astuple(each) for each in local]) for each in process]
        if not mesh.is_first:
            return
        name = f"schedule-step-{self.step}"
        write_csv(self.folder / f"{name}.csv", passes)
        picture = draw(passes, f"{self.schedule}, step {self.step}")
        with store.create(self.folder / f"{name}.png") as file:
            file.write(picture)
        logger.info("schedule of step %d: %s", self.step, self.folder / f"{name}.png")


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
    facts = f"{processes} processes, {stages} stages, {batches} micro batches, {bubble(passes):.1%} bubble"
    axes.set_title(f"{title}: {facts}", loc="left", fontsize=11, fontweight="bold", color=INK)
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
    if width > 0.008 * whole:
        middle = (each.begin_ms + each.end_ms) / 2 - start
        axes.text(middle, each.process, str(each.micro_batch), ha="center", va="center", color="white", fontsize=8)


def _paint_legend(figure: Any, passes: Sequence[Pass], *, several: bool) -> None:
    from matplotlib.patches import Patch

    kinds = {each.kind for each in passes}
    patches = [Patch(color=color, label=WORDS[kind]) for kind, color in COLORS.items() if kind in kinds]
    patches.append(Patch(color=GRID, label="waiting"))
    if several:
        patches.append(Patch(alpha=0, label="(lighter: later stages of a process)"))
    figure.legend(handles=patches, loc="outside lower right", ncols=len(patches), frameon=False, fontsize=9)
