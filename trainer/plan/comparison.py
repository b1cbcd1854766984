"""What a run took beside what was predicted for it, so that everyone sees how far the planner can be trusted."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from trainer.config import ModelConfig, ParallelConfig, PretrainConfig
from trainer.plan import Layout
from trainer.plan.machines import GPUS, Machine, known_gpu
from trainer.plan.prediction import Task, predict


def compare(
    config: PretrainConfig,
    model: ModelConfig,
    parallel: ParallelConfig,
    layout: Layout,
    vocab_size: int,
    segment: Mapping[str, Any],
) -> dict[str, float] | None:
    """Return what was predicted for a segment of a run, and how far it was off; None on CPUs and unknown GPUs.

    `segment`: what `hooks.Speeds` recorded. Errors are relative: 0.1 if a tenth more was predicted than it took.
    """
    name = known_gpu(segment["device"])
    if name is None:
        return None
    decided = {key: segment["layout"][key] for key in ("offload", "offload_fraction")}  # where it was auto
    ran_in = segment.get("precision", config.precision)  # bf16 where no product could be in fp8; earlier releases: none
    found = predict(
        Task(model=model, vocab_size=vocab_size, config=dataclasses.replace(config, precision=ran_in)),
        Machine(gpu=GPUS[name], gpus=layout.processes),
        dataclasses.replace(layout.filled(parallel), **decided),
        layout.micro_batch_size,
    )
    taken, needed = segment["median_step_seconds"], segment["peak_memory_gb"]
    return {
        "step_seconds": round(found.step, 5),
        "memory_gb": round(found.bytes / 1e9, 3),
        "step_error": round(found.step / taken - 1, 4) if taken else 0.0,
        "memory_error": round(found.bytes / 1e9 / needed - 1, 4) if needed else 0.0,
    }


def in_words(compared: Mapping[str, float], segment: Mapping[str, Any]) -> str:
    """Return one line for the log."""
    taken, planned = segment["median_step_seconds"] * 1e3, compared["step_seconds"] * 1e3
    memory = f"memory {segment['peak_memory_gb']:,.1f} GB, planned {compared['memory_gb']:,.1f}"
    return (
        f"a step took {taken:,.1f} ms, planned {planned:,.1f} ({compared['step_error']:+.0%}); {memory} "
        f"({compared['memory_error']:+.0%})"
    )
