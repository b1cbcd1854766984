"""AdamW, the learning rate's schedule, and clipping by the exact global norm."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from trainer.config import FinetuneConfig, PretrainConfig, Schedule
from trainer.parallel.mesh import Mesh
from trainer.parallel.offload import HostCopies
from trainer.parallel.zero import Gradients, global_norm
from trainer.shards import local

WSD_DECAY = 0.2
"""Share of the steps after the warm-up over which `wsd` lets the learning rate fall."""


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
    """Learning rate of the update after `step` finished ones: up from 0, then down (transformers' convention).

    wsd stays at the top and falls over the last fifth, by the square root (Haegele et al., arXiv:2405.18392);
    inverse_sqrt falls with the root of the steps since the warm-up (Vaswani et al., arXiv:1706.03762).
    """
    if step < recipe.warmup_steps:
        return recipe.lr * step / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    if recipe.schedule == "constant":
        return recipe.lr
    if recipe.schedule == "inverse_sqrt":
        from_start = max(1, recipe.warmup_steps)
        return recipe.lr * max(recipe.final_lr_share, math.sqrt(from_start / (step - recipe.warmup_steps + from_start)))
    left, tail = recipe.steps - step, WSD_DECAY * (recipe.steps - recipe.warmup_steps)
    falling = {
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "wsd": 1.0 if left >= tail else 1 - math.sqrt(1 - left / tail),
    }[recipe.schedule]
    return recipe.lr * (recipe.final_lr_share + (1 - recipe.final_lr_share) * falling)


class AdamW:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101) on this process's parts of the weights.

    Matrices and embeddings decay, biases and norms do not. The state is there from the start: two moments of each
    part, in the host's memory if asked for. It works on the parts themselves, so every layout takes the same fused
    kernel, and none the dispatch of distributed tensors.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], recipe: Recipe, *, on_host: bool = False) -> None:
        self._weights = dict(weights)
        self._recipe = recipe
        parts = {name: local(weight.detach()) for name, weight in weights.items()}
        device = torch.device("cpu") if on_host else None
        self.moments: dict[str, tuple[Tensor, Tensor]] = {
            name: (torch.zeros_like(part, device=device), torch.zeros_like(part, device=device))
            for name, part in parts.items()
        }
        self.steps = 0
        self._hosts = {
            decays: HostCopies([parts[n] for n in self._names(decays)]) for decays in (True, False) if on_host
        }

    def _names(self, decays: bool) -> list[str]:
        return [
            name
            for name, weight in self._weights.items()
            if (weight.ndim >= 2) == decays and self.moments[name][0].numel()
        ]

    @torch.no_grad()
    def update(self, lr: float) -> None:
        """One update with this learning rate."""
        for decays in (True, False):
            names = self._names(decays)
            if not names:
                continue
            weights = [local(self._weights[name].detach()) for name in names]
            gradients = [local(self._gradient(name)) for name in names]
            if host := self._hosts.get(decays):
                host.take(weights, gradients)
                self._apply(names, host.weights, host.gradients, lr, decays=decays)
                host.give(weights)
            else:
                self._apply(names, weights, gradients, lr, decays=decays)
        self.steps += 1

    def _gradient(self, name: str) -> Tensor:
        gradient = self._weights[name].grad
        assert gradient is not None, name
        return gradient

    def _apply(
        self, names: list[str], weights: list[Tensor], gradients: list[Tensor], lr: float, *, decays: bool
    ) -> None:
        recipe = self._recipe
        moments = [self.moments[name] for name in names]
        adamw(
            weights,
            gradients,
            [first for first, _ in moments],
            [second for _, second in moments],
            [],
            # A number each, where the weights are: the kernel adds to it.
            list(torch.full((len(names),), float(self.steps), device=weights[0].device)),
            fused=True,
            amsgrad=False,
            beta1=recipe.betas[0],
            beta2=recipe.betas[1],
            lr=lr,
            weight_decay=recipe.weight_decay if decays else 0.0,
            eps=recipe.epsilon,
            maximize=False,
        )


@torch.no_grad()
def clip(gradients: Gradients, mesh: Mesh, limit: float, loss_scale: float = 1.0) -> Tensor:
    """Global norm of all gradients, which are scaled down to `limit` where it is above (0: never).

    They come as those of the loss times `loss_scale`, and are divided by it.
    """
    norm = global_norm(gradients, mesh) / loss_scale
    factor = torch.full_like(norm, 1 / loss_scale)
    if limit:
        factor *= (limit / (norm + 1e-6)).clamp(max=1.0)
    if limit or loss_scale != 1.0:
        gradients.scale(factor)
    return norm
