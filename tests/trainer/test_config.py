"""What does not agree, or cannot work, is refused with the reason and the fix before anything starts."""

import dataclasses
import re
from typing import Any

import pytest

from pipelines.config import check, to_plain
from pipelines.errors import ConfigError
from trainer.config import (
    LENGTHS,
    SAMPLES,
    WATCHING,
    FinetuneConfig,
    ModelConfig,
    ParallelConfig,
    PretrainConfig,
    check_batch,
    check_finetune,
    check_parallel,
    check_pretrain,
    check_warmup,
    micro_batch,
    replicas,
)

MODEL, PARALLEL, PRETRAIN = ModelConfig(), ParallelConfig(), PretrainConfig()


def test_the_defaults_agree() -> None:
    check_pretrain(PRETRAIN, MODEL, PARALLEL)
    check_finetune(FinetuneConfig(), PARALLEL, n_layer=12, n_head=12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_head": 5, "n_embd": 12}, "n_head 5 does not divide model.n_embd 12: use 1, 2, 3, 4, 6 or 12 heads"),
        ({"n_positions": 512}, "sequence_length 1024 is longer than model.n_positions 512"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_pretrain(PRETRAIN, dataclasses.replace(MODEL, **changes), PARALLEL)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 50}, "warmup_steps 100 is more than pretrain.steps 50: lower warmup_steps, or raise steps"),
        (
            {"steps": 0, "tokens": 50 * 32 * 1024},
            "warmup_steps 100 is more than the 50 steps of pretrain.tokens 1638400: lower warmup_steps, or raise t",
        ),
        ({"tokens": 10**9}, "pretrain.steps 1000 and pretrain.tokens 1000000000: each says how long the run is; set a"),
        ({"epochs": 0.5}, "pretrain.steps 1000 and pretrain.epochs 0.5: each says how long"),
        ({"steps": 0, "tokens": 9, "epochs": 2.0}, "pretrain.tokens 9 and pretrain.epochs 2: each says how long"),
        ({"steps": 0}, "pretrain.steps 0 and pretrain.tokens 0 and pretrain.epochs 0: no length; give one of them"),
        ({"warmup_share": 0.1}, "pretrain.warmup_steps 100 and pretrain.warmup_share 0.1: both say how long the warm-"),
        ({"init": "checkpoint"}, "init checkpoint needs pretrain.init_path"),
        ({"drop_tail": True}, "in a stream no document has a tail: set packing to document or bestfit"),
        ({"mixture": ("b",)}, "mixture_weights: 0 given, expected 2: one for the stage's own token shards, then"),
        ({"mixture_weights": (1.0, 2.0)}, "mixture_weights: 2 given, expected 1"),
        ({"packing": "bestfit", "sequence_length": 1}, "packing bestfit: rows of one token"),
        ({"init_path": "runs/other"}, "init_path runs/other is set but pretrain.init is scratch"),
    ],
)
def test_a_pretraining_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_pretrain(dataclasses.replace(PRETRAIN, **changes), MODEL, PARALLEL)


INTERLEAVED = {"pp": 2, "schedule": "interleaved_1f1b", "chunks": 2}
SHARDED_ZBV = {"pp": 2, "schedule": "zbv", "chunks": 2, "zero": 2, "dp_shard": 2}


@pytest.mark.parametrize(
    ("changes", "message", "nearest"),
    [
        ({"tp": 5}, "tp 5 does not divide the model's 12 heads: use tp 1, 2, 3, 4, 6 or 12", {"tp": 4}),
        ({"zero": 1}, "zero 1 over dp_shard 1: give zero 1, 2 or 3 two processes or more", {"dp_shard": 2}),
        ({"dp_shard": 2}, "zero 0 over dp_shard 2: give zero 1, 2 or 3 two processes or more", {"zero": 3}),
        ({"dp_shard": 2}, "or set zero 0 and dp_shard 1", {"dp_shard": 1}),
        ({"offload": "all"}, "needs zero 1, 2 or 3", {"zero": 1, "dp_shard": 2}),
        ({"offload": "all"}, "without ZeRO set offload to optimizer", {"offload": "optimizer"}),
        ({"offload": "auto"}, "parallel.offload auto: .* say what lives on the host: opt", {"offload": "optimizer"}),
        (
            {"offload": "auto", "zero": 3, "dp_shard": 2},
            "optimizer, or all with zero 1, 2 or 3, or none",
            {"offload": "all"},
        ),
        ({"chunks": 2}, "chunks and microbatches are a pipeline's: set pp, or chunks 1, microbatches 0", INTERLEAVED),
        ({"microbatches": 4}, "chunks and microbatches are a pipeline's", {"microbatches": 0}),
        ({"pp": 2, "chunks": 2}, "chunks 2: schedule 1f1b has 1 stage per process", {"chunks": 1}),
        ({"pp": 2, "chunks": 2, "schedule": "gpipe"}, "schedule gpipe has 1 stage per", {"chunks": 1}),
        ({"pp": 2, "schedule": "zbv"}, "chunks 1: schedule zbv has 2 stages per process", {"chunks": 2}),
        ({**INTERLEAVED, "schedule": "dualpipev", "chunks": 3}, "dualpipev has 2 stages", {"chunks": 2}),
        ({**INTERLEAVED, "chunks": 1}, "chunks 1: schedule interleaved_1f1b has 2 stages or more per", {"chunks": 3}),
        ({"pp": 16}, "16 pipeline stages for 12 layers: lower pp or chunks", {"pp": 12}),
        ({**INTERLEAVED, "pp": 4, "chunks": 4}, "16 pipeline stages for 12 layers", {"chunks": 3}),
        ({"pp": 3, "stages": "6,6"}, "balanced, or 3 numbers of layers that make 12", {"stages": "5,5,2"}),
        ({"pp": 2, "stages": "6,5"}, "stages 6,5: expected uniform, balanced, or 2 numbers", {"stages": "7,5"}),
        ({"pp": 2, "stages": "12,0"}, "or 2 numbers of layers that make 12", {"stages": "balanced"}),
        ({"pp": 2, "stages": "even"}, "stages even: expected uniform", {"stages": "uniform"}),
        ({"stages": "12"}, "stages 12: there is one stage only, since parallel.pp is 1", {"stages": "uniform"}),
        (SHARDED_ZBV, "zero 2 with schedule zbv: its weight gradients come after ZeRO has let go", {"zero": 1}),
        (
            {"pp": 2, "schedule": "zbv", "chunks": 2, "activation_checkpointing": "selective"},
            "selective with schedule zbv: what it keeps can be taken once, .*; use full, or interleaved_1f1b",
            {"activation_checkpointing": "full"},
        ),
        ({**SHARDED_ZBV, "zero": 3}, "use zero 1, or interleaved_1f1b", {"schedule": "interleaved_1f1b"}),
        ({**SHARDED_ZBV, "schedule": "dualpipev"}, "zero 2 with schedule dualpipev", {"zero": 1}),
        ({**SHARDED_ZBV, "schedule": "interleaved_zero_bubble"}, "zero 2 with schedule interleaved_z", {"zero": 1}),
    ],
)
def test_a_layout_that_cannot_work_is_refused_with_the_nearest_that_does(
    changes: dict[str, Any], message: str, nearest: dict[str, Any]
) -> None:
    refused = dataclasses.replace(PARALLEL, **changes)
    with pytest.raises(ConfigError, match=message):
        check_parallel(refused, n_layer=12, n_head=12)
    with pytest.raises(ConfigError, match=message):
        check_pretrain(PRETRAIN, MODEL, refused)
    with pytest.raises(ConfigError, match=message):
        check_finetune(FinetuneConfig(), refused, n_layer=12, n_head=12)
    check_pretrain(PRETRAIN, MODEL, dataclasses.replace(refused, **nearest))


@pytest.mark.parametrize("schedule", ["interleaved_zero_bubble", "zbv", "dualpipev"])
def test_compiled_blocks_are_refused_where_a_schedule_splits_backward_passes(schedule: Any) -> None:
    parallel, compiled = ParallelConfig(pp=2, chunks=2, schedule=schedule), PretrainConfig(compile=True)
    with pytest.raises(ConfigError, match=f"pretrain.compile with schedule {schedule}: .* use interleaved_1f1b"):
        check_pretrain(compiled, MODEL, parallel)
    check_pretrain(PRETRAIN, MODEL, parallel)
    check_pretrain(compiled, MODEL, dataclasses.replace(parallel, schedule="interleaved_1f1b"))


def test_each_kind_of_parallelism_and_all_of_them_at_once_are_accepted() -> None:
    for changes in (
        {"dp_replicate": 2},
        {"tp": 4, "sequence_parallel": False},
        {"zero": 3, "dp_shard": 4, "offload": "all"},
        {"pp": 12, "schedule": "gpipe"},
        {"pp": 2, "schedule": "looped_bfs", "chunks": 3},
        {"pp": 2, "chunks": 2, "schedule": "interleaved_1f1b", "zero": 3, "dp_shard": 2, "tp": 2, "dp_replicate": 2},
    ):
        check_pretrain(PRETRAIN, MODEL, dataclasses.replace(PARALLEL, activation_checkpointing="full", **changes))


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
        ({}, 6, 4, "share of 6 samples is no whole number of them; use sizes 1, 2, 3 or 6", 3),
        ({"pp": 2}, 6, 4, "share of 6 samples is no whole number of them; use sizes 1, 2, 3 or 6", 3),
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


def test_the_identity_of_a_run_is_what_shapes_its_weights_or_its_curve() -> None:
    assert PARALLEL.identity() == {}
    saving = {"checkpoint_every", "async_save", "keep", "keep_every", "keep_best"}
    free = {"micro_batch_size", "compile", *saving, *WATCHING}
    changed = dataclasses.replace(
        PRETRAIN, packing="bestfit", drop_tail=True, document_mask=True, mixture=("a",), mixture_weights=(1.0, 2.0)
    )
    fields = {field.name for field in dataclasses.fields(PRETRAIN)}
    assert changed.identity().keys() == fields - free - set(LENGTHS)
    assert PRETRAIN.identity().keys() == changed.identity().keys() - set(SAMPLES), "records of older runs lack them"
    younger = {"steps", "warmup_steps"}
    assert FinetuneConfig().identity().keys().isdisjoint(younger), "records of older runs lack them"
    assert FinetuneConfig(epochs=0, steps=7, warmup_share=0.0, warmup_steps=2).identity().keys() > younger
    assert MODEL.identity().keys() == {field.name for field in dataclasses.fields(MODEL)} - {"pad_vocab_to"}


@pytest.mark.parametrize(
    ("changes", "samples", "steps"),
    [
        ({"steps": 7}, 0, 7),
        ({"tokens": 10 * 8 * 16}, 0, 10),
        ({"tokens": 10 * 8 * 16 + 1}, 0, 11),
        ({"tokens": 1}, 0, 1),
        ({"epochs": 1.0}, 64, 8),
        ({"epochs": 1.0}, 65, 9),
        ({"epochs": 2.5}, 32, 10),
        ({"epochs": 0.7, "global_batch_size": 1}, 10, 7),
        ({"epochs": 1e-9}, 100, 1),
    ],
)
def test_a_length_in_any_unit_becomes_whole_steps(changes: dict[str, Any], samples: int, steps: int) -> None:
    asked = dataclasses.replace(
        PRETRAIN, **{"steps": 0, "warmup_steps": 0, "global_batch_size": 8, "sequence_length": 16, **changes}
    )
    run = asked.in_steps(samples)
    assert (run.steps, run.tokens, run.epochs) == (steps, 0, 0.0)
    assert run == run.in_steps(samples), "in steps it stays as it is"


@pytest.mark.parametrize(
    ("changes", "warmup"),
    [
        ({"warmup_steps": 0}, 0),
        ({"warmup_steps": 13}, 13),
        ({"warmup_steps": 0, "warmup_share": 0.1}, 20),
        ({"warmup_steps": 0, "warmup_share": 0.007}, 1),
        ({"warmup_steps": 0, "warmup_share": 1.0}, 200),
    ],
)
def test_a_warm_up_is_steps_or_a_share_of_them_in_both_sections(changes: dict[str, Any], warmup: int) -> None:
    pretraining = dataclasses.replace(PRETRAIN, steps=200, **changes)
    check_pretrain(pretraining, MODEL, PARALLEL)
    assert pretraining.in_steps(0).warmup_steps == warmup
    values: dict[str, Any] = {"warmup_share": 0.0, **changes}
    tuning = FinetuneConfig(epochs=4, **values)
    check_finetune(tuning, PARALLEL, n_layer=12, n_head=12)
    assert (tuning.in_steps(50).steps, tuning.in_steps(50).warmup_steps) == (200, warmup)


def test_equal_lengths_are_one_run_whatever_they_are_given_in() -> None:
    """And the run of older versions, whose records know steps only."""
    steps = dataclasses.replace(PRETRAIN, steps=80, warmup_steps=8)
    tokens = dataclasses.replace(PRETRAIN, steps=0, tokens=80 * 32 * 1024, warmup_steps=0, warmup_share=0.1)
    assert tokens.identity() == steps.identity()
    assert steps.identity()["steps"] == 80
    assert dataclasses.replace(steps, warmup_steps=0, warmup_share=0.1).identity() == steps.identity()
    epochs = dataclasses.replace(PRETRAIN, steps=0, epochs=2.0, warmup_steps=0, warmup_share=0.1)
    assert epochs.identity()["epochs"] == 2.0, "the samples are not counted yet"
    assert epochs.in_steps(samples=1280).identity() == steps.identity()
    assert dataclasses.replace(epochs, epochs=3.0).identity() != epochs.identity()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 9}, "finetune.steps 9 and finetune.epochs 3: each says how long the run is; set all but one to 0"),
        ({"epochs": 0}, "finetune.steps 0 and finetune.epochs 0: no length; give one of them"),
        ({"warmup_steps": 5}, "finetune.warmup_steps 5 and finetune.warmup_share 0.1: both say how long the warm-up"),
    ],
)
def test_a_fine_tuning_has_one_length_and_one_warm_up(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_finetune(FinetuneConfig(**changes), PARALLEL, n_layer=12, n_head=12)


def test_a_warm_up_longer_than_the_steps_that_follow_is_refused_by_both_keys() -> None:
    tuning = FinetuneConfig(epochs=2, warmup_share=0.0, warmup_steps=30)
    check_warmup("finetune", tuning, 30)
    with pytest.raises(ConfigError, match=r"finetune.warmup_steps 30 is more than the 20 steps of finetune.epochs 2: "):
        check_warmup("finetune", tuning, 20)
    with pytest.raises(ConfigError, match=r"warmup_steps 100 is more than the 9 steps of pretrain.epochs 0.5: lower w"):
        check_warmup("pretrain", dataclasses.replace(PRETRAIN, steps=0, epochs=0.5), 9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"initial": 0.5}, "pretrain.loss_scale.initial 0.5 is not between minimum 1 and maximum 4.29497e"),
        ({"initial": 64.0, "maximum": 32.0}, "loss_scale.initial 64 is not between minimum 1 and maximum 32"),
    ],
)
def test_a_loss_scale_begins_between_its_ends(changes: Any, message: str) -> None:
    scale = dataclasses.replace(PretrainConfig().loss_scale, **changes)
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_pretrain(PretrainConfig(loss_scale=scale), MODEL, ParallelConfig())


@pytest.mark.parametrize(("name", "value"), [("backoff_factor", 1.0), ("growth_factor", 0.5)])
def test_a_loss_scale_that_cannot_fall_or_falls_by_itself_is_refused(name: str, value: float) -> None:
    """Else an overflow at the first step would leave out every later one, without a word."""
    params = to_plain(PretrainConfig())
    params["loss_scale"][name] = value
    with pytest.raises(ConfigError, match=name):
        check(PretrainConfig, params, "pretrain", "params.yaml")
