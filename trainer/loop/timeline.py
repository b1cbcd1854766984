"""Times the passes of one step's pipeline in all processes, and has them drawn."""

import contextlib
import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from pipelines import store
from trainer.loop.timing import Clock
from trainer.loop.training import Hook, StepReport, Training
from trainer.parallel.mesh import Mesh
from trainer.parallel.pipeline import Pipeline
from trainer.reporting.schedule import Pass, draw, write_csv

logger = logging.getLogger(__name__)

PASSES = {
    "forward_one_chunk": "forward",
    "backward_one_chunk": "backward",
    "backward_weight_one_chunk": "weight",
}
"""Methods of torch.distributed.pipelining's stages that compute; by NCCL, schedules wait for others outside them."""
INPUTS = ("_retrieve_recv_activations", "_retrieve_recv_grads")
"""What these begin with, where a stage waits for what comes by copies."""


class Recorder:
    """Times the passes of a step in this process."""

    def __init__(self, mesh: Mesh) -> None:
        """Start the clock, in all processes at once."""
        self._pp_rank = mesh.pp_rank
        self._clock = Clock(mesh.device)
        self._times: list[tuple[int, str, int, Any, Any]] = []
        self._begin: Any = None
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
            for method in INPUTS:
                setattr(stage, method, self._begun(getattr(stage, method)))
        try:
            yield
        finally:
            for stage in stages:
                for method in (*PASSES, *INPUTS):
                    delattr(stage, method)

    def _timed(self, stage: int, method: Callable[..., Any], kind: str) -> Callable[..., Any]:
        def timed(micro_batch: int, *arguments: Any, **options: Any) -> Any:
            self._begin = self._clock.now()
            result = method(micro_batch, *arguments, **options)
            recorded_kind = kind if options.get("full_backward", True) else "input"
            self._times.append((stage, recorded_kind, micro_batch, self._begin, self._clock.now()))
            return result

        return timed

    def _begun(self, method: Callable[[int], Any]) -> Callable[[int], Any]:
        """Let a pass begin anew once its input is there."""

        def begun(micro_batch: int) -> Any:
            result = method(micro_batch)
            self._begin = self._clock.now()
            return result

        return begun

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
