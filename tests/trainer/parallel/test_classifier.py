"""Fine-tuning in any layout: batches that do not divide, rows of any length, and the same predictions."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.nightly import nightly_but
from tests.trainer import small
from tests.trainer.loop.test_loop import planned, process
from tests.trainer.parallel.cases import Case, merged, whole_weights
from trainer.config import FinetuneConfig, ParallelConfig
from trainer.finetune import FinetuneJob
from trainer.weights.base_model import BaseModel

TUNING = FinetuneConfig(global_batch_size=16, epochs=2, lr=1e-3, epsilon=1e-6, clip_norm=0.5)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small.write_tokenizer(tmp_path_factory.mktemp("classifier") / "tokenizer")


@pytest.fixture(scope="module")
def exported(tokenizer: Path) -> Path:
    """A model of four layers; with the padding token 301 rows, which no number of processes divides."""
    import torch

    from trainer.model import Architecture, LanguageModel, initial_weight
    from trainer.weights import huggingface

    folder = tokenizer.parent / "export"
    vocab_size = small.token_meta(tokenizer).vocab_size
    shape = Architecture(n_layer=4, n_head=4, n_embd=32, n_positions=30, vocab_size=vocab_size)
    with torch.device("meta"):
        sizes = {name: weight.shape for name, weight in LanguageModel(shape).named_parameters()}
    weights = {name: initial_weight(name, shape, size, seed=3) for name, size in sizes.items()}
    huggingface.save_folder(folder, shape, weights, {"bos_token_id": vocab_size - 1, "eos_token_id": vocab_size - 1})
    huggingface.save_tokenizer(tokenizer, folder, shape.n_positions)
    return folder


def fine_tuned(job: FinetuneJob) -> dict[str, Any]:
    """All steps, then the outputs for the validation rows, as one worker sees them."""
    from trainer.data.glue import GlueRows
    from trainer.finetune import predict_split, prepare
    from trainer.loop.loop import train_step
    from trainer.parallel.mesh import Mesh

    rows = GlueRows(job.glue / "train.arrow")
    training = prepare(process(), Mesh(job.parallel, torch.device("cpu")), planned(job), rows)
    reports = []
    while not training.finished:
        reports.append(train_step(training))
    losses, norms = [report.loss for report in reports], [report.grad_norm for report in reports]
    predicted = predict_split(training, job.glue / "validation.arrow", rows)
    return {"losses": losses, "norms": norms, "weights": whole_weights(training), "predicted": predicted}


@pytest.fixture(scope="module")
def one_process(workers: Any) -> Any:
    """What one process computes for a job, once."""
    found: dict[Any, dict[str, Any]] = {}

    def run(job: FinetuneJob) -> dict[str, Any]:
        config = dataclasses.replace(job.config, micro_batch_size=0)
        alone = dataclasses.replace(job, parallel=ParallelConfig(device="cpu"), config=config)
        if alone.glue not in found:
            found[alone.glue] = workers.run(1, fine_tuned, alone)[0]
        return found[alone.glue]

    return run


@pytest.mark.parametrize(
    ("rows", "case"),
    nightly_but(
        [
            # 23 rows in batches of 16 leave 7, which two data-parallel processes share as 3 and 4.
            (23, Case(dp_replicate=2, tp=2, pp=2, schedule="1f1b", micro_batch_size=2)),
            (23, Case(tp=4, micro_batch_size=2)),
            (23, Case(tp=2, sequence_parallel=False, dp_replicate=2, micro_batch_size=2)),
            (23, Case(zero=1, pp=2, schedule="zbv", micro_batch_size=2)),
            (23, Case(zero=3, tp=2, activation_checkpointing="selective", micro_batch_size=2)),
            (23, Case(zero=1, offload="optimizer", micro_batch_size=2)),
            (23, Case(zero=2, offload="all", micro_batch_size=2)),
            # 21 leave 5, which they share as 2 and 3: one micro batch and two.
            (21, Case(zero=2, pp=2, schedule="interleaved_1f1b", micro_batch_size=2)),
            (21, Case(zero=3, pp=2, schedule="gpipe", micro_batch_size=2)),
            # 17 leave 1, so that one of two has none, and no pipeline can be filled.
            (17, Case(zero=3, micro_batch_size=2)),
            (17, Case(zero=3, pp=2, schedule="1f1b", micro_batch_size=2)),
            (17, Case(dp_replicate=2, pp=2, schedule="interleaved_zero_bubble", micro_batch_size=2)),
            (17, Case(pp=2, schedule="dualpipev", tp=2, micro_batch_size=2)),
        ],
        2,
        9,
    ),
    ids=str,
)
@pytest.mark.parametrize("num_labels", [3])
def test_uneven_batches_train_the_classifier_of_one_process(
    workers: Any,
    tokenizer: Path,
    exported: Path,
    tmp_path: Path,
    one_process: Any,
    rows: int,
    case: Case,
    num_labels: int,
) -> None:
    job = fine_tuning(tokenizer, exported, tmp_path, rows, case, num_labels)
    one, ranks = one_process(job), workers.run(case.processes, fine_tuned, job)
    assert len(one["losses"]) == 4
    for rank in ranks:
        np.testing.assert_allclose(rank["losses"], one["losses"], rtol=1e-6, atol=0)
        np.testing.assert_allclose(rank["norms"], one["norms"], rtol=1e-6, atol=0)
        np.testing.assert_allclose(rank["predicted"]["logits"], one["predicted"]["logits"], rtol=0, atol=1e-5)
        assert rank["predicted"]["index"] == one["predicted"]["index"]
    weights = merged(rank["weights"] for rank in ranks)
    assert weights.keys() == one["weights"].keys()
    for name, weight in one["weights"].items():
        np.testing.assert_allclose(weights[name], weight, atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize(
    "case", nightly_but([Case(tp=4), Case(pp=2, schedule="zbv", tp=2, micro_batch_size=4)], 1), ids=str
)
def test_a_regression_is_trained_alike(
    workers: Any, tokenizer: Path, exported: Path, tmp_path: Path, one_process: Any, case: Case
) -> None:
    job = fine_tuning(tokenizer, exported, tmp_path, 23, case, num_labels=1)
    one = one_process(job)
    for rank in workers.run(case.processes, fine_tuned, job):
        np.testing.assert_allclose(rank["losses"], one["losses"], rtol=1e-6, atol=0)
        np.testing.assert_allclose(rank["predicted"]["logits"], one["predicted"]["logits"], rtol=0, atol=1e-5)


def fine_tuning(tokenizer: Path, exported: Path, scratch: Path, rows: int, case: Case, num_labels: int) -> FinetuneJob:
    """A job on so many rows; 9 to predict are 5 batches for two data-parallel processes."""
    glue = exported.parent / f"glue-{rows}-{num_labels}"
    if not glue.exists():
        small.write_glue(glue, tokenizer, {"train": rows, "validation": 9}, num_labels)
    return FinetuneJob(
        config=dataclasses.replace(TUNING, micro_batch_size=case.micro_batch_size),
        parallel=case.parallel,
        task="toy",
        base=BaseModel(folder=exported, tokenizer=exported),
        glue=glue,
        scratch=scratch / "scratch",
        plan=small.PLAN,
    )
