"""The figures of a training for TensorBoard: loss, learning rate, gradient norm, speed, memory.

tensorboard --logdir runs/RUN/pretrain.watch/tensorboard
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.hooks import Hook
from trainer.metrics import Meter, peak_memory

if TYPE_CHECKING:
    from trainer.loop import StepReport, Training


class TensorBoard(Hook):
    """Writes event files, in the first process only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def before_training(self, training: "Training") -> None:
        """Open a file; what an interrupted run wrote of steps that come again is not shown."""
        if not training.mesh.is_first:
            return
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(self.folder), purge_step=training.step + 1)
        self._meter = Meter(training)

    def after_step(self, training: "Training", report: "StepReport") -> None:
        """The step's figures."""
        if self._writer is None:
            return
        rates = self._meter.read()
        self._meter.restart()
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
        for name, value in values.items():
            self._writer.add_scalar(name, value, report.step)

    def after_training(self, training: "Training") -> None:  # noqa: ARG002 (Hook's signature)
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
