"""Schedules are transformers', decay spares biases and norms, clipping is by the norm of everything."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from tests.trainer.small import MODEL, PRETRAIN, initialise
from trainer.config import ParallelConfig
from trainer.model import Architecture, LanguageModel
from trainer.optimizer import AdamW, Recipe, clip, learning_rate

RECIPE = Recipe.of(PRETRAIN, steps=50, warmup_steps=10)
PARALLEL = ParallelConfig(dp_replicate=1, device="cpu")


def model() -> LanguageModel:
    made = LanguageModel(Architecture.of(MODEL, 61))
    initialise(made, 0)
    return made


WARMUPS: dict[str, dict[str, Any]] = {
    "steps": {"warmup_steps": 10},
    "share": {"warmup_steps": 0, "warmup_share": 0.2},
    "none": {"warmup_steps": 0},
}


def recipe_of(schedule: str, warmup: str, **changes: Any) -> Recipe:
    """A recipe of 50 steps, with its warm-up as a section says it."""
    config = dataclasses.replace(PRETRAIN, **{"steps": 50, "schedule": schedule, **WARMUPS[warmup], **changes})
    run = config.in_steps(samples=0)
    return Recipe.of(config, run.steps, run.warmup_steps)


@pytest.mark.parametrize("warmup", ["steps", "share"])
@pytest.mark.parametrize(
    ("schedule", "name", "options"),
    [
        ("linear", "get_linear_schedule_with_warmup", {"num_training_steps": 50}),
        ("cosine", "get_cosine_schedule_with_warmup", {"num_training_steps": 50}),
        ("constant", "get_constant_schedule_with_warmup", {}),
        ("wsd", "get_wsd_schedule", {"num_training_steps": 50, "num_decay_steps": 8, "decay_type": "1-sqrt"}),
        ("inverse_sqrt", "get_inverse_sqrt_schedule", {}),
    ],
)
def test_learning_rates_are_those_of_transformers(
    schedule: str, name: str, options: dict[str, Any], warmup: str
) -> None:
    from transformers import optimization

    recipe = recipe_of(schedule, warmup, final_lr_share=0.0)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    theirs = getattr(optimization, name)(optimizer, num_warmup_steps=10, **options)
    for step in range(50):
        assert learning_rate(recipe, step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def formula(schedule: str, step: int, warmup: int, lowest: float) -> float:
    """The share of the highest learning rate, of 50 steps."""
    if step < warmup:
        return step / warmup
    done = (step - warmup) / (50 - warmup)
    start = max(warmup, 1)
    return {
        "constant": 1.0,
        "linear": 1 - (1 - lowest) * done,
        "cosine": lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * done)),
        "wsd": lowest + (1 - lowest) * (1 - math.sqrt(max(0.0, (done - 0.8) / 0.2))),
        "inverse_sqrt": max(lowest, math.sqrt(start / (start + step - warmup))),
    }[schedule]


@pytest.mark.parametrize("warmup", ["steps", "share", "none"])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "wsd", "inverse_sqrt"])
def test_learning_rates_are_those_of_the_formula(schedule: str, warmup: str) -> None:
    """Down to a share of the highest, which not all of transformers' schedules can."""
    recipe, length = recipe_of(schedule, warmup, final_lr_share=0.3), 0 if warmup == "none" else 10
    for step in range(51):
        expected = recipe.lr * formula(schedule, step, length, 0.3)
        assert learning_rate(recipe, step) == pytest.approx(expected, abs=1e-12), step


@pytest.mark.parametrize("warmup", ["steps", "share", "none"])
def test_the_linear_and_cosine_parts_are_those_of_torch(warmup: str) -> None:
    """Warm-up and fall put together from torch's own schedulers."""
    from torch.optim import lr_scheduler as theirs

    for schedule in ("linear", "cosine"):
        recipe = recipe_of(schedule, warmup, final_lr_share=0.3)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.lr)
        rest = 50 - recipe.warmup_steps
        falling: Any = (
            theirs.LinearLR(optimizer, 1.0, 0.3, rest)
            if schedule == "linear"
            else theirs.CosineAnnealingLR(optimizer, rest, eta_min=0.3 * recipe.lr)
        )
        for step in range(recipe.warmup_steps, 51):
            assert learning_rate(recipe, step) == pytest.approx(falling.get_last_lr()[0], abs=1e-12), (schedule, step)
            optimizer.step()
            falling.step()


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "inverse_sqrt"])
def test_the_last_learning_rate_is_the_asked_share(schedule: Any) -> None:
    steps = 50 if schedule != "inverse_sqrt" else 10_000  # which has no end, and falls no further than the share
    recipe = dataclasses.replace(RECIPE, schedule=schedule, final_lr_share=0.1, steps=steps)
    rates = [learning_rate(recipe, step) for step in range(10, steps + 1)]
    assert rates[0] == recipe.lr
    assert rates[-1] == pytest.approx(0.1 * recipe.lr)
    assert rates == sorted(rates, reverse=True)


def test_wsd_stays_at_the_top_until_the_last_fifth() -> None:
    recipe = dataclasses.replace(RECIPE, schedule="wsd", final_lr_share=0.0)
    assert {learning_rate(recipe, step) for step in range(10, 43)} == {recipe.lr}
    assert learning_rate(recipe, 43) < 0.7 * recipe.lr, "and then falls steeply first"


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "wsd", "inverse_sqrt"])
def test_without_a_warm_up_the_first_learning_rate_is_the_highest(schedule: Any) -> None:
    recipe = dataclasses.replace(RECIPE, schedule=schedule, warmup_steps=0)
    assert learning_rate(recipe, 0) == recipe.lr


def test_matrices_and_embeddings_decay_biases_and_norms_do_not() -> None:
    weights = dict(model().named_parameters())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizer = AdamW(weights, RECIPE)
    for weight in weights.values():
        weight.grad = torch.zeros_like(weight)
    optimizer.update(0.5)
    for name, weight in weights.items():
        factor = 1 - 0.5 * RECIPE.weight_decay if weight.ndim >= 2 else 1
        torch.testing.assert_close(weight.detach(), before[name] * factor, msg=name)
    decayed = {name for name, weight in weights.items() if weight.ndim >= 2}
    assert {"transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.attn.qkv.weight"} <= decayed
    assert not {name for name in decayed if "ln_" in name or "bias" in name}


@pytest.mark.parametrize("on_host", [False, True])
def test_updates_equal_plain_adamw(on_host: bool) -> None:
    ours, theirs = model(), model()
    optimizer = AdamW(dict(ours.named_parameters()), RECIPE, on_host=on_host)
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
        optimizer.update(1e-3)
        plain.step()
    assert optimizer.steps == 5
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-7, rtol=1e-6)


def clipped(limit: float, loss_scale: float = 1.0) -> tuple[float, list[list[float]]]:
    """The norm of seven gradients of 2, times the loss scale, and what clipping leaves of them."""
    from trainer.parallel.mesh import Mesh
    from trainer.parallel.zero import Gradients, Tied

    mesh = Mesh(PARALLEL, torch.device("cpu"))
    net: Any = torch.nn.ParameterDict({"a": torch.zeros(3), "b": torch.zeros(4)})
    gradients = Gradients([net], PARALLEL, mesh, Tied(mesh, 0, 0))
    for weight in net.parameters():
        weight.grad.fill_(2.0 * loss_scale)
    norm = clip(gradients, mesh, limit, loss_scale).item()
    return norm, [weight.grad.tolist() for weight in net.parameters()]


@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_clipping_is_by_the_norm_of_all_gradients_together(workers: Any, loss_scale: float) -> None:
    """And by that of the gradients themselves, whatever the loss was multiplied by."""
    ((norm, untouched),) = workers.run(1, clipped, 0.0, loss_scale)
    assert norm == pytest.approx(28**0.5)
    assert untouched == [[2.0] * 3, [2.0] * 4]
    ((norm, small_enough),) = workers.run(1, clipped, 6.0, loss_scale)
    assert norm == pytest.approx(28**0.5)
    assert small_enough == [[2.0] * 3, [2.0] * 4]
    ((norm, scaled),) = workers.run(1, clipped, 1.0, loss_scale)
    assert norm == pytest.approx(28**0.5)
    assert sum(value**2 for part in scaled for value in part) == pytest.approx(1.0, abs=1e-5)
