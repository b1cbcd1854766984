"""Tensor parallelism: what of each matrix a process has, and lengths and vocabularies that do not divide."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tests.nightly import nightly_but
from tests.trainer.parallel.cases import Case, References, prepare, trained
from trainer.config import ParallelConfig
from trainer.pretrain import PretrainJob


def references_of(workers: Any, factory: pytest.TempPathFactory, pad_vocab_to: int) -> References:
    return References(workers, factory.mktemp("tensor"), pad_vocab_to)


@pytest.fixture(scope="module")
def references(workers: Any, tmp_path_factory: pytest.TempPathFactory) -> References:
    """With 61 rows of the embedding: 16, 16, 16 and 13 in four processes."""
    return references_of(workers, tmp_path_factory, 1)


def parts(job: PretrainJob) -> dict[str, tuple[int, ...]]:
    from trainer.parallel.local import local

    return {name: tuple(local(weight).shape) for name, weight in prepare(job).model.weights.items()}


def test_each_process_has_its_part_of_every_matrix(workers: Any, references: References) -> None:
    ranks = workers.run(4, parts, references.job(Case(tp=4)))
    assert [rank["transformer.wte.weight"] for rank in ranks] == [(16, 32)] * 3 + [(13, 32)]
    for rank in ranks:
        block = {name.removeprefix("transformer.h.0."): size for name, size in rank.items() if ".h.0." in name}
        assert block == {
            "ln_1.weight": (32,),
            "ln_1.bias": (32,),
            "attn.qkv.weight": (24, 32),
            "attn.qkv.bias": (24,),
            "attn.c_proj.weight": (32, 8),
            "attn.c_proj.bias": (32,),
            "ln_2.weight": (32,),
            "ln_2.bias": (32,),
            "mlp.c_fc.weight": (32, 32),
            "mlp.c_fc.bias": (32,),
            "mlp.c_proj.weight": (32, 32),
            "mlp.c_proj.bias": (32,),
        }
        assert rank["transformer.wpe.weight"] == (32, 32)


PADDED = [
    Case(tp=4, dropout=True),
    Case(tp=4, sequence_parallel=False),
    Case(tp=2, zero=3),
    Case(tp=2, zero=1, micro_batch_size=2),
    Case(tp=2, pp=2, schedule="zbv"),
    Case(zero=3, dp_replicate=2),
]


@pytest.mark.parametrize(("case", "length"), nightly_but([*itertools.product(PADDED, (32, 30, 7))], 1), ids=str)
def test_vocabulary_and_length_need_not_divide(workers: Any, references: References, case: Case, length: int) -> None:
    """Also where a sample is as long as the model has positions, and padding goes beyond."""
    job = references.job(case, n_layer=4)
    job = dataclasses.replace(
        job,
        config=dataclasses.replace(job.config, sequence_length=length),
        model=dataclasses.replace(job.model, n_positions=length),
    )
    alone = dataclasses.replace(job, parallel=ParallelConfig(device="cpu"))
    one, ranks = workers.run(1, trained, alone)[0], workers.run(case.processes, trained, job)
    np.testing.assert_allclose(ranks[0]["losses"], one["losses"], rtol=1e-6, atol=0)
    np.testing.assert_allclose(ranks[0]["norms"], one["norms"], rtol=1e-6, atol=0)
    for rank in ranks:
        for name, weight in rank["weights"].items():
            np.testing.assert_allclose(weight, one["weights"][name], atol=1e-5, rtol=0, err_msg=name)


def logits(job: PretrainJob) -> Any:
    import torch

    training = prepare(job)
    training.model.train(mode=False)
    (part,) = training.model.stages
    with torch.no_grad():
        return part(torch.arange(2 * 16).view(2, 16)).numpy()


@pytest.mark.parametrize("case", [Case(tp=4), Case(tp=2, sequence_parallel=False), Case(tp=2, zero=3)], ids=str)
def test_every_process_has_all_logits(workers: Any, references: References, case: Case) -> None:
    one = workers.run(1, logits, references.job(Case()))[0]
    assert one.shape == (2, 16, 61)
    for rank in workers.run(case.processes, logits, references.job(case)):
        np.testing.assert_allclose(rank, one, atol=1e-6, rtol=0)


def refused(tp: int) -> str:
    """Why a vocabulary of 5 rows is not split."""
    import torch

    from pipelines.errors import ConfigError
    from trainer.model import Architecture, LanguageModel
    from trainer.parallel.mesh import Mesh
    from trainer.parallel.tensor import exchange_of, split_tensors

    parallel = ParallelConfig(tp=tp)
    exchange = exchange_of(parallel, Mesh(parallel, torch.device("cpu")), fused=False)
    model = LanguageModel(Architecture(n_layer=1, n_head=4, n_embd=8, n_positions=4, vocab_size=5))
    try:
        split_tensors(model, parallel, exchange)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_vocabulary_of_too_few_rows_is_refused(workers: Any) -> None:
    message = "parallel.tp 4: a vocabulary of 5 rows makes 3 equal parts only; set model.pad_vocab_to to 4, or lower"
    assert all(text.startswith(message) for text in workers.run(4, refused, 4))
    assert workers.run(2, refused, 2) == ["", ""]


def expected(job: PretrainJob) -> list[tuple[float, float]]:
    """What each head expects after a step, and what the step's loss was multiplied by."""
    from trainer.loop.loop import train_step

    training = prepare(job)
    factor = training.loss_scale.value / training.batches.terms(training.batches.sample_ids(0))
    train_step(training)
    heads = [stage.lm_head for stage in training.model.stages if stage.lm_head is not None]  # pyright: ignore
    return [(head.expected, factor) for head in heads]  # pyright: ignore


@pytest.mark.parametrize("case", [Case(tp=2, precision="fp16"), Case(pp=2, schedule="1f1b", precision="fp16")], ids=str)
def test_the_head_knows_what_its_loss_is_multiplied_by(workers: Any, references: References, case: Case) -> None:
    pairs = [pair for rank in workers.run(2, expected, references.job(case)) for pair in rank]
    assert pairs
    assert all(found == pytest.approx(factor) and factor != 1 for found, factor in pairs)
