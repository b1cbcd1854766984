"""What does not agree, or is not there yet, is refused with the reason and the fix before anything starts."""

import dataclasses
from typing import Any

import pytest

from pipelines.errors import ConfigError
from trainer.config import (
    NOT_YET,
    FinetuneConfig,
    ModelConfig,
    ParallelConfig,
    PretrainConfig,
    check_batch,
    check_finetune,
    check_pretrain,
    replicas,
    require_done,
)

MODEL, PARALLEL, PRETRAIN = ModelConfig(), ParallelConfig(), PretrainConfig()


def test_the_defaults_agree() -> None:
    check_pretrain(PRETRAIN, MODEL, PARALLEL)
    check_finetune(FinetuneConfig(), PARALLEL)


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
        ({"steps": 50}, "warmup_steps 100 is more than pretrain.steps 50"),
        ({"init": "checkpoint"}, "init checkpoint needs pretrain.init_path"),
        ({"init_path": "runs/other"}, "init_path runs/other is set but pretrain.init is scratch"),
    ],
)
def test_a_pretraining_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_pretrain(dataclasses.replace(PRETRAIN, **changes), MODEL, PARALLEL)


@pytest.mark.parametrize(
    "changes",
    [
        {"pp": 2},
        {"dp_shard": 2},
        {"tp": 2},
        {"zero": 1},
        {"offload": "optimizer"},
        {"microbatches": 4},
        {"chunks": 2},
        {"activation_checkpointing": "full"},
    ],
)
def test_what_is_not_there_yet_is_refused_with_the_way_out(changes: dict[str, Any]) -> None:
    (key,) = changes
    parallel = dataclasses.replace(PARALLEL, **changes)
    with pytest.raises(ConfigError, match=rf"parallel.{key} {changes[key]}: .*set parallel.{key} to {NOT_YET[key][0]}"):
        require_done(parallel)
    for check in (
        lambda: check_pretrain(PRETRAIN, MODEL, parallel),
        lambda: check_finetune(FinetuneConfig(), parallel),
    ):
        with pytest.raises(ConfigError):
            check()


def test_each_step_of_parallelize_refuses_its_own_keys() -> None:
    from tests.trainer import small
    from trainer.model import Architecture, LanguageModel
    from trainer.parallel.activation import checkpoint_activations
    from trainer.parallel.offload import offload_states
    from trainer.parallel.pipeline import split_pipeline
    from trainer.parallel.tensor import split_tensors
    from trainer.parallel.zero import shard_states

    model = LanguageModel(Architecture.of(small.MODEL, 61))
    steps = {
        split_pipeline: {"pp": 2},
        split_tensors: {"tp": 2},
        checkpoint_activations: {"activation_checkpointing": "full"},
        shard_states: {"zero": 3},
        offload_states: {"offload": "all"},
    }
    for step, changes in steps.items():
        step(model, PARALLEL)
        with pytest.raises(ConfigError):
            step(model, dataclasses.replace(PARALLEL, **changes))


def test_the_batch_divides_into_processes_and_micro_batches() -> None:
    check_batch("pretrain", 12, 3, 2)
    with pytest.raises(
        ConfigError, match=r"12 does not divide by 5 .*use a multiple of 5, or 1, 2, 3, 4, 6 or 12 proc"
    ):
        check_batch("pretrain", 12, 0, 5)
    with pytest.raises(
        ConfigError, match="micro_batch_size 4 does not divide a process's share of 6 samples: use 1, 2"
    ):
        check_batch("pretrain", 12, 4, 2)


def test_replicas_fill_the_processes() -> None:
    assert replicas(PARALLEL, 6) == 6
    assert replicas(ParallelConfig(tp=2), 6) == 3
    with pytest.raises(ConfigError, match="does not make 6 processes"):
        replicas(ParallelConfig(dp_replicate=4), 6)
    with pytest.raises(ConfigError, match="does not make 6 processes"):
        replicas(ParallelConfig(pp=4), 6)


def test_the_identity_of_a_run_is_what_shapes_its_weights_or_its_curve() -> None:
    assert PARALLEL.identity() == {}
    free = {"micro_batch_size", "compile", "checkpoint_every", "keep", "log_every"}
    assert PRETRAIN.identity().keys() == {field.name for field in dataclasses.fields(PRETRAIN)} - free
    assert MODEL.identity().keys() == {field.name for field in dataclasses.fields(MODEL)} - {"pad_vocab_to"}
