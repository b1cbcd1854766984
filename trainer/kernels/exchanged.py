"""The products of a fused block under tensor parallelism, with the exchanges that they need.

Each process has some rows of the first matrix of a pair and some columns of the second one, and between pairs some of
the tokens. So a product either gathers tokens before it or sums terms after it, and its backward pass does the
opposite. Tokens are multiplied in groups: while one group is on its way, another is computed. Gradients of weights are
computed beside exchanges too. Import this module only where Triton is.

Shapes: N tokens, M = N / tp those of this process, D width, F columns of this process.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.halved import halved
from trainer.kernels.products import gradient_of_weight
from trainer.parallel.exchange import Exchange


class Exchanged:
    """What both kinds share: the exchanges, in groups of tokens."""

    def __init__(self, exchange: Exchange) -> None:
        self._mesh = exchange.mesh
        self._part = exchange.part

    def slots(self, x: Tensor) -> Tensor | None:  # noqa: ARG002 (Products' name)
        """See Products."""
        return None

    def groups(self, x_ND: Tensor) -> tuple[Tensor, ...]:
        """Return the groups of all tokens."""
        return x_ND.chunk(self._part.groups(len(x_ND)))

    def gather(self, x_MD: Tensor) -> tuple[Tensor, Iterator[Tensor]]:
        """Begin to gather all tokens; return them, (N, D), and the groups they consist of, each when it is there."""
        x_ND = x_MD.new_empty(len(x_MD) * self._mesh.tp, x_MD.shape[1])
        groups = self.groups(x_ND)
        pairs = zip(groups, x_MD.chunk(len(groups)), strict=True)
        return x_ND, arriving(groups, [self._mesh.gather_into(*pair, begin=True) for pair in pairs])

    def scatter(self, terms: Iterable[Tensor], x_MD: Tensor) -> list[Any]:
        """Begin to sum the terms of each group as soon as they are computed; return what to wait for."""
        parts = x_MD.chunk(self._part.groups(len(x_MD) * self._mesh.tp))
        return [self._mesh.scatter_into(part, group, begin=True) for group, part in zip(terms, parts, strict=True)]


def arriving(groups: Sequence[Tensor], works: Sequence[Any]) -> Iterator[Tensor]:
    """Yield each group when its exchange is over."""
    for group, work in zip(groups, works, strict=True):
        work.wait()
        yield group


class Columns(Exchanged):
    """The first product of a pair, which gives each process some columns of all tokens: (M, D) -> (N, F)."""

    def forward(
        self,
        x_ND: Tensor,
        weight_FD: Tensor,
        bias_F: Tensor | None,
        largest: Tensor | None,  # noqa: ARG002 (Products' names)
        *,
        keep: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See Products; of x, this process has M rows."""
        assert bias_F is not None
        weight_FD, bias_F = (halved(each, x_ND.dtype, keep=keep) for each in (weight_FD, bias_F))
        x_ND, coming = self.gather(x_ND)
        if len(self.groups(x_ND)) == 1:  # selective recomputation keeps what such an operation returns
            return torch.addmm(bias_F, next(coming), weight_FD.T), (x_ND, weight_FD)
        out_NF = x_ND.new_empty(len(x_ND), len(weight_FD))
        for group, out in zip(coming, self.groups(out_NF), strict=True):
            torch.addmm(bias_F, group, weight_FD.T, out=out)
        return out_NF, (x_ND, weight_FD)

    def backward(
        self,
        above_NF: Tensor,
        kept: tuple[Tensor, ...],
        total_FD: Tensor | None,
        largest: Tensor | None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        """See Products; the gradient of x has M rows."""
        x_ND, weight_FD = kept
        below_MD = x_ND.new_empty(len(x_ND) // self._mesh.tp, x_ND.shape[1])
        works = self.scatter((group @ weight_FD for group in self.groups(above_NF)), below_MD)
        for_weight = gradient_of_weight(above_NF, x_ND, total_FD)
        for work in works:
            work.wait()
        return below_MD, for_weight


class Rows(Exchanged):
    """The second product of a pair, of which each process has a term: (N, F) -> (M, D)."""

    def forward(
        self,
        x_ND: Tensor,
        weight_FD: Tensor,
        bias_F: Tensor | None,
        largest: Tensor | None,  # noqa: ARG002 (Products' names)
        *,
        keep: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See Products; the result has M rows."""
        assert bias_F is None, "it would be summed too"
        weight_FD = halved(weight_FD, x_ND.dtype, keep=keep)
        out_MF = x_ND.new_empty(len(x_ND) // self._mesh.tp, len(weight_FD))
        for work in self.scatter((group @ weight_FD.T for group in self.groups(x_ND)), out_MF):
            work.wait()
        return out_MF, (x_ND, weight_FD)

    def backward(
        self,
        above_NF: Tensor,
        kept: tuple[Tensor, ...],
        total_FD: Tensor | None,
        largest: Tensor | None,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor | None]:
        """See Products; of `above`, this process has M rows."""
        x_ND, weight_FD = kept
        above_NF, coming = self.gather(above_NF)
        below_ND = torch.empty_like(x_ND)
        for group, out in zip(coming, self.groups(below_ND), strict=True):
            torch.mm(group, weight_FD, out=out)
        return below_ND, gradient_of_weight(above_NF, x_ND, total_FD)
