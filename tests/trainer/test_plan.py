"""The plan of a run: shares, micro batches, replicas and warm-up, or the nearest values that have one."""

import dataclasses
from typing import Any

import pytest

from pipelines.errors import ConfigError
from trainer.config import FinetuneConfig, ParallelConfig, PretrainConfig
from trainer.plan import Layout, check_batch, in_steps, micro_batch, plan_finetuning, plan_pretraining, replicas

PARALLEL, PRETRAIN = ParallelConfig(), PretrainConfig()


def test_the_batch_divides_into_processes() -> None:
    assert check_batch("pretrain", 12, 3) == 4
    with pytest.raises(
        ConfigError, match=r"12 does not divide by 5 .*use a multiple of 5, or 1, 2, 3, 4, 6 or 12 proc"
    ):
        check_batch("pretrain", 12, 5)


@pytest.mark.parametrize(
    ("changes", "share", "given", "size"),
    [
        ({}, 6, 0, 6),
        ({}, 6, 2, 2),
        ({"pp": 2}, 8, 0, 2),  # twice as many as processes
        ({"pp": 2}, 8, 4, 4),
        ({"pp": 2}, 14, 0, 7),  # or the nearest: 2, since 7 are further from 4
        ({"pp": 2, "microbatches": 8}, 8, 0, 1),
        ({"pp": 2, "microbatches": 8}, 16, 2, 2),
        ({"pp": 2, "schedule": "dualpipev"}, 4, 0, 1),
        ({"pp": 4}, 36, 0, 4),
        ({"pp": 4, "schedule": "interleaved_1f1b"}, 36, 0, 6),  # 9 micro batches over 4 make no equal rounds
    ],
)
def test_a_process_takes_its_share_in_micro_batches(changes: dict[str, Any], share: int, given: int, size: int) -> None:
    assert micro_batch(dataclasses.replace(PARALLEL, **changes), "pretrain", share, given) == size


@pytest.mark.parametrize(
    ("changes", "share", "given", "message", "nearest"),
    [
        ({}, 6, 4, "share of 6 samples does not divide into them; use sizes 1, 2, 3 or 6", 3),
        ({"pp": 2}, 6, 4, "share of 6 samples does not divide into them; use sizes 1, 2, 3 or 6", 3),
        ({"pp": 4}, 6, 3, "needs 4 micro batches or more, here are 2 of 3 samples; lower the micro batch size", 1),
        ({"pp": 2, "schedule": "dualpipev"}, 6, 2, "schedule dualpipev: needs 4 micro batches or more, here are 3", 1),
        (
            {"pp": 2, "schedule": "interleaved_1f1b"},
            10,
            2,
            "5 micro batches over 2 processes .*; use 2 or 10 of them",
            5,
        ),
    ],
)
def test_micro_batches_that_a_step_cannot_have_are_refused(
    changes: dict[str, Any], share: int, given: int, message: str, nearest: int
) -> None:
    parallel = dataclasses.replace(PARALLEL, **changes)
    with pytest.raises(ConfigError, match=message):
        micro_batch(parallel, "pretrain", share, given)
    assert micro_batch(parallel, "pretrain", share, nearest) == nearest


def test_too_small_a_batch_and_numbers_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs 4 micro batches or more, .* or raise finetune.global_batch_size"):
        micro_batch(ParallelConfig(pp=4), "finetune", 2, 0)
    with pytest.raises(ConfigError, match=r"micro_batch_size 0, parallel.microbatches 3: a process's share of 8"):
        micro_batch(ParallelConfig(pp=2, microbatches=3), "pretrain", 8, 0)
    with pytest.raises(ConfigError, match=r"micro_batch_size 1, parallel.microbatches 4: a process's share of 8"):
        micro_batch(ParallelConfig(pp=2, microbatches=4), "pretrain", 8, 1)
    with pytest.raises(ConfigError, match=r"9 micro batches over 4 processes .* use another batch size, or 1f1b"):
        micro_batch(ParallelConfig(pp=4, schedule="interleaved_1f1b", microbatches=9), "pretrain", 9, 0)


def test_replicas_fill_the_processes() -> None:
    assert replicas(PARALLEL, 6) == 6
    assert replicas(ParallelConfig(tp=2), 6) == 3
    with pytest.raises(ConfigError, match="does not make 6 processes"):
        replicas(ParallelConfig(dp_replicate=4), 6)
    with pytest.raises(ConfigError, match="does not make 6 processes"):
        replicas(ParallelConfig(pp=4), 6)


def test_a_warm_up_longer_than_the_steps_that_follow_is_refused_by_both_keys() -> None:
    tuning = FinetuneConfig(epochs=2, warmup_share=0.0, warmup_steps=30)
    assert in_steps("finetune", tuning, 15).warmup_steps == 30
    with pytest.raises(ConfigError, match=r"finetune.warmup_steps 30 is more than the 20 steps of finetune.epochs 2: "):
        in_steps("finetune", tuning, 10)
    for length, message in (
        ({"steps": 50}, "more than pretrain.steps 50: lower warmup_steps, or raise steps"),
        (
            {"steps": 0, "tokens": 50 * 32 * 1024},
            "more than the 50 steps of pretrain.tokens 1638400: lower warmup_steps, or raise tokens",
        ),
        (
            {"steps": 0, "epochs": 0.5},
            "more than the 9 steps of pretrain.epochs 0.5: lower warmup_steps, or raise epochs",
        ),
    ):
        with pytest.raises(ConfigError, match=f"pretrain.warmup_steps 100 is {message}"):
            in_steps("pretrain", dataclasses.replace(PRETRAIN, **length), 9 * 64)


def test_a_plan_has_what_the_sections_leave_open() -> None:
    """Pretraining's shares are equal; fine-tuning's need not be, nor be whole micro batches without a pipeline."""
    pretraining = plan_pretraining(PretrainConfig(global_batch_size=12), ParallelConfig(tp=2, pp=2), 8)
    assert pretraining == Layout(processes=8, data_ranks=2, micro_batch_size=2)
    assert pretraining.record(ParallelConfig(tp=2, pp=2))["dp_replicate"] == 2
    with pytest.raises(ConfigError, match="global_batch_size 12 does not divide by 5 data-parallel processes"):
        plan_pretraining(PretrainConfig(global_batch_size=12), PARALLEL, 5)
    tuning = FinetuneConfig(global_batch_size=12)
    assert plan_finetuning(tuning, PARALLEL, 5).micro_batch_size == 3
    assert plan_finetuning(dataclasses.replace(tuning, micro_batch_size=7), PARALLEL, 1).micro_batch_size == 7
    with pytest.raises(ConfigError, match="a process's share of 12 samples does not divide into them"):
        plan_finetuning(dataclasses.replace(tuning, micro_batch_size=7), ParallelConfig(pp=2), 2)
    sharded = ParallelConfig(zero=1, dp_shard=2)
    assert plan_finetuning(tuning, sharded, 4).record(sharded) == {
        **dataclasses.asdict(sharded),
        "dp_replicate": 2,
        "processes": 4,
    }
