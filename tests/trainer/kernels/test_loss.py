"""Triton kernels of the loss, run on the CPU by a stand-in for Triton, against the plain loss."""

import threading
from types import ModuleType

import pytest
import torch
from torch import Tensor

from tests.trainer import triton_stand_in
from trainer import loss
from trainer.config import ParallelConfig
from trainer.loss import IGNORED, WHOLE, VocabPart, linear_cross_entropy
from trainer.parallel import fastest_loss

TOKENS, WIDTH, VOCAB = 24, 200, 190
"""Of 200 columns, 10 are padding."""


@pytest.fixture
def fused_loss(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = triton_stand_in.imported("trainer.kernels.loss", monkeypatch)
    monkeypatch.setattr(module, "BLOCK", 64)
    return module


def logits_and_targets(dtype: torch.dtype = torch.float32, scale: float = 3.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(TOKENS, WIDTH, generator=generator) * scale
    logits[:, VOCAB:] = 100.0  # the largest of all, if padding counted
    targets = torch.randint(VOCAB, (TOKENS,), generator=generator)
    targets[:6] = torch.tensor([0, VOCAB - 1, 99, 100, IGNORED, IGNORED])
    return logits.to(dtype), targets


def plain(logits: Tensor, targets: Tensor, factor: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return loss.loss_and_gradient(logits.double(), targets, VOCAB, WHOLE, factor)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 2e-3), (torch.bfloat16, 1e-2)])
def test_loss_and_gradient_are_those_of_the_plain_loss(
    fused_loss: ModuleType, dtype: torch.dtype, tolerance: float
) -> None:
    logits, targets = logits_and_targets(dtype)
    wanted, gradient = plain(logits, targets)
    found, overwritten = fused_loss.loss_and_gradient(logits, targets, VOCAB, WHOLE, None)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(overwritten.float(), gradient.float(), rtol=tolerance, atol=tolerance / 100)
    assert overwritten.data_ptr() == logits.data_ptr()
    assert not overwritten[:, VOCAB:].any()
    assert not overwritten[targets == IGNORED].any()


def test_a_factor_multiplies_the_gradient_and_not_the_loss(fused_loss: ModuleType) -> None:
    logits, targets = logits_and_targets()
    wanted, gradient = plain(logits, targets)
    found, scaled = fused_loss.loss_and_gradient(logits, targets, VOCAB, WHOLE, torch.tensor(8.0))
    torch.testing.assert_close(found, wanted.float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(scaled, 8 * gradient.float(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cuts", [(0, 100, 200), (0, 64, 128, 192, 200), (0, 195, 200)])
def test_processes_with_parts_of_the_rows_agree_with_one(fused_loss: ModuleType, cuts: tuple[int, ...]) -> None:
    """One of the last cuts has padding alone."""
    logits, targets = logits_and_targets()
    wanted, gradient = plain(logits, targets)
    count = len(cuts) - 1
    meeting, shared = threading.Barrier(count), [torch.empty(0)] * count
    found: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * count

    def process(rank: int, own: Tensor) -> None:
        def together(x: Tensor) -> Tensor:
            shared[rank] = x
            meeting.wait(10)
            all_parts = torch.stack(shared)
            meeting.wait(10)
            return all_parts

        part = VocabPart(cuts[rank], lambda x: together(x).amax(0), lambda x: together(x).sum(0))
        found[rank] = fused_loss.loss_and_gradient(own, targets, VOCAB, part, None)

    threads = [
        threading.Thread(target=process, args=(rank, logits[:, cuts[rank] : cuts[rank + 1]].contiguous()))
        for rank in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    for rank, (value, own) in enumerate(found):
        torch.testing.assert_close(value, wanted.float(), rtol=1e-6, atol=0)
        torch.testing.assert_close(own, gradient[:, cuts[rank] : cuts[rank + 1]].float(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_logit_that_is_not_finite_shows_in_the_loss(fused_loss: ModuleType, broken: float) -> None:
    logits, targets = logits_and_targets()
    logits[7, 150] = broken
    found, _ = fused_loss.loss_and_gradient(logits, targets, VOCAB, WHOLE, None)
    assert not found.isfinite()


def test_large_logits_do_not_overflow(fused_loss: ModuleType) -> None:
    logits, targets = logits_and_targets(scale=1e4)
    wanted, _ = plain(logits, targets)
    found, gradient = fused_loss.loss_and_gradient(logits, targets, VOCAB, WHOLE, None)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-6, atol=0)
    assert gradient.isfinite().all()


def test_a_view_of_wider_rows_is_overwritten_alone(fused_loss: ModuleType) -> None:
    logits, targets = logits_and_targets()
    wide = torch.full((TOKENS, WIDTH + 24), 5.0)
    wide[:, :WIDTH] = logits
    _, gradient = plain(logits, targets)
    fused_loss.loss_and_gradient(wide[:, :WIDTH], targets, VOCAB, WHOLE, None)
    torch.testing.assert_close(wide[:, :WIDTH], gradient.float(), rtol=1e-5, atol=1e-7)
    assert (wide[:, WIDTH:] == 5.0).all()


def test_a_compiled_loss_on_a_gpu_takes_the_kernels(fused_loss: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    on_gpu, on_cpu = torch.device("cuda"), torch.device("cpu")
    assert fastest_loss(on_gpu, ParallelConfig()) is fused_loss.loss_and_gradient
    assert fastest_loss(on_gpu, ParallelConfig(kernels="torch")) is loss.compiled_loss_and_gradient
    assert fastest_loss(on_cpu, ParallelConfig()) is loss.compiled_loss_and_gradient
    monkeypatch.setattr(loss, "CHUNK_VALUES", {"cpu": 8 * WIDTH})
    monkeypatch.setattr(loss, "CHUNK_TOKENS", 1)
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(TOKENS, 16, generator=generator, requires_grad=True)
    weight = torch.randn(WIDTH, 16, generator=generator, requires_grad=True)
    _, targets = logits_and_targets()
    results: list[tuple[Tensor, ...]] = []
    for differentiate in (fused_loss.loss_and_gradient, None):
        value = linear_cross_entropy(hidden, weight, targets, VOCAB, differentiate=differentiate)
        results.append((value, *torch.autograd.grad(3 * value, (hidden, weight))))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
