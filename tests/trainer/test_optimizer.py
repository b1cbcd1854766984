"""Schedules are transformers', decay spares biases and norms, clipping is by the norm of everything."""

import dataclasses
from typing import Any

import pytest
import torch

from tests.trainer.small import MODEL, PRETRAIN
from trainer.model import Architecture, LanguageModel, initialise
from trainer.optimizer import Recipe, build_optimizer, clip, learning_rate, update

RECIPE = Recipe.of(PRETRAIN, steps=50, warmup_steps=10)


def model() -> LanguageModel:
    made = LanguageModel(Architecture.of(MODEL, 61))
    initialise(made, 0)
    return made


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_learning_rates_are_those_of_transformers(schedule: Any) -> None:
    import transformers

    recipe = dataclasses.replace(RECIPE, schedule=schedule, final_lr_share=0.0)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    name = f"get_{schedule}_schedule_with_warmup"
    total = {} if schedule == "constant" else {"num_training_steps": 50}
    theirs = getattr(transformers, name)(optimizer, num_warmup_steps=10, **total)
    for step in range(50):
        assert learning_rate(recipe, step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_the_last_learning_rate_is_the_asked_share() -> None:
    recipe = dataclasses.replace(RECIPE, final_lr_share=0.1)
    assert learning_rate(recipe, 10) == recipe.lr
    assert learning_rate(recipe, 50) == pytest.approx(0.1 * recipe.lr)


def test_matrices_and_embeddings_decay_biases_and_norms_do_not() -> None:
    net = model()
    before = {name: weight.detach().clone() for name, weight in net.named_parameters()}
    optimizer = build_optimizer(net, RECIPE)
    for weight in net.parameters():
        weight.grad = torch.zeros_like(weight)
    update(optimizer, 0.5)
    for name, weight in net.named_parameters():
        factor = 1 - 0.5 * RECIPE.weight_decay if weight.ndim >= 2 else 1
        torch.testing.assert_close(weight.detach(), before[name] * factor, msg=name)
    decayed = {name for name, weight in net.named_parameters() if weight.ndim >= 2}
    assert {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.attn.q.weight"} <= decayed
    assert not {name for name in decayed if "ln_" in name or "bias" in name}


def test_updates_equal_plain_adamw() -> None:
    ours, theirs = model(), model()
    optimizer = build_optimizer(ours, RECIPE)
    plain = torch.optim.AdamW(
        [
            {"params": [w for w in theirs.parameters() if w.ndim >= 2], "weight_decay": RECIPE.weight_decay},
            {"params": [w for w in theirs.parameters() if w.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-3,
        betas=RECIPE.betas,
        eps=RECIPE.epsilon,
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.grad = torch.randn(mine.shape, generator=generator)
            other.grad = mine.grad.clone()
        update(optimizer, 1e-3)
        plain.step()
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-7, rtol=1e-6)


def test_clipping_is_by_the_norm_of_all_gradients_together() -> None:
    weights = [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(4))]
    for weight in weights:
        weight.grad = torch.full_like(weight, 2.0)
    assert clip(weights, 0.0).item() == pytest.approx(28**0.5)
    assert weights[0].grad is not None
    assert weights[0].grad.tolist() == [2.0, 2.0, 2.0]
    assert clip(weights, 1.0).item() == pytest.approx(28**0.5)
    assert clip(weights, 1.0).item() == pytest.approx(1.0, abs=1e-5)
    assert clip(weights, 2.0).item() == pytest.approx(1.0, abs=1e-5)
