"""AdamW, the learning rate's schedule, clipping by the exact global norm, and where the optimizer works.

`parallel.offload` says where. `none`: on the device. `optimizer`: in the host's memory, with copies of the weights that
this process updates; weights and gradients stay on the device. `all`: FSDP2 keeps weights and gradients in the host's
memory too (`zero.shard_states`), and the optimizer finds them there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from trainer.config import MuonConfig, OptimizerFields, PretrainConfig, Schedule
from trainer.parallel.local import values
from trainer.parallel.zero import Gradients

WSD_DECAY = 0.2
"""Fraction of the steps after the warm-up over which `wsd` lowers the learning rate."""
TRAPEZOIDAL_DECAY = 1450 / 5100
"""The same of `trapezoidal`: the last 1,450 of 5,100 steps of github.com/KellerJordan/modded-nanogpt's comparison of
optimizers (records/track_1_short/2024-10-29_Optimizers), which has no warm-up with Muon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """Settings of the updates, and their number."""

    steps: int
    warmup_steps: int
    lr: float
    schedule: Schedule
    final_lr_share: float
    weight_decay: float
    betas: tuple[float, float]
    epsilon: float
    clip_norm: float
    muon: MuonConfig | None = None
    """Muon's settings, where the blocks' matrices are updated by it; None: AdamW updates all weights."""

    @classmethod
    def of(cls, section: OptimizerFields, steps: int, warmup_steps: int) -> "OptimizerConfig":
        """Build from a config section and the resolved numbers of steps."""
        return cls(
            steps=steps,
            warmup_steps=warmup_steps,
            lr=section.lr,
            schedule=section.schedule,
            final_lr_share=section.final_lr_share,
            weight_decay=section.weight_decay,
            betas=(section.beta1, section.beta2),
            epsilon=section.epsilon,
            clip_norm=section.clip_norm,
            muon=section.muon if isinstance(section, PretrainConfig) and section.optimizer == "muon" else None,
        )

    @property
    def optimizer(self) -> str:
        """Return the optimizer's name in parameters and records."""
        return "adamw" if self.muon is None else "muon"


def learning_rate(config: OptimizerConfig, step: int) -> float:
    """Return the learning rate of the update after `step` finished ones, which rises from 0 and then falls.

    Steps count as in transformers. wsd stays at the top and falls over the last fifth, by the square root (Haegele et
    al., arXiv:2405.18392); trapezoidal falls in a line over the last 28 %, as Muon's authors let it; inverse_sqrt falls
    with the root of the steps (Vaswani et al., arXiv:1706.03762).
    """
    if step < config.warmup_steps:
        return config.lr * step / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "inverse_sqrt":
        from_start = max(1, config.warmup_steps)
        return config.lr * max(config.final_lr_share, math.sqrt(from_start / (step - config.warmup_steps + from_start)))
    left, tail = config.steps - step, WSD_DECAY * (config.steps - config.warmup_steps)
    falling = {
        "linear": 1 - done,
        "cosine": (1 + math.cos(math.pi * done)) / 2,
        "wsd": 1.0 if left >= tail else 1 - math.sqrt(1 - left / tail),
        "trapezoidal": min(1.0, (1 - done) / TRAPEZOIDAL_DECAY),
    }[config.schedule]
    return config.lr * (config.final_lr_share + (1 - config.final_lr_share) * falling)


class AdamW:
    """AdamW (Loshchilov and Hutter, arXiv:1711.05101) on this process's parts of the weights.

    Matrices and embeddings decay, biases and norms do not. The state, two moments of each part, is allocated at the
    start, in the host's memory with `on_host`. Updates use the local parts, so every layout runs the same fused kernel,
    without the dispatch of distributed tensors.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], config: OptimizerConfig, *, on_host: bool = False) -> None:
        self._weights = dict(weights)
        self._config = config
        parts = {name: values(weight) for name, weight in weights.items()}
        device = torch.device("cpu") if on_host else None
        self.moments: dict[str, tuple[Tensor, ...]] = {
            name: (torch.zeros_like(part, device=device), torch.zeros_like(part, device=device))
            for name, part in parts.items()
        }
        self.steps = 0
        self.device = next(first.device for first, _ in self.moments.values())
        """Where updates are computed."""
        self._names = {
            decays: [name for name in weights if (weights[name].ndim >= 2) == decays and parts[name].numel()]
            for decays in (True, False)
        }
        self._hosts = {
            decays: HostCopies([parts[name] for name in names]) for decays, names in self._names.items() if on_host
        }
        self._counts: dict[bool, tuple[Tensor, list[Tensor]]] = {}
        """Step counts of weights that decay and of others, which the kernel increments: together, and one by one."""

    @torch.no_grad()
    def update(self, lr: float, unusable: Tensor | None = None) -> None:
        """Update the weights once with this learning rate; the caller then counts the step in `steps`.

        `unusable`: a number on `device`; 1: leave out this update, without the host's knowing.
        """
        for decays, names in self._names.items():
            if not names:
                continue
            weights = [values(self._weights[name]) for name in names]
            gradients = [values(self._gradient(name)) for name in names]
            if host := self._hosts.get(decays):
                host.take(weights, gradients)
                self._apply(names, host.weights, host.gradients, lr, unusable, decays=decays)
                host.give(weights)
            else:
                self._apply(names, weights, gradients, lr, unusable, decays=decays)

    def _gradient(self, name: str) -> Tensor:
        gradient = self._weights[name].grad
        assert gradient is not None, name
        return gradient

    def _apply(
        self,
        names: list[str],
        weights: list[Tensor],
        gradients: list[Tensor],
        lr: float,
        unusable: Tensor | None,
        *,
        decays: bool,
    ) -> None:
        config = self._config
        moments = [self.moments[name] for name in names]
        if decays not in self._counts:
            together = torch.empty(len(names), device=weights[0].device)
            self._counts[decays] = together, list(together)
        together, counts = self._counts[decays]
        together.fill_(self.steps)
        adamw(
            weights,
            gradients,
            [first for first, _ in moments],
            [second for _, second in moments],
            [],
            counts,
            fused=True,
            found_inf=unusable,
            amsgrad=False,
            beta1=config.betas[0],
            beta2=config.betas[1],
            lr=lr,
            weight_decay=config.weight_decay if decays else 0.0,
            eps=config.epsilon,
            maximize=False,
        )
        # The kernel does not count its changes, and by that count copies in half precision are made anew.
        torch.autograd.graph.increment_version(weights)


class HostCopies:
    """Copies of weights and gradients in the host's memory; pinned if the weights are on a GPU."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._on_gpu = any(weight.device.type == "cuda" for weight in weights)
        self.weights = [torch.empty(weight.shape, dtype=weight.dtype, pin_memory=self._on_gpu) for weight in weights]
        self.gradients = [torch.empty_like(copy, pin_memory=self._on_gpu) for copy in self.weights]

    def take(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Copy weights and gradients from the device."""
        self._copy((*weights, *gradients), (*self.weights, *self.gradients))

    def give(self, weights: Sequence[Tensor]) -> None:
        """Copy the updated weights back to the device."""
        self._copy(self.weights, weights)

    def _copy(self, sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)
        if self._on_gpu:
            torch.cuda.synchronize()


@torch.no_grad()
def clip(gradients: Gradients, norm: Tensor, limit: float, loss_scale: float = 1.0) -> None:
    """Divide all gradients by `loss_scale`, and clip their global norm to `limit` (0: never).

    `norm`: that of the whole model, after the division.
    """
    if not limit and loss_scale == 1.0:
        return
    factor = torch.full_like(norm, 1 / loss_scale)
    if limit:
        factor *= (limit / (norm + 1e-6)).clamp(max=1.0)
    gradients.scale(factor)
