"""Exchanges of activations between the tp processes, forward and backward.

A tensor is replicated (None), or sharded along one dimension: positions or features. A matrix product may also leave a
term of a sum in each process. Gradients of replicated and sharded tensors are always complete, so the backward pass of
`move` is the opposite move, and `spread` and `total` are each other's backward pass.
"""

from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from trainer.parallel.mesh import Mesh

ROWS, POSITIONS, FEATURES = 0, 1, -1
"""Dimensions of weights (rows, features) and of activations (B, T, features)."""
ShardDim = int | None
"""The dimension along which a tensor is sharded; None: replicated."""
Backward = Callable[[Any, Tensor], tuple[Tensor | None, ...]]
_MESHES: WeakValueDictionary[str, Mesh] = WeakValueDictionary()
"""By the name of their tp group: an operator of torch takes no other objects than tensors and plain values."""


class Exchange:
    """The three conversions from one sharding to another.

    Each is an operator of torch, so that compiled graphs hold it whole: neither do they end there, nor can the compiler
    look into it. (With the exchanges traced, torch 2.11 computed wrong losses on GPUs, 7e-2 off in bf16.)
    """

    def __init__(self, mesh: Mesh, *, sequence_parallel: bool) -> None:
        self.mesh = mesh
        self.group = mesh.tp_group_name
        self.stream: ShardDim = POSITIONS if sequence_parallel else None
        """Sharding of the residual stream, between the pairs of matrices."""
        _MESHES[self.group] = mesh

    def move(self, x: Tensor, source: ShardDim, target: ShardDim) -> Tensor:
        """Return the same values, sharded along another dimension."""
        return x if source == target else torch.ops.millrace.move(x, source, target, self.group)

    def spread(self, x: Tensor, source: ShardDim) -> Tensor:
        """Replicate a tensor, to be used differently in each process; backward: sum the gradients."""
        return torch.ops.millrace.spread(x, source, self.group)

    def total(self, x: Tensor, target: ShardDim) -> Tensor:
        """Sum the processes' terms."""
        return torch.ops.millrace.total(x, target, self.group)


@torch.library.custom_op(
    "millrace::move", mutates_args=(), schema="(Tensor x, int? source, int? target, str group) -> Tensor"
)
def _move(x: Tensor, source: ShardDim, target: ShardDim, group: str) -> Tensor:
    mesh = _MESHES[group]
    if source is None:
        assert target is not None, "it is sharded so already"
        return x.chunk(mesh.tp, target)[mesh.tp_rank].clone(memory_format=torch.contiguous_format)
    return mesh.all_gather(x, source) if target is None else mesh.all_to_all(x, source, target)


@torch.library.custom_op("millrace::spread", mutates_args=(), schema="(Tensor x, int? source, str group) -> Tensor")
def _spread(x: Tensor, source: ShardDim, group: str) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format) if source is None else _MESHES[group].all_gather(x, source)


@torch.library.custom_op("millrace::total", mutates_args=(), schema="(Tensor x, int? target, str group) -> Tensor")
def _total(x: Tensor, target: ShardDim, group: str) -> Tensor:
    mesh = _MESHES[group]
    if target is None:
        return mesh.sum_over_tp(x.clone(memory_format=torch.contiguous_format))
    return mesh.reduce_scatter(x, target)


@_move.register_fake
def _like_moved(x: Tensor, source: ShardDim, target: ShardDim, group: str) -> Tensor:
    """Return an empty tensor of the shape that `x` has after a move."""
    shape, tp = list(x.shape), _MESHES[group].tp
    if source is not None:
        shape[source] *= tp
    if target is not None:
        shape[target] //= tp
    return x.new_empty(shape)


@_spread.register_fake
def _like_spread(x: Tensor, source: ShardDim, group: str) -> Tensor:
    return _like_moved(x, source, None, group)


@_total.register_fake
def _like_total(x: Tensor, target: ShardDim, group: str) -> Tensor:
    return _like_moved(x, None, target, group)


def _backward_of(operator: Any) -> Callable[[Backward], Backward]:
    """Return a decorator for the function of an operator's backward pass, which finds `ctx.arguments`."""

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG001 (torch names it)
        _, *ctx.arguments = inputs

    def register(backward: Backward) -> Backward:
        operator.register_autograd(backward, setup_context=remember)
        return backward

    return register


@_backward_of(_move)
def _move_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    source, target, group = ctx.arguments
    return torch.ops.millrace.move(gradient, target, source, group), None, None, None


@_backward_of(_spread)
def _spread_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.millrace.total(gradient, *ctx.arguments), None, None


@_backward_of(_total)
def _total_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    target, group = ctx.arguments
    return (gradient if target is None else torch.ops.millrace.move(gradient, target, None, group)), None, None
