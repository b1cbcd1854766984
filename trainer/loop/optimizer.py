"""AdamW, the learning rate's schedule, clipping by the exact global norm, and where the optimizer works.

`parallel.offload` says where. `none`: on the device. `optimizer`: the state is in the host's memory, and is updated
there or visits the device for that (`trainer.parallel.offload`). `all`: weights and gradients of blocks are there too,
and come for each pass (`trainer.parallel.streamed`); over several shards, stages or `tp`, FSDP2 keeps all of them there
(`zero.shard_states`), and the optimizer finds them there.
"""

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from trainer.config import MuonConfig, OptimizerFields, PretrainConfig, Schedule
from trainer.parallel.local import values
from trainer.parallel.offload import Offload
from trainer.parallel.pieces import Piece

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
    start, where the weight is; of some or all weights it is that of an `Offload`. Updates use the local parts, so every
    layout runs the same fused kernel, without the dispatch of distributed tensors.
    """

    def __init__(
        self, weights: Mapping[str, nn.Parameter], config: OptimizerConfig, offload: Offload | None = None
    ) -> None:
        """`offload`: the state of those of these weights that the host has."""
        self._weights = dict(weights)
        self._config = config
        self.offload = offload
        parts = {name: values(weight) for name, weight in weights.items()}
        held = {} if offload is None else offload.moments
        self.moments: dict[str, tuple[Tensor, ...]] = {
            name: held[name] if name in held else (torch.zeros_like(part), torch.zeros_like(part))
            for name, part in parts.items()
        }
        self.steps = 0
        self.device = next(part.device for part in parts.values())
        """Where weights are."""
        here = [name for name, part in parts.items() if name not in held and part.numel()]
        self._names = {
            decays: [name for name in here if (weights[name].ndim >= 2) == decays] for decays in (True, False)
        }
        self._counts: dict[tuple[Any, ...], tuple[Tensor, list[Tensor]]] = {}
        """By device, number, and where they are updated at the same time as others, step counts of weights, which the
        kernel increments: together, and one by one."""

    @torch.no_grad()
    def update(self, lr: float, unusable: Tensor | None = None, factor: Tensor | None = None) -> None:
        """Update the weights once with this learning rate, but for those of `offload`.

        The caller then counts the step in `steps`. `unusable`: a number on `device`; 1: leave out this update, without
        the host's knowing. `factor`: what gradients are multiplied by first, a number on `device`.
        """
        for decays, names in self._names.items():
            if not names:
                continue
            moments = [self.moments[name] for name in names]
            self._apply(
                [values(self._weights[name]) for name in names],
                [values(self._gradient(name)) for name in names],
                [first for first, _ in moments],
                [second for _, second in moments],
                lr,
                unusable,
                factor,
                decays=decays,
                steps=self.steps,
            )

    def update_offloaded(self, lr: float, factor: Tensor | None = None, on_device: Tensor | None = None) -> None:
        """Do the same with the weights of `offload`, beside what follows and before anything reads them.

        `factor`: as above, in the host's memory; `on_device`: the same number on `device`.
        """
        steps = self.steps  # which the caller counts before all are updated

        def apply(piece: Piece) -> None:
            moments = [piece.first], [piece.second]
            parts = [piece.weights], [piece.gradients], *moments
            by = factor if piece.weights.device.type == "cpu" else on_device
            self._apply(*parts, lr, None, by, decays=piece.decays, steps=steps)

        if self.offload is not None:
            self.offload.update(apply)

    def _gradient(self, name: str) -> Tensor:
        gradient = self._weights[name].grad
        assert gradient is not None, name
        return gradient

    def _apply(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        lr: float,
        unusable: Tensor | None,
        factor: Tensor | None,
        *,
        decays: bool,
        steps: int,
    ) -> None:
        config = self._config
        device = weights[0].device
        beside = torch.cuda.current_stream() if device.type == "cuda" else threading.get_ident()
        key = device, len(weights), beside
        if key not in self._counts:
            together = torch.empty(len(weights), device=device)
            self._counts[key] = together, list(together)
        together, counts = self._counts[key]
        together.fill_(steps)
        adamw(
            weights,
            gradients,
            first,
            second,
            [],
            counts,
            fused=True,
            grad_scale=None if factor is None else 1 / factor,
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


@torch.no_grad()
def clip_factor(norm: Tensor, limit: float, loss_scale: float = 1.0) -> Tensor | None:
    """Return what divides all gradients by `loss_scale` and clips their norm to `limit` (0: never); None: nothing does.

    `norm`: that of the whole model, after the division.
    """
    if not limit and loss_scale == 1.0:
        return None
    factor = torch.full_like(norm, 1 / loss_scale)
    if limit:
        factor *= (limit / (norm + 1e-6)).clamp(max=1.0)
    return factor
