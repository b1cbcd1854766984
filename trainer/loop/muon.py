"""Muon for the matrices of the blocks, beside AdamW for all other weights.

Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (kellerjordan.github.io/posts/muon),
with the numbers and the two scales of the learning rate of `torch.optim.Muon` (torch 2.9 and newer), which itself takes
neither parts of matrices nor several at once. Query, key and value are one matrix here but three linear maps, and each
is orthogonalised by itself, as in its authors' speedruns: one orthogonal matrix of all three would give each of them a
share that depends on the two others. Matrices that are split over processes are put together first
(`trainer.parallel.whole`), and the work is shared among all processes that hold a part or a copy of them.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trainer.config import MuonConfig
from trainer.loop.optimizer import AdamW, OptimizerConfig
from trainer.parallel.host_memory import HostMemory
from trainer.parallel.local import values
from trainer.parallel.mesh import Mesh
from trainer.parallel.offload import Offload
from trainer.parallel.whole import WholeMatrices

COEFFICIENTS = 3.4445, -4.7750, 2.0315
"""Of the quintic polynomial; five such steps bring singular values between 0.002 and 1 to between 0.7 and 1.2."""
ITERATIONS = 5
LEAST_NORM = 1e-7
"""What a matrix's norm is taken for if it is less."""
AT_ONCE = 2**26
"""Values that a process orthogonalises at once, which bounds the memory that it takes."""


def is_matrix(name: str, weight: Tensor) -> bool:
    """Whether Muon updates this weight: a matrix of a block."""
    return weight.ndim == 2 and name.startswith("transformer.h.")


class Muon(AdamW):
    """Muon on the blocks' matrices, and AdamW on embeddings, norms, biases and the head.

    Of a matrix there is one moment, sharded as the matrix is. With `offload`, which has the state of the other weights,
    it is in the host's memory too, and goes to the GPU and back for each update.
    """

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        config: OptimizerConfig,
        mesh: Mesh,
        head_width: int,
        offload: Offload | None = None,
    ) -> None:
        """`head_width`: of the attention, by which query, key and value alternate in the rows of their matrix."""
        matrices = {name: weight for name, weight in weights.items() if is_matrix(name, weight)}
        others = {name: weight for name, weight in weights.items() if name not in matrices}
        super().__init__(others, config, offload)
        assert config.muon is not None
        kinds: dict[tuple[object, ...], dict[str, nn.Parameter]] = {}
        for name, weight in matrices.items():
            key = name.split(".", 3)[3], weight.shape, getattr(weight, "placements", ())
            kinds.setdefault(key, {})[name] = weight
        self._kinds = [
            _Kind(
                list(alike.values()),
                WholeMatrices(next(iter(alike.values())), mesh),
                config.muon,
                mesh.device,
                head_width if "attn.qkv." in next(iter(alike)) else 0,
                on_host=offload is not None,
            )
            for alike in kinds.values()
        ]
        for alike, kind in zip(kinds.values(), self._kinds, strict=True):
            self.moments |= {name: (part,) for name, part in zip(alike, kind.momentum.unbind(), strict=True)}
        self._times = config.muon.lr / config.lr
        """The matrices' learning rate by that of the other weights, which have the same schedule."""

    @torch.no_grad()
    def update(self, lr: float, unusable: Tensor | None = None, factor: Tensor | None = None) -> None:
        """Update the weights once with this learning rate of those that are not Muon's; see `AdamW.update`."""
        super().update(lr, unusable, factor)
        if self.offload is None:
            self._update_matrices(lr, unusable, factor)

    def update_offloaded(self, lr: float, factor: Tensor | None = None, on_device: Tensor | None = None) -> None:
        """Do the same with the weights of `offload`, and with matrices, whose momentum is in the host's memory."""
        super().update_offloaded(lr, factor, on_device)
        if self.offload is not None:
            self._update_matrices(lr, None, factor)

    def _update_matrices(self, lr: float, unusable: Tensor | None, factor: Tensor | None) -> None:
        for kind in self._kinds:
            kind.update(lr * self._times, unusable, factor)


class _Kind:
    """Matrices of one shape and sharding from several blocks."""

    def __init__(
        self,
        weights: Sequence[nn.Parameter],
        whole: WholeMatrices,
        config: MuonConfig,
        device: torch.device,
        head_width: int,
        *,
        on_host: bool,
    ) -> None:
        """`head_width`: 0, unless it is query, key and value in one. `device`: where matrices are put together."""
        self._weights = weights
        self._whole = whole
        self._config = config
        self._device = device
        self._head_width = head_width
        part = values(weights[0])
        shape = len(weights), *part.shape
        self._memory = HostMemory(part.element_size() * math.prod(shape), pin=part.is_cuda) if on_host else None
        self.momentum = (
            part.new_zeros(shape) if self._memory is None else self._memory.values.view(part.dtype).view(shape)
        )
        """Of each matrix this process's part."""
        rows, columns = weights[0].shape
        rows //= 3 if head_width else 1
        self._scale = scale(config, rows, columns)
        shares = AT_ONCE * whole.splits // weights[0].numel() // whole.processes
        self._at_once = max(1, shares) * whole.processes

    def update(self, lr: float, unusable: Tensor | None, factor: Tensor | None) -> None:
        for first in range(0, len(self._weights), self._at_once):
            chosen = slice(first, first + self._at_once)
            weights = [values(weight) for weight in self._weights[chosen]]
            directions = self._directions(chosen, unusable, factor)
            wholes = self._whole.collect(directions.to(self._device, matmul_dtype(self._device)))
            parts = self._whole.spread(self._orthogonalise(wholes), len(weights)).to(weights[0].device)
            _step(weights, parts.float(), 1 - lr * self._config.weight_decay, -lr * self._scale, unusable)

    def _directions(self, chosen: slice, unusable: Tensor | None, factor: Tensor | None) -> Tensor:
        """Take this step's gradients into the momentum, and return Nesterov's look ahead."""
        gradients = torch.stack([values(_gradient(weight)) for weight in self._weights[chosen]])
        if factor is not None:
            gradients *= factor
        kept = self.momentum[chosen]
        momentum = kept.to(gradients.device, non_blocking=True)
        if unusable is not None:
            gradients = torch.where(unusable > 0, momentum, gradients)  # so that it stays what it is, to the bit
        momentum.lerp_(gradients, 1 - self._config.momentum)
        if momentum.device != kept.device:
            kept.copy_(momentum)  # and wait: a checkpoint reads the host's memory
        return gradients.lerp_(momentum, self._config.momentum)

    def _orthogonalise(self, wholes: Tensor) -> Tensor:
        if not self._head_width:
            return orthogonalise(wholes)
        parts = orthogonalise(split_heads(wholes, self._head_width))
        return join_heads(parts, self._head_width)


def _gradient(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def _step(weights: list[Tensor], directions: Tensor, decay: float, step: float, unusable: Tensor | None) -> None:
    """Add `step` times the directions to weights that have been multiplied by `decay`; not if unusable is 1."""
    if unusable is None:
        directions.mul_(step)
        torch._foreach_mul_(weights, decay)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
    else:
        directions.mul_(torch.where(unusable > 0, 0.0, step))
        factor = torch.where(unusable > 0, 1.0, decay)
        torch._foreach_mul_(weights, factor)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
    torch._foreach_add_(weights, directions.unbind())  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


def scale(config: MuonConfig, rows: int, columns: int) -> float:
    """Return what the learning rate of a matrix is multiplied by (torch.optim.Muon's `adjust_lr_fn`)."""
    if config.lr_scale == "original":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))  # Moonshot AI's (arXiv:2502.16982)


def matmul_dtype(device: torch.device) -> torch.dtype:
    """Return what matrices are orthogonalised in: bf16 on GPUs as its authors do, else fp32, as precise as the rest."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def orthogonalise(matrices: Tensor) -> Tensor:
    """Return about the nearest orthogonal matrix to each of several (matrices, rows, columns), in their dtype.

    By five steps of Newton and Schulz with a polynomial that is steep at 0: U S V^T becomes U S' V^T with S' near 1.
    """
    rows, columns = matrices.shape[1:]
    x = matrices.mT if rows > columns else matrices
    norms = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True, dtype=torch.float32)
    x = x / norms.clamp(min=LEAST_NORM).to(x.dtype)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        square = x @ x.mT
        polynomial = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if rows > columns else x


def split_heads(matrices: Tensor, head_width: int) -> Tensor:
    """Return query, key and value of each matrix as three (3 x matrices, rows / 3, columns)."""
    by_head = matrices.unflatten(1, (-1, 3, head_width))
    return by_head.transpose(1, 2).flatten(2, 3).flatten(0, 1)


def join_heads(parts: Tensor, head_width: int) -> Tensor:
    """Return what `split_heads` was given."""
    return parts.unflatten(0, (-1, 3)).unflatten(2, (-1, head_width)).transpose(1, 2).flatten(1, 3)
