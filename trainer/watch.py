"""What a section asks to be seen of a training, as hooks."""

from pathlib import Path

from trainer.config import ParallelConfig, WatchConfig
from trainer.guard import Spikes
from trainer.hooks import Hook
from trainer.profiling import Profiler
from trainer.tensorboard import TensorBoard
from trainer.timeline import DrawSchedule


def watching(section: str, config: WatchConfig, parallel: ParallelConfig, folder: Path | None) -> list[Hook]:
    """The hooks that write to `folder` (None: none); they come last, so that they see what the others found."""
    hooks: list[Hook] = []
    if folder is None:
        return hooks
    if config.spike_sigma:
        hooks.append(Spikes(config.spike_sigma, config.spike_window))
    if config.tensorboard:
        hooks.append(TensorBoard(folder / "tensorboard"))
    if window := config.window(section):
        hooks.append(Profiler(*window, folder / "profile"))
    if config.draw_schedule:
        hooks.append(DrawSchedule(config.draw_schedule, folder, parallel.schedule))
    return hooks
