"""Offloading: the host's copies, and where state lives; `test_parity.py` has the results."""

from typing import Any

import pytest
import torch

from tests.trainer.parallel.cases import Case, References, prepare
from trainer.parallel.offload import HostCopies
from trainer.pretrain import Job


def test_copies_take_what_is_there_and_give_the_update_back() -> None:
    weights = [torch.randn(3, 4), torch.randn(5)]
    gradients = [torch.randn(3, 4), torch.randn(5)]
    before = [weight.clone() for weight in weights]
    copies = HostCopies(weights)
    copies.take(weights, gradients)
    for weight, gradient in zip(copies.weights, copies.gradients, strict=True):
        weight -= gradient
    assert all(torch.equal(weight, start) for weight, start in zip(weights, before, strict=True))
    copies.give(weights)
    for weight, start, gradient in zip(weights, before, gradients, strict=True):
        assert torch.equal(weight, start - gradient)


def state_is_on_the_cpu(job: Job) -> bool:
    from trainer.loop import train_step
    from trainer.shards import local

    training = prepare(job)
    train_step(training)
    moments = [each for pair in training.optimizer.moments.values() for each in pair]
    weights = list(training.model.weights.values())
    held = [*moments, *(local(weight.detach()) for weight in weights), *(local(weight.grad) for weight in weights)]
    return all(each.device.type == "cpu" for each in held)


@pytest.mark.parametrize("case", [Case(offload="optimizer"), Case(zero=3, offload="all")], ids=str)
def test_offloaded_state_is_in_the_hosts_memory(
    workers: Any, tmp_path_factory: pytest.TempPathFactory, case: Case
) -> None:
    references = References(workers, tmp_path_factory.mktemp("offload"))
    assert all(workers.run(case.processes, state_is_on_the_cpu, references.job(case)))
