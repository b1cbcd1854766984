"""The products of a fused block under tensor parallelism, with the exchanges that they need.

Each process has some rows of the first matrix of a pair and some columns of the second one, and between pairs some of
the tokens. So a product either gathers tokens before it or sums terms after it, and its backward pass does the
opposite. Tokens are multiplied in groups: while one group is on its way, another is computed. Gradients of weights are
computed beside exchanges too. Import this module only where Triton is.

Shapes: N tokens, M = N / tp those of this process, D width, F columns of this process.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from trainer.halved import halved
from trainer.kernels.products import Half, gradient_of_weight
from trainer.parallel.exchange import Exchange


class Exchanged(Half):
    """What both kinds share: the exchanges, in groups of tokens."""

    def __init__(self, exchange: Exchange) -> None:
        self._mesh = exchange.mesh
        self._part = exchange.part

    def gather(self, x_MD: Tensor) -> tuple[Tensor, Iterator[Tensor]]:
        """Begin to gather all tokens; return them, (N, D), and the groups of which they consist, each when it came."""
        x_ND = x_MD.new_empty(len(x_MD) * self._mesh.tp, x_MD.shape[1])
        count = self._part.groups(len(x_ND))
        groups = list(zip(x_MD.chunk(count), x_ND.chunk(count), strict=True))
        works = [self._mesh.start_gather(*group) for group in groups]
        return x_ND, (came for (_, came), work in zip(groups, works, strict=True) if work.wait())

    def scatter(self, terms: Iterable[Tensor], sum_MD: Tensor) -> list[Any]:
        """Begin to sum the terms of each group as soon as they are computed; return what to wait for."""
        parts = sum_MD.chunk(self._part.groups(len(sum_MD) * self._mesh.tp))
        return [self._mesh.start_scatter(*group) for group in zip(terms, parts, strict=True)]

    def groups(self, x_ND: Tensor) -> tuple[Tensor, ...]:
        """Return the groups of all tokens."""
        return x_ND.chunk(self._part.groups(len(x_ND)))


class Columns(Exchanged):
    """The first product of a pair, which gives each process some columns: (M, D) -> (N, F)."""

    def forward(
        self,
        x_ND: Tensor,
        weight_FD: Tensor,
        bias_F: Tensor | None,
        largest: Tensor | None,  # noqa: ARG002 (Products' names)
        *,
        keep: bool,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """See Products; here `x_ND` has M rows."""
        assert bias_F is not None
        weight_FD, bias_F = (halved(each, x_ND.dtype, keep=keep) for each in (weight_FD, bias_F))
        x_ND, coming = self.gather(x_ND)
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
        """See Products; here `above_NF` has M rows."""
        x_ND, weight_FD = kept
        above_NF, coming = self.gather(above_NF)
        below_ND = torch.empty_like(x_ND)
        for group, out in zip(coming, self.groups(below_ND), strict=True):
            torch.mm(group, weight_FD, out=out)
        return below_ND, gradient_of_weight(above_NF, x_ND, total_FD)
