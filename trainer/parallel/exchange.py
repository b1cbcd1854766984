"""Exchanges of activations between the tp processes, forward and backward.

A tensor is replicated (None), or sharded along one dimension: tokens or features. A matrix product may also leave a
term of a sum in each process. Gradients of replicated and sharded tensors are always complete, so the backward pass of
`move` is the opposite move, and `spread` and `total` are each other's backward pass.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from trainer.model import SequencePart
from trainer.parallel.mesh import Mesh
from trainer.parallel.token_exchange import Collectives, TokenExchange

ROWS, TOKENS, FEATURES = 0, 1, -1
"""Dimensions of weights (rows, features) and of activations (B, T, features). A part of the tokens is that of
`SequencePart`, in the shape (B, T / tp, features)."""
ShardDim = int | None
"""The dimension along which a tensor is sharded; None: replicated."""
Backward = Callable[[Any, Tensor], tuple[Tensor | None, ...]]
_EXCHANGES: WeakValueDictionary[str, "Exchange"] = WeakValueDictionary()
"""By name: an operator of torch takes no other objects than tensors and plain values."""
_numbers = itertools.count()


class Exchange:
    """The three conversions from one sharding to another.

    Each is an operator of torch, so that compiled graphs hold it whole: neither do they end there, nor can the compiler
    look into it. (With the exchanges traced, torch 2.11 computed wrong losses on GPUs, 7e-2 off in bf16.)
    """

    def __init__(
        self, mesh: Mesh, *, sequence_parallel: bool, least_group: int = 0, copies: TokenExchange | None = None
    ) -> None:
        """`least_group`: see SequencePart. `copies`: what fused blocks exchange tokens by; None: by collectives."""
        self.mesh = mesh
        self.part = SequencePart(mesh.tp_rank, mesh.tp, least_group) if sequence_parallel else SequencePart()
        """The tokens of this process between the pairs of matrices."""
        self.stream: ShardDim = TOKENS if sequence_parallel else None
        """Sharding of the residual stream there."""
        self.token_exchange: TokenExchange = copies or Collectives(mesh, self.part)
        """Of fused blocks."""
        self.by_parts = copies is not None or least_group > 0
        """Whether a fused block multiplies parts of the tokens as they come."""
        self.name = f"{mesh.tp_group_name}/{next(_numbers)}"
        _EXCHANGES[self.name] = self

    def move(self, x: Tensor, source: ShardDim, target: ShardDim) -> Tensor:
        """Return the same values, sharded along another dimension."""
        return x if source == target else torch.ops.millrace.move(x, source, target, self.name)

    def spread(self, x: Tensor, source: ShardDim) -> Tensor:
        """Replicate a tensor, to be used differently in each process; backward: sum the gradients."""
        return torch.ops.millrace.spread(x, source, self.name)

    def total(self, x: Tensor, target: ShardDim) -> Tensor:
        """Sum the processes' terms."""
        return torch.ops.millrace.total(x, target, self.name)

    def gather(self, x: Tensor, source: int) -> Tensor:
        """Return all of a tensor that is sharded along `source`."""
        if source != TOKENS:
            return self.mesh.all_gather(x, source)
        whole = x.new_empty(len(x), x.shape[1] * self.mesh.tp, *x.shape[2:])
        for to, part in self._groups_of(whole, x):
            self.mesh.gather_into(to, part)
        return whole

    def scatter(self, x: Tensor, target: int) -> Tensor:
        """Return this process's part, along `target`, of the sum of all processes' tensors."""
        if target != TOKENS:
            return self.mesh.reduce_scatter(x, target)
        own = x.new_empty(len(x), x.shape[1] // self.mesh.tp, *x.shape[2:])
        for terms, to in self._groups_of(x, own):
            self.mesh.scatter_into(to, terms)
        return own

    def _groups_of(self, whole: Tensor, own: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the groups of all tokens, each with this process's part of it."""
        whole, own = whole.flatten(0, 1), own.flatten(0, 1)
        count = self.part.groups(len(whole))
        return zip(whole.chunk(count), own.chunk(count), strict=True)

    def turn(self, x: Tensor, source: int, target: int) -> Tensor:
        """Return the tensor that is sharded along `source`, sharded along `target`."""
        if TOKENS not in (source, target):
            return self.mesh.all_to_all(x, source, target)
        assert not self.part.least_group, "the modules that need this divide no groups"
        # Of tokens, one sample after the other, a part is a part of the first dimension.
        by_rows = [ROWS if dim == TOKENS else dim for dim in (source, target)]
        return self.mesh.all_to_all(x.flatten(0, 1), *by_rows).unflatten(0, (len(x), -1))

    def own(self, x: Tensor, target: int) -> Tensor:
        """Return this process's part of a replicated tensor."""
        part = self.part.of(x) if target == TOKENS else x.chunk(self.mesh.tp, target)[self.mesh.tp_rank]
        return part.clone(memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "millrace::move", mutates_args=(), schema="(Tensor x, int? source, int? target, str exchange) -> Tensor"
)
def _move(x: Tensor, source: ShardDim, target: ShardDim, exchange: str) -> Tensor:
    at = _EXCHANGES[exchange]
    if source is None:
        assert target is not None, "it is sharded so already"
        return at.own(x, target)
    return at.gather(x, source) if target is None else at.turn(x, source, target)


@torch.library.custom_op("millrace::spread", mutates_args=(), schema="(Tensor x, int? source, str exchange) -> Tensor")
def _spread(x: Tensor, source: ShardDim, exchange: str) -> Tensor:
    if source is None:
        return x.clone(memory_format=torch.contiguous_format)
    return _EXCHANGES[exchange].gather(x, source)


@torch.library.custom_op("millrace::total", mutates_args=(), schema="(Tensor x, int? target, str exchange) -> Tensor")
def _total(x: Tensor, target: ShardDim, exchange: str) -> Tensor:
    at = _EXCHANGES[exchange]
    if target is None:
        return at.mesh.sum_over_tp(x.clone(memory_format=torch.contiguous_format))
    return at.scatter(x, target)


@_move.register_fake
def _like_moved(x: Tensor, source: ShardDim, target: ShardDim, exchange: str) -> Tensor:
    """Return an empty tensor of the shape that `x` has after a move."""
    shape, tp = list(x.shape), _EXCHANGES[exchange].mesh.tp
    if source is not None:
        shape[source] *= tp
    if target is not None:
        shape[target] //= tp
    return x.new_empty(shape)


@_spread.register_fake
def _like_spread(x: Tensor, source: ShardDim, exchange: str) -> Tensor:
    return _like_moved(x, source, None, exchange)


@_total.register_fake
def _like_total(x: Tensor, target: ShardDim, exchange: str) -> Tensor:
    return _like_moved(x, None, target, exchange)


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
    source, target, exchange = ctx.arguments
    return torch.ops.millrace.move(gradient, target, source, exchange), None, None, None


@_backward_of(_spread)
def _spread_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.millrace.total(gradient, *ctx.arguments), None, None


@_backward_of(_total)
def _total_back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    target, exchange = ctx.arguments
    return (gradient if target is None else torch.ops.millrace.move(gradient, target, None, exchange)), None, None
