"""AdamW, the learning rate's schedule, and clipping by the exact global norm."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trainer.config import FinetuneConfig, PretrainConfig, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How weights are updated, and for how long."""

    steps: int
    warmup_steps: int
    lr: float
    schedule: Schedule
    final_lr_share: float
    weight_decay: float
    betas: tuple[float, float]
    epsilon: float
    clip_norm: float

    @classmethod
    def of(cls, config: PretrainConfig | FinetuneConfig, steps: int, warmup_steps: int) -> "Recipe":
        """The recipe in a section, for so many steps."""
        return cls(
            steps=steps,
            warmup_steps=warmup_steps,
            lr=config.lr,
            schedule=config.schedule,
            final_lr_share=config.final_lr_share,
            weight_decay=config.weight_decay,
            betas=(config.beta1, config.beta2),
            epsilon=config.epsilon,
            clip_norm=config.clip_norm,
        )


def learning_rate(recipe: Recipe, step: int) -> float:
    """Learning rate of the update after `step` finished ones: up from 0, then down (transformers' convention)."""
    if step < recipe.warmup_steps:
        return recipe.lr * step / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    falling = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[recipe.schedule]
    if recipe.schedule == "constant":
        return recipe.lr
    return recipe.lr * (recipe.final_lr_share + (1 - recipe.final_lr_share) * falling)


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW that decays matrices and embeddings, and no biases or norms; its state is there from the start."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.ndim >= 2], "weight_decay": recipe.weight_decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.epsilon, fused=True)
    for weight in weights:
        optimizer.state[weight] = {
            "step": torch.zeros((), device=weight.device),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }
    return optimizer


def update(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """One update with this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def clip(weights: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Global norm of all gradients, which are scaled down to `limit` where it is above (0: never)."""
    weights = list(weights)
    norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if limit:
        nn.utils.clip_grads_with_norm_(weights, limit, norm)
    return norm
