"""Exchanges of activations between the tp processes, forward and backward.

A tensor is replicated (None), or sharded along one dimension: positions or features. A matrix product may also leave a
term of a sum in each process. Gradients of replicated and sharded tensors are always complete, so the backward pass of
`move` is the opposite move, and `spread` and `total` are each other's backward pass.
"""

from typing import Any

import torch
from torch import Tensor

from trainer.parallel.mesh import Mesh

ROWS, POSITIONS, FEATURES = 0, 1, -1
"""Dimensions of weights (rows, features) and of activations (B, T, features)."""
ShardDim = int | None
"""The dimension along which a tensor is sharded; None: replicated."""


class Exchange:
    """The three conversions from one sharding to another."""

    def __init__(self, mesh: Mesh, *, sequence_parallel: bool) -> None:
        self.mesh = mesh
        self.stream: ShardDim = POSITIONS if sequence_parallel else None
        """Sharding of the residual stream, between the pairs of matrices."""

    def move(self, x: Tensor, source: ShardDim, target: ShardDim) -> Tensor:
        """Return the same values, sharded along another dimension."""
        return x if source == target else _exchanged(_Move, x, self.mesh, source, target)

    def spread(self, x: Tensor, source: ShardDim) -> Tensor:
        """Replicate a tensor, to be used differently in each process; backward: sum the gradients."""
        return _exchanged(_Spread, x, self.mesh, source)

    def total(self, x: Tensor, target: ShardDim) -> Tensor:
        """Sum the processes' terms."""
        return _exchanged(_Total, x, self.mesh, target)


def _apply(function: Any, x: Tensor, *arguments: Any) -> Tensor:
    """Apply an autograd function outside of compiled graphs.

    With the exchanges traced, torch 2.11 computed wrong losses on GPUs (7e-2 off in bf16; 2.13 on CPUs is right).
    """
    return function.apply(x, *arguments)


_exchanged: Any = torch.compiler.disable(_apply)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Mesh, source: ShardDim, target: ShardDim) -> Tensor:
        ctx.mesh, ctx.source, ctx.target = mesh, source, target
        return _moved(x, mesh, source, target)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        return _moved(gradients[0], ctx.mesh, ctx.target, ctx.source), None, None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Mesh, source: ShardDim) -> Tensor:
        ctx.mesh, ctx.source = mesh, source
        return x.view_as(x) if source is None else mesh.all_gather(x, source)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        return _summed(gradients[0], ctx.mesh, ctx.source), None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Mesh, target: ShardDim) -> Tensor:
        ctx.mesh, ctx.target = mesh, target
        return _summed(x, mesh, target)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        return gradients[0] if ctx.target is None else ctx.mesh.all_gather(gradients[0], ctx.target), None, None


def _moved(x: Tensor, mesh: Mesh, source: ShardDim, target: ShardDim) -> Tensor:
    if source is None:
        assert target is not None, "it is sharded so already"
        return x.chunk(mesh.tp, target)[mesh.tp_rank].contiguous()
    return mesh.all_gather(x, source) if target is None else mesh.all_to_all(x, source, target)


def _summed(x: Tensor, mesh: Mesh, target: ShardDim) -> Tensor:
    return mesh.sum_over_tp(x.clone()) if target is None else mesh.reduce_scatter(x, target)
