"""How activations pass between the tp processes, forward and backward.

A tensor is whole in each process (None), or each has a part of it along one dimension: some positions, or some
features. A matrix product may instead give each process a term of a sum. Gradients of what is whole or in parts are
always complete, so the backward pass of `move` is the way back, and `spread` and `total` are each other's.
"""

from typing import Any

import torch
from torch import Tensor

from trainer.parallel.mesh import Mesh

ROWS, POSITIONS, FEATURES = 0, 1, -1
"""Dimensions of weights (rows, features) and of activations (B, T, features)."""
Place = int | None
"""The dimension along which each process has a part; None: each has all."""


class Exchange:
    """The three ways between places."""

    def __init__(self, mesh: Mesh, *, sequence_parallel: bool) -> None:
        self.mesh = mesh
        self.stream: Place = POSITIONS if sequence_parallel else None
        """Where the residual stream is, between the pairs of matrices."""

    def move(self, x: Tensor, source: Place, target: Place) -> Tensor:
        """The same values at another place."""
        return x if source == target else _exchanged(_Move, x, self.mesh, source, target)

    def spread(self, x: Tensor, source: Place) -> Tensor:
        """All of it in each process, for different work in each; backward: the sum of all gradients."""
        return _exchanged(_Spread, x, self.mesh, source)

    def total(self, x: Tensor, target: Place) -> Tensor:
        """A term of a sum in each process -> the sum."""
        return _exchanged(_Total, x, self.mesh, target)


def _apply(function: Any, x: Tensor, *arguments: Any) -> Tensor:
    """Compiled blocks end a graph here and begin a new one.

    With the exchanges traced, torch 2.11 computed wrong losses on GPUs (7e-2 off in bf16; 2.13 on CPUs is right).
    """
    return function.apply(x, *arguments)


_exchanged: Any = torch.compiler.disable(_apply)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Mesh, source: Place, target: Place) -> Tensor:
        ctx.mesh, ctx.source, ctx.target = mesh, source, target
        return _moved(x, mesh, source, target)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        return _moved(gradients[0], ctx.mesh, ctx.target, ctx.source), None, None, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Mesh, source: Place) -> Tensor:
        ctx.mesh, ctx.source = mesh, source
        return x.view_as(x) if source is None else mesh.gather_parts(x, source)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        return _summed(gradients[0], ctx.mesh, ctx.source), None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: Mesh, target: Place) -> Tensor:
        ctx.mesh, ctx.target = mesh, target
        return _summed(x, mesh, target)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None]:
        return gradients[0] if ctx.target is None else ctx.mesh.gather_parts(gradients[0], ctx.target), None, None


def _moved(x: Tensor, mesh: Mesh, source: Place, target: Place) -> Tensor:
    if source is None:
        assert target is not None, "it is there already"
        return x.chunk(mesh.tp, target)[mesh.tp_rank].contiguous()
    return mesh.gather_parts(x, source) if target is None else mesh.swap_parts(x, source, target)


def _summed(x: Tensor, mesh: Mesh, target: Place) -> Tensor:
    return mesh.sum_over_tp(x.clone()) if target is None else mesh.scatter_sums(x, target)
