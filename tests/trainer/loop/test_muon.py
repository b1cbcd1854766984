"""Muon's updates are torch.optim.Muon's, for query, key and value each, and the other weights stay AdamW's."""

import dataclasses
from typing import Any

import pytest
import torch
from torch.optim import _muon as theirs

from tests.trainer.loop.test_optimizer import CONFIG, model
from tests.trainer.small import MODEL
from trainer.config import MuonConfig
from trainer.loop import muon
from trainer.loop.muon import Muon, is_matrix, join_heads, orthogonalise, split_heads
from trainer.loop.optimizer import AdamW
from trainer.parallel.offload import Offload

WITH_MUON = dataclasses.replace(CONFIG, muon=MuonConfig(lr=0.03, weight_decay=0.2, momentum=0.9))
HEAD_WIDTH = MODEL.n_embd // MODEL.n_head


class OneProcess:
    """As much of a mesh as Muon asks for in one process."""

    device = torch.device("cpu")

    def place(self, _: str) -> tuple[int, int]:
        return 0, 1


def optimizer(weights: Any, config: Any = WITH_MUON, *, on_host: bool = False) -> Muon:
    mesh: Any = OneProcess()
    if not on_host:
        return Muon(weights, config, mesh, HEAD_WIDTH)
    others = {name: weight for name, weight in weights.items() if not is_matrix(name, weight)}
    offload = Offload(others, torch.device("cpu"))
    for name, master in offload.masters.items():
        master.copy_(others[name].detach())
    return Muon(weights, config, mesh, HEAD_WIDTH, offload)


def weights_of(net: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return dict(net.named_parameters())


def fill_gradients(nets: list[torch.nn.Module], generator: torch.Generator) -> None:
    """Give the same random gradients to each of these models."""
    for weights in zip(*(net.parameters() for net in nets), strict=True):
        gradient = torch.randn(weights[0].shape, generator=generator)
        for weight in weights:
            weight.grad = gradient.clone()


@pytest.mark.parametrize("shape", [(5, 8, 8), (3, 8, 32), (4, 32, 8), (1, 1, 7)])
def test_singular_values_come_near_1_and_singular_vectors_stay(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(3)
    given = torch.randn(shape, generator=generator)
    found = orthogonalise(given)
    left, _, right = torch.linalg.svd(given, full_matrices=False)
    inner = left.mT @ found @ right.mT
    values = torch.linalg.diagonal(inner)
    assert values.min() > 0.3
    assert values.max() < 1.3
    torch.testing.assert_close(inner, torch.diag_embed(values), atol=1e-4, rtol=0)
    assert torch.equal(orthogonalise(torch.zeros(shape)), torch.zeros(shape))


@pytest.mark.parametrize("shape", [(48, 16), (16, 48), (24, 24)])
def test_the_iteration_is_torchs(shape: tuple[int, int]) -> None:
    """In bf16, as torch computes it, but for where it rounds."""
    given = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    found = orthogonalise(given.bfloat16())
    assert found.dtype == torch.bfloat16
    for matrix, ours in zip(given, found, strict=True):
        constants = (theirs.DEFAULT_A, theirs.DEFAULT_B, theirs.DEFAULT_C), theirs.DEFAULT_NS_STEPS, theirs.EPS
        expected = theirs._zeropower_via_newtonschulz(matrix, *constants).float()  # pyright: ignore[reportPrivateUsage]
        assert (ours.float() - expected).norm() < 0.02 * expected.norm()
    assert muon.COEFFICIENTS == (theirs.DEFAULT_A, theirs.DEFAULT_B, theirs.DEFAULT_C)
    assert (muon.ITERATIONS, muon.LEAST_NORM) == (theirs.DEFAULT_NS_STEPS, theirs.EPS)


def test_it_is_in_bf16_on_gpus_only() -> None:
    assert muon.matmul_dtype(torch.device("cuda")) == torch.bfloat16
    assert muon.matmul_dtype(torch.device("cpu")) == torch.float32


@pytest.mark.parametrize("scale", ["original", "match_rms_adamw"])
def test_the_learning_rate_is_scaled_as_torch_documents(scale: Any) -> None:
    for shape in ((8, 8), (32, 8), (8, 32)):
        expected = theirs._adjust_lr(1.0, scale, torch.Size(shape))  # pyright: ignore[reportPrivateUsage]
        assert muon.scale(MuonConfig(lr_scale=scale), *shape) == pytest.approx(expected, rel=1e-12)


def test_heads_come_apart_and_together_again() -> None:
    """Rows are the query of head 0, its key, its value, the query of head 1, ..."""
    rows = torch.arange(12.0)[:, None].expand(12, 5)
    both = torch.stack([rows, 100 + rows])
    parts = split_heads(both, 2)
    assert parts[:, :, 0].tolist() == [
        *([0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]),
        *([100, 101, 106, 107], [102, 103, 108, 109], [104, 105, 110, 111]),
    ]
    assert torch.equal(join_heads(parts, 2), both)


def torchs(net: torch.nn.Module) -> tuple[torch.optim.Optimizer, dict[str, list[torch.nn.Parameter]]]:
    """Torch's Muon on the matrices of a model, three for query, key and value; and these by the weight's name."""
    parts: dict[str, list[torch.nn.Parameter]] = {}
    for name, weight in weights_of(net).items():
        if is_matrix(name, weight):
            whole = weight.detach()[None]
            split = split_heads(whole, HEAD_WIDTH) if ".qkv." in name else whole
            parts[name] = [torch.nn.Parameter(part.clone()) for part in split]
    config = WITH_MUON.muon
    assert config
    made = torch.optim.Muon(
        [part for several in parts.values() for part in several],
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        adjust_lr_fn=config.lr_scale,
    )
    return made, parts


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("at_once", [muon.AT_ONCE, 1])
def test_updates_equal_torchs_muon_and_plain_adamw(
    monkeypatch: pytest.MonkeyPatch, on_host: bool, at_once: int
) -> None:
    """With torch's iteration in fp32, too, so that rounding to bf16 hides nothing else."""
    monkeypatch.setattr(muon, "AT_ONCE", at_once)
    monkeypatch.setattr(theirs, "_zeropower_via_newtonschulz", lambda grad, *_: orthogonalise(grad[None])[0])
    ours, plain, other = model(), model(), model()
    mine = optimizer(weights_of(ours), on_host=on_host)
    adamw = AdamW({name: w for name, w in weights_of(plain).items() if not is_matrix(name, w)}, WITH_MUON)
    rival, parts = torchs(other)
    generator = torch.Generator().manual_seed(0)
    for number in range(4):
        fill_gradients([ours, plain, other], generator)
        lr = WITH_MUON.lr / (number + 1)
        for group in rival.param_groups:
            group["lr"] = WITH_MUON.muon.lr / (number + 1)  # pyright: ignore[reportOptionalMemberAccess]
        if mine.offload:
            mine.offload.begin()
            mine.offload.leave()
        mine.update(lr)
        if mine.offload:
            mine.update_offloaded(lr)
        adamw.update(lr)
        mine.steps += 1
        adamw.steps += 1
        for name, several in parts.items():
            gradient = weights_of(other)[name].grad
            assert gradient is not None
            split = split_heads(gradient[None], HEAD_WIDTH) if ".qkv." in name else gradient[None]
            for part, own in zip(several, split, strict=True):
                part.grad = own.clone()
        rival.step()
    if mine.offload:
        mine.offload.finish()
    assert mine.steps == 4
    assert len(parts) == 4 * MODEL.n_layer
    for name, weight in weights_of(ours).items():
        if name in parts:
            expected = torch.stack([part.detach() for part in parts[name]])
            expected = join_heads(expected, HEAD_WIDTH)[0] if ".qkv." in name else expected[0]
            torch.testing.assert_close(weight.detach(), expected, atol=1e-6, rtol=1e-5, msg=name)
        else:
            assert torch.equal(weight, weights_of(plain)[name]), name


def test_there_is_one_moment_of_a_matrix_and_two_of_any_other_weight() -> None:
    weights = weights_of(model())
    moments = optimizer(weights).moments
    assert moments.keys() == weights.keys()
    for name, weight in weights.items():
        assert [moment.shape for moment in moments[name]] == [weight.shape] * (1 if is_matrix(name, weight) else 2)
    assert {name.split(".", 3)[-1] for name, parts in moments.items() if len(parts) == 1} == {
        *("attn.qkv.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"),
    }


@pytest.mark.parametrize("value", [1.0, float("nan")])
def test_an_update_that_is_left_out_changes_nothing_to_the_bit(value: float) -> None:
    net, same = model(), model()
    mine, other = optimizer(weights_of(net)), optimizer(weights_of(same))
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        fill_gradients([net, same], generator)
        mine.update(1e-3, torch.tensor(0.0))
        other.update(1e-3)
    for weight in net.parameters():
        assert weight.grad is not None
        weight.grad.mul_(value)
    mine.update(1e-3, torch.tensor(1.0))
    for weight, unmoved in zip(net.parameters(), same.parameters(), strict=True):
        assert torch.equal(weight, unmoved)
    for name, moments in mine.moments.items():
        assert all(map(torch.equal, moments, other.moments[name])), name


def test_weights_count_their_changes() -> None:
    """By that, copies in half precision are made anew."""
    net = model()
    mine = optimizer(weights_of(net))
    for weight in net.parameters():
        weight.grad = torch.zeros_like(weight)
    before = {name: weight._version for name, weight in weights_of(net).items()}
    mine.update(1e-3)
    assert all(weight._version > before[name] for name, weight in weights_of(net).items())


def test_matrices_decay_by_their_own_rate() -> None:
    net = model()
    before = {name: weight.detach().clone() for name, weight in weights_of(net).items()}
    mine = optimizer(weights_of(net))
    for weight in net.parameters():
        weight.grad = torch.zeros_like(weight)
    mine.update(WITH_MUON.lr)
    for name, weight in weights_of(net).items():
        decayed = WITH_MUON.lr * WITH_MUON.weight_decay * (weight.ndim >= 2)
        decayed = 0.03 * 0.2 if is_matrix(name, weight) else decayed
        torch.testing.assert_close(weight.detach(), before[name] * (1 - decayed), msg=name)
