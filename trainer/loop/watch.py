"""Build the hooks that show a training.

Warnings of spikes, TensorBoard, Weights & Biases, torch.profiler, the pipeline's schedule.
"""

import contextlib
import logging
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from trainer.config import ParallelConfig, WatchConfig
from trainer.loop.guard import Spikes
from trainer.loop.metrics import Meter, peak_memory
from trainer.loop.timeline import DrawSchedule
from trainer.loop.training import Hook, StepReport, Training

logger = logging.getLogger(__name__)


def watching(section: str, config: WatchConfig, parallel: ParallelConfig, folder: Path | None) -> list[Hook]:
    """Return the hooks that a section enables, writing to `folder`; none if it is None.

    They come last, so that they see what the other hooks have measured.
    """
    hooks: list[Hook] = []
    if folder is None:
        return hooks
    if config.spike_sigma:
        hooks.append(Spikes(config.spike_sigma, config.spike_window))
    if config.tensorboard:
        hooks.append(TensorBoard(folder / "tensorboard"))
    if config.wandb:
        hooks.append(WeightsAndBiases(config.wandb, folder))
    if window := config.window(section):
        hooks.append(Profiler(*window, folder / "profile"))
    if config.draw_schedule:
        hooks.append(DrawSchedule(config.draw_schedule, folder, parallel.schedule))
    return hooks


class TensorBoard(Hook):
    """Writes loss, learning rate, gradient norm, speed and memory as event files, in the first process only.

    Show them with `tensorboard --logdir runs/RUN/pretrain.watch/tensorboard`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def before_training(self, training: Training) -> None:
        """Open a file; steps of an interrupted run that are repeated are not shown twice."""
        if not training.mesh.is_first:
            return
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=training.step + 1)
        self._meter = Meter(training)

    def after_step(self, training: Training, report: StepReport) -> None:
        """Write the step's figures."""
        if self._writer is None:
            return
        for name, value in _figures(training, report, self._meter).items():
            self._writer.add_scalar(name, value, report.step)

    def after_training(self, training: Training) -> None:  # noqa: ARG002 (Hook's signature)
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases(Hook):
    """Sends the figures that TensorBoard gets to a project of Weights & Biases, from the first process only.

    A run that is resumed goes on with the curves that it began: its id is in `wandb-id` in the folder. What the service
    does can neither change nor end a training: after an error, which is logged, nothing more is sent.
    """

    def __init__(self, project: str, folder: Path) -> None:
        self.project = project
        self.folder = folder
        self._run: Any = None

    def before_training(self, training: Training) -> None:
        """Begin a run, or go on with that of the checkpoint."""
        if not training.mesh.is_first:
            return
        import wandb  # pyright: ignore[reportMissingImports] (an extra)

        self.folder.mkdir(parents=True, exist_ok=True)
        with self._without_ending():
            self._run = wandb.init(
                project=self.project,
                name="-".join(self.folder.resolve().with_suffix("").parts[-2:]),
                id=self._id(fresh=training.step == 0),
                resume="allow",
                dir=str(self.folder),
                config=training.identity,
                settings=wandb.Settings(console="off", silent=True),
            )
            # A step that is trained again after a resume has a smaller number than the last one that was sent.
            self._run.define_metric("*", step_metric="step")
        self._meter = Meter(training)

    def after_step(self, training: Training, report: StepReport) -> None:
        """Send the step's figures."""
        if self._run is None:
            return
        figures = _figures(training, report, self._meter)
        with self._without_ending():
            self._run.log({"step": report.step, **figures})

    def after_training(self, training: Training) -> None:
        """End the run; one that can be resumed is marked as stopped."""
        if self._run is not None:
            with self._without_ending():
                self._run.finish(exit_code=0 if training.finished else 1)

    def _id(self, *, fresh: bool) -> str:
        file = self.folder / "wandb-id"
        if fresh or not file.exists():
            file.write_text(uuid.uuid4().hex[:12])
        return file.read_text()

    @contextlib.contextmanager
    def _without_ending(self) -> Generator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 (whatever the service raises)
            self._run = None
            logger.warning("wandb: %s; training goes on, and nothing more is sent", " ".join(str(error).split()))


def _figures(training: Training, report: StepReport, meter: Meter) -> dict[str, float]:
    """Return what services for curves get of a step; the meter is restarted."""
    rates = meter.read()
    meter.restart()
    values = {
        "loss/train": report.loss,
        "learning_rate": report.lr,
        "gradient_norm": report.grad_norm,
        "speed/tokens_per_second": rates.tokens_per_second,
        "speed/tflops_per_process": rates.tflops,
        **{f"memory/peak_{name}": value for name, value in peak_memory(training.mesh.device).items()},
    }
    if report.val_loss is not None:
        values["loss/validation"] = report.val_loss
    if rates.mfu is not None:
        values["speed/mfu"] = rates.mfu
    return values


class Profiler(Hook):
    """Profiles the steps from `first` to `last`: one trace per process, for chrome://tracing or ui.perfetto.dev."""

    def __init__(self, first: int, last: int, folder: Path) -> None:
        self.first, self.last = first, last
        self.folder = folder
        self._profile: Any = None

    def before_training(self, training: Training) -> None:
        """Begin if the window starts with the first step."""
        self._begin(training)

    def after_step(self, training: Training, report: StepReport) -> None:
        """Begin after the step before the window, end after its last one."""
        if self._profile is not None and (report.step >= self.last or report.stop or training.finished):
            self._end(training)
        self._begin(training)

    def after_training(self, training: Training) -> None:
        """Write the trace of a window that an error cut short."""
        if self._profile is not None:
            self._end(training)

    def _begin(self, training: Training) -> None:
        if self._profile is not None or training.step + 1 != self.first:
            return
        from torch.profiler import ProfilerActivity, profile

        on_gpu = training.mesh.device.type == "cuda"
        # acc_events: there is one window only, so no event is dropped and no warning is needed.
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self._profile = profile(activities=kinds, acc_events=True)
        self._profile.start()

    def _end(self, training: Training) -> None:
        profile, self._profile = self._profile, None
        if training.mesh.device.type == "cuda":
            torch.cuda.synchronize(training.mesh.device)
        profile.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"steps-{self.first}-{self.last}-rank-{training.mesh.rank}.json.gz"
        profile.export_chrome_trace(str(self.folder / name))
        if training.mesh.is_first:
            logger.info("profile of steps %d to %d: %s", self.first, self.last, self.folder)
