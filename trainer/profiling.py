"""A few steps under torch.profiler: one trace per process, for chrome://tracing or ui.perfetto.dev."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.hooks import Hook

if TYPE_CHECKING:
    from trainer.loop import StepReport, Training

logger = logging.getLogger(__name__)


class Profiler(Hook):
    """Profiles the steps from `first` to `last`, in every process."""

    def __init__(self, first: int, last: int, folder: Path) -> None:
        self.first, self.last = first, last
        self.folder = folder
        self._profile: Any = None

    def before_training(self, training: "Training") -> None:
        """Begin, if the window does."""
        self._begin(training)

    def after_step(self, training: "Training", report: "StepReport") -> None:
        """Begin after the step before the window, end after its last one."""
        if self._profile is not None and (report.step >= self.last or report.stop or training.finished):
            self._end(training)
        self._begin(training)

    def after_training(self, training: "Training") -> None:
        """Also a window that an error cuts short is written."""
        if self._profile is not None:
            self._end(training)

    def _begin(self, training: "Training") -> None:
        if self._profile is not None or training.step + 1 != self.first:
            return
        from torch.profiler import ProfilerActivity, profile

        on_gpu = training.mesh.device.type == "cuda"
        # acc_events: one window only, so nothing that was recorded is thrown away, nor warned about.
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self._profile = profile(activities=kinds, acc_events=True)
        self._profile.start()

    def _end(self, training: "Training") -> None:
        profile, self._profile = self._profile, None
        if training.mesh.device.type == "cuda":
            torch.cuda.synchronize(training.mesh.device)
        profile.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"steps-{self.first}-{self.last}-rank-{training.mesh.rank}.json.gz"
        profile.export_chrome_trace(str(self.folder / name))
        if training.mesh.is_first:
            logger.info("profile of steps %d to %d: %s", self.first, self.last, self.folder)
