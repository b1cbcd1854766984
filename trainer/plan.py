"""The plan of a run: its steps, its warm-up, and how the processes share a step.

The stage resolves it once, before any process starts, and each process gets it as a `Plan`. Settings without a solution
raise ConfigError with the nearest values that have one. No torch.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from pipelines.errors import ConfigError
from trainer.checks import choices, divisors, nonzero
from trainer.config import IN_ROUNDS, FinetuneConfig, ParallelConfig, PretrainConfig, WatchConfig

C = TypeVar("C", PretrainConfig, FinetuneConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the processes of a run share a step."""

    processes: int
    data_ranks: int
    """Processes that each take a different share of the batch."""
    micro_batch_size: int
    """Samples per forward pass of a process, at most."""

    def record(self, parallel: ParallelConfig) -> dict[str, Any]:
        """Return section `parallel` with its open values filled in, for the provenance."""
        degrees = {"dp_replicate": self.data_ranks // parallel.dp_shard, "processes": self.processes}
        return {**dataclasses.asdict(parallel), **degrees}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The resolved length and layout of a run."""

    steps: int
    """Optimizer steps."""
    warmup_steps: int
    """Steps over which the learning rate rises."""
    layout: Layout


def plan_pretraining(config: PretrainConfig, parallel: ParallelConfig, processes: int) -> Layout:
    """Resolve how `processes` share a step of pretraining, in equal shares."""
    ranks = data_ranks(parallel, processes)
    share = check_batch("pretrain", config.global_batch_size, ranks)
    size = micro_batch(parallel, "pretrain", share, config.micro_batch_size)
    return Layout(processes=processes, data_ranks=ranks, micro_batch_size=size)


def plan_finetuning(config: FinetuneConfig, parallel: ParallelConfig, processes: int) -> Layout:
    """Resolve how `processes` share a step of fine-tuning; without a pipeline shares need not be equal."""
    ranks = data_ranks(parallel, processes)
    share, size = -(-config.global_batch_size // ranks), config.micro_batch_size
    size = (size or share) if parallel.pp == 1 else micro_batch(parallel, "finetune", share, size)
    return Layout(processes=processes, data_ranks=ranks, micro_batch_size=size)


def in_steps(section: str, config: C, epoch: int) -> C:
    """Return the section with its length and warm-up in steps.

    `epoch`: its samples in pretraining, its steps in fine-tuning. Raises ConfigError if the warm-up is longer than the
    run, or if a step to be watched is beyond the last one.
    """
    run = config.in_steps(epoch)
    check_warmup(section, config, run.steps)
    check_watched_steps(section, config, run.steps)
    return run


def check_warmup(section: str, config: PretrainConfig | FinetuneConfig, steps: int) -> None:
    """Raise ConfigError if the warm-up is longer than the run of `steps` steps."""
    if config.warmup_steps > steps:
        (length,) = nonzero(section, config, [unit for unit in ("steps", "tokens", "epochs") if hasattr(config, unit)])
        key = length.split(".")[1].split()[0]
        counted = length if key == "steps" else f"the {steps} steps of {length}"
        raise ConfigError(
            f"{section}.warmup_steps {config.warmup_steps} is more than {counted}: lower warmup_steps, or raise {key}"
        )


def check_watched_steps(section: str, config: WatchConfig, steps: int) -> None:
    """Raise ConfigError if a step to be watched is beyond the last of `steps`."""
    window = config.window(section)
    for key, last in (("profile", window[1] if window else 0), ("draw_schedule", config.draw_schedule)):
        if last > steps:
            raise ConfigError(f"{section}.{key} {getattr(config, key)}: the run has {steps} steps; name earlier ones")


def replicas(parallel: ParallelConfig, processes: int) -> int:
    """Return dp_replicate for `processes` in all. Raises ConfigError if the layout does not use exactly that many."""
    rest = parallel.pp * parallel.dp_shard * parallel.tp
    if processes % rest or (parallel.dp_replicate and parallel.dp_replicate * rest != processes):
        raise ConfigError(
            f"parallel: pp {parallel.pp} x dp_replicate {parallel.dp_replicate} x dp_shard {parallel.dp_shard} x "
            f"tp {parallel.tp} does not make {processes} processes: change a degree, or start another number"
        )
    return processes // rest


def data_ranks(parallel: ParallelConfig, processes: int) -> int:
    """Return the number of processes that each take a different share of the batch, of `processes` in all."""
    return replicas(parallel, processes) * parallel.dp_shard


def micro_batch(parallel: ParallelConfig, section: str, share: int, micro_batch_size: int) -> int:
    """Return the samples per forward pass of a process with `share` samples of a step.

    A pipeline needs several micro batches: by default twice as many as its processes, or the nearest possible number.
    Raises ConfigError if no size fits.
    """
    least, count = least_microbatches(parallel), parallel.microbatches
    fitting = [number for number in divisors(share) if number >= least and _fills_rounds(number, parallel)]
    if parallel.pp > 1 and not count and not micro_batch_size:
        count = min(fitting, key=lambda number: abs(number - 2 * parallel.pp), default=0)
    size = share // count if count else micro_batch_size or share
    if not size or share % size or (count and (share % count or micro_batch_size not in (0, size))):
        raise ConfigError(
            f"{section}.micro_batch_size {micro_batch_size}, parallel.microbatches {parallel.microbatches}: "
            f"a process's share of {share} samples does not divide into them; use sizes {choices(divisors(share))}"
        )
    if share // size < least:
        raise ConfigError(
            f"parallel.schedule {parallel.schedule}: needs {least} micro batches or more, here are {share // size} of "
            f"{size} samples; lower the micro batch size, or raise {section}.global_batch_size"
        )
    if not _fills_rounds(share // size, parallel):
        others = f"{choices(fitting)} of them" if fitting else "another batch size, or 1f1b"
        raise ConfigError(
            f"parallel.schedule {parallel.schedule}: {share // size} micro batches over {parallel.pp} processes make "
            f"rounds of unequal length; use {others}"
        )
    return size


def least_microbatches(parallel: ParallelConfig) -> int:
    """Return the fewest micro batches per step that the schedule can run."""
    return parallel.pp * (2 if parallel.pp > 1 and parallel.schedule == "dualpipev" else 1)


def _fills_rounds(number: int, parallel: ParallelConfig) -> bool:
    """Whether the schedule can run this number of micro batches."""
    return parallel.pp == 1 or parallel.schedule not in IN_ROUNDS or number % max(1, number // parallel.pp) == 0


def fill_schedule(parallel: ParallelConfig, passes: int) -> int:
    """Return the number of micro batches, including empty ones, with which the schedule can run `passes` of them."""
    number = max(passes, least_microbatches(parallel))
    while not _fills_rounds(number, parallel):
        number += 1
    return number


def check_batch(section: str, global_batch: int, ranks: int) -> int:
    """Return a data-parallel process's share of the global batch. Raises ConfigError unless all shares are equal."""
    if global_batch % ranks:
        raise ConfigError(
            f"{section}.global_batch_size {global_batch} does not divide by {ranks} data-parallel processes: "
            f"use a multiple of {ranks}, or {choices(divisors(global_batch))} processes"
        )
    return global_batch // ranks
