"""What the rows of `benchmarks.layouts` share: a layout from its keys, the job of every process, a limit of time."""

import contextlib
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

from trainer.config import FinetuneConfig, ModelConfig, ParallelConfig, PretrainConfig
from trainer.plan import Layout, Plan, plan_pretraining
from trainer.pretrain import PretrainJob
from trainer.processes import launch

SECONDS = 120
"""A row that takes longer has a deadlock."""
OK, FAILED = "ok", "FAILED"
"""What becomes of a row."""
Keys = dict[str, Any]


def layout(keys: Keys, determinism: str) -> ParallelConfig:
    """These degrees; the others are 1."""
    values: Keys = {"dp_replicate": 1, "determinism": determinism, **keys}
    return ParallelConfig(**values)


def processes(parallel: ParallelConfig) -> int:
    """GPUs that the layout takes."""
    return parallel.pp * parallel.dp_replicate * parallel.dp_shard * parallel.tp


def planned(config: PretrainConfig | FinetuneConfig, layout: Layout) -> Plan:
    """What a case resolves to: all of them are given in steps."""
    return Plan(steps=config.steps, warmup_steps=config.warmup_steps, layout=layout)


def pretrain_job(
    training: PretrainConfig, model: ModelConfig, parallel: ParallelConfig, train: Path, val: Path, scratch: Path
) -> PretrainJob:
    """Return the job of a case, which every process of it gets."""
    return PretrainJob(
        config=training,
        model=model,
        parallel=parallel,
        plan=planned(training, plan_pretraining(training, parallel, launch.count_processes(parallel))),
        train=train,
        val=val,
        data={"train": "train", "val": "val"},
        scratch=scratch,
    )


@contextlib.contextmanager
def deadline(seconds: int) -> Generator[None]:
    """TimeoutError when the block takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
