"""Pipelines whose stages send by copies: to the bit what they compute by the process group."""

import dataclasses
import functools
import logging
from typing import Any

import numpy as np
import pytest

from tests.nightly import nightly_but
from tests.trainer.parallel.cases import SCHEDULES, Case, References, Trained, prepare, trained
from tests.trainer.shared_files import CHANNELS, SharedFiles, stage_copies_on_cpus
from trainer.config import ParallelConfig
from trainer.parallel.stage_copies import received

ONE_LANE = 5
"""Channels for four kinds of tensors that a process receives, or two to each of two."""

CASES = [
    *(Case(pp=2, schedule=schedule, micro_batch_size=1) for schedule in SCHEDULES),
    *(Case(pp=4, schedule=schedule, micro_batch_size=1) for schedule in SCHEDULES),
    Case(pp=2, tp=2, micro_batch_size=2, precision="bf16"),
    Case(pp=2, tp=2, schedule="zbv", sequence_parallel=False, micro_batch_size=1, dropout=True),
    Case(pp=2, zero=1, micro_batch_size=1, precision="fp16"),
    Case(pp=2, zero=1, schedule="interleaved_1f1b", micro_batch_size=1, activation_checkpointing="full"),
    Case(pp=2, zero=3, micro_batch_size=1),
]


@pytest.fixture(scope="module")
def references(workers: Any, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(workers, tmp_path_factory.mktemp("copies"))


def by_copies(job: Any, channels: int) -> tuple[Trained, int, int]:
    """What `trained` does without the group's sends in steps; signals, and those that waited for one before."""
    from torch.distributed.pipelining import schedules

    from trainer import parallel

    def refuse(operations: list[Any], **_: Any) -> list[Any]:
        assert not operations, "sent by the process group"
        return []

    with pytest.MonkeyPatch.context() as patch:
        made: list[Any] = []
        make = functools.partial(stage_copies_on_cpus, channels=channels)
        patch.setattr(parallel, "stage_copies", lambda *layout: made.append(make(*layout)) or made[-1])
        patch.setattr(schedules, "_batch_p2p", refuse)
        found = trained(job)
        memory: SharedFiles = made[0]._memory
        return found, memory.signals, memory.waited


def assert_equal(by_group: list[Trained], by_copies: list[Trained]) -> None:
    for one, other in zip(by_group, by_copies, strict=True):
        assert (one["losses"], one["norms"]) == (other["losses"], other["norms"])
        assert one["weights"].keys() == other["weights"].keys()
        for name, weight in one["weights"].items():
            np.testing.assert_array_equal(weight, other["weights"][name], err_msg=name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_copies_train_to_the_bit_what_the_process_group_does(references: References, case: Case) -> None:
    right = references.run(case)
    for channels in (CHANNELS, ONE_LANE):
        found = references.workers.run(case.processes, by_copies, references.job(case), channels)
        assert_equal(right, [each for each, _, _ in found])
        assert all(signals for _, signals, _ in found)
        print("RESULT", case, channels, [waited for *_, waited in found])
