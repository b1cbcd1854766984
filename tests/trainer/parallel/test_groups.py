"""No training leaves a process group behind: the threads and descriptors of a process do not grow with each."""

import dataclasses
import gc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.trainer import small
from tests.trainer.loop.test_loop import planned, process
from tests.trainer.parallel.cases import Case, References, trained
from tests.trainer.small import Road
from tests.trainer.test_finetune import TUNING
from trainer import finetune, pretrain
from trainer.config import ParallelConfig
from trainer.weights.base_model import BaseModel

Held = tuple[int, int]
RUNS = 3
EVERY_AXIS = ParallelConfig(pp=2, dp_replicate=2, tp=2, schedule="1f1b", device="cpu")


def held() -> Held:
    """Threads and open descriptors of this process."""
    gc.collect()  # a training's parts know each other, and gloo's threads end with the last one that knows their group
    return len([*Path("/proc/self/task").iterdir()]), len([*Path("/proc/self/fd").iterdir()])


def assert_no_growth(found: Sequence[Held]) -> None:
    """What is left behind adds up, each time; what a process starts when it first needs it does not."""
    for counts in zip(*found, strict=True):
        assert not all(before < after for before, after in pairwise(counts)), found


def after_pretraining(job: pretrain.PretrainJob) -> list[Held]:
    """What this worker holds after each of some runs of one layout."""
    found: list[Held] = []
    for number in range(RUNS):
        pretrain.train_in_process(process(), dataclasses.replace(planned(job), scratch=job.scratch / str(number)))
        found.append(held())
    return found


def around_fine_tuning(job: finetune.FinetuneJob) -> tuple[list[Held], list[Held]]:
    """What this worker holds after each of some commands of several seeds, and before each seed of the last one."""
    after: list[Held] = []
    before: list[Held] = []
    original = finetune.train_once

    def train_once(*arguments: Any) -> dict[str, Any]:
        before.append(held())
        return original(*arguments)

    with mock.patch.object(finetune, "train_once", train_once):
        for number in range(RUNS):
            finetune.train_in_process(process(), dataclasses.replace(planned(job), scratch=job.scratch / str(number)))
            after.append(held())
    return after, before[-job.config.seeds :]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "parallel",
    [
        EVERY_AXIS,
        ParallelConfig(pp=4, schedule="interleaved_1f1b", chunks=2, dp_shard=2, zero=2, device="cpu"),
    ],
    ids=["tp-pp-dp", "pp-zero"],
)
def test_pretraining_leaves_no_group_behind(workers: Any, tmp_path: Path, parallel: ParallelConfig) -> None:
    """Embedding and head are on different stages."""
    job = References(workers, tmp_path).job(Case(), n_layer=8)
    config = dataclasses.replace(job.config, steps=2, warmup_steps=1, micro_batch_size=1, async_save=True)
    job = dataclasses.replace(job, config=config, parallel=parallel)
    for found in workers.run(8, after_pretraining, job):
        assert_no_growth(found)


@pytest.mark.nightly
def test_fine_tuning_leaves_no_group_behind_and_its_seeds_make_none(workers: Any, road: Road, tmp_path: Path) -> None:
    glue = small.write_glue(tmp_path / "toy", road.tokenizer, {"train": 32, "validation": 9})
    job = finetune.FinetuneJob(
        config=dataclasses.replace(TUNING, epochs=1, seeds=3, micro_batch_size=2),
        parallel=EVERY_AXIS,
        task="toy",
        base=BaseModel(folder=road.export, tokenizer=road.export),
        glue=glue,
        scratch=tmp_path / "scratch",
        splits=(glue / "validation.arrow",),
        plan=small.PLAN,
    )
    for after, before in workers.run(8, around_fine_tuning, job):
        assert_no_growth(after)
        assert_no_growth(before)


def after_meshes() -> list[Held]:
    """What this worker holds after each of some meshes."""
    import torch

    from trainer.parallel.mesh import Mesh

    found: list[Held] = []
    for _ in range(RUNS):
        with Mesh(EVERY_AXIS, torch.device("cpu")) as mesh:
            mesh.barrier()
        del mesh
        found.append(held())
    return found


def test_a_mesh_ends_its_groups_with_its_block(workers: Any) -> None:
    for found in workers.run(8, after_meshes):
        assert_no_growth(found)


def kept_after_an_error() -> bool:
    """Whether the others can go on exchanging until this process has said what went wrong."""
    import torch

    from trainer.parallel.mesh import Mesh

    mesh = Mesh(EVERY_AXIS, torch.device("cpu"))
    with pytest.raises(KeyError), mesh:
        raise KeyError
    return int(mesh.sum_over(torch.ones(1), "tp")) == 2


def test_a_mesh_leaves_its_groups_to_the_end_of_the_process_after_an_error(workers: Any) -> None:
    assert workers.run(8, kept_after_an_error) == [True] * 8


@pytest.mark.nightly
def test_a_worker_that_waits_holds_nothing_of_the_cases_before(workers: Any, tmp_path: Path) -> None:
    """Layouts that no other case has, each with groups that the case does not end itself."""
    references = References(workers, tmp_path)
    cases = [Case(tp=2, pp=2), Case(zero=3, dp_replicate=2), Case(zero=1, pp=2), Case(tp=4), Case(zero=2, tp=2)]
    found: list[list[Held]] = []
    for case in cases:
        workers.run(4, trained, references.job(case))
        found.append(workers.run(4, held))
    for worker in zip(*found, strict=True):
        assert_no_growth(worker)
