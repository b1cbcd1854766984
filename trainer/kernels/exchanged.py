"""The products of a fused block under tensor parallelism, with the exchanges that they need.

Each process has some rows of the first matrix of a pair and some columns of the second one, and between pairs some of
the tokens. So a product either gathers tokens before it or sums terms after it, and its backward pass does the
opposite. Tokens are multiplied in parts: while one part is on its way, another is computed. The gradient of a weight is
computed beside the next exchange of the backward pass. Import this module only where Triton is.

Shapes: N tokens, M = N / tp those of this process, D width, F columns of this process.
"""

import torch
from torch import Tensor

from trainer.halved import halved
from trainer.kernels.products import Later, gradient_of_weight
from trainer.parallel.exchange import Exchange


class Exchanged:
    """What both kinds share: the exchanges, in parts of the tokens."""

    def __init__(self, exchange: Exchange) -> None:
        self._mesh = exchange.mesh
        self._between = exchange.token_exchange
        self._whole = not exchange.by_parts
        """Selective recomputation keeps what a product of all tokens returns."""

    def slots(self, x: Tensor) -> Tensor | None:  # noqa: ARG002 (Products' name)
        """See Products."""
        return None

    def room(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:  # noqa: ARG002
        """See Products."""
        return None


class Columns(Exchanged):
    """The first product of a pair, which gives each process some columns of all tokens: (M, D) -> (N, F)."""

    def room(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        """See Products."""
        return None if self._whole else self._between.room(x, dtype)

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
        if self._whole:
            x_ND = self._mesh.all_gather(x_ND, 0)
            return torch.addmm(bias_F, x_ND, weight_FD.T), (x_ND, weight_FD)
        x_ND, coming = self._between.gather(x_ND)
        out_NF = x_ND.new_empty(len(x_ND), len(weight_FD))
        for place, part in coming:
            torch.addmm(bias_F, part, weight_FD.T, out=out_NF[place])
        return out_NF, (x_ND, weight_FD)

    def backward(
        self,
        above_NF: Tensor,
        kept: tuple[Tensor, ...],
        total_FD: Tensor | None,
        largest: Tensor | None,  # noqa: ARG002
        beside: Later | None = None,
    ) -> tuple[Tensor, Later]:
        """See Products; the gradient of x is terms of (P, M, D)."""
        x_ND, weight_FD = kept

        def term(place: slice, out: Tensor) -> None:
            torch.mm(above_NF[place], weight_FD, out=out)

        finish = self._between.scatter(term, len(x_ND), x_ND.shape[1], above_NF)
        for_weight = _Later(above_NF, x_ND, total_FD)
        (beside or for_weight)()
        return finish(), for_weight


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
        """See Products; the result is terms of (P, M, D)."""
        assert bias_F is None, "it would be summed too"
        weight_FD = halved(weight_FD, x_ND.dtype, keep=keep)
        if self._whole:
            return self._mesh.reduce_scatter(x_ND @ weight_FD.T, 0), (x_ND, weight_FD)

        def term(place: slice, out: Tensor) -> None:
            torch.mm(x_ND[place], weight_FD.T, out=out)

        return self._between.scatter(term, len(x_ND), len(weight_FD), x_ND)(), (x_ND, weight_FD)

    def backward(
        self,
        above_NF: Tensor,
        kept: tuple[Tensor, ...],
        total_FD: Tensor | None,
        largest: Tensor | None,  # noqa: ARG002
        beside: Later | None = None,
    ) -> tuple[Tensor, Later]:
        """See Products; of `above`, this process has M rows."""
        x_ND, weight_FD = kept
        above_NF, coming = self._between.gather(above_NF)
        if beside is not None:
            beside()
        below_ND = torch.empty_like(x_ND)
        for place, part in coming:
            torch.mm(part, weight_FD, out=below_ND[place])
        return below_ND, _Later(above_NF, x_ND, total_FD)


class _Later:
    """The arguments of `gradient_of_weight`, until it is called."""

    def __init__(self, *arguments: *tuple[Tensor, Tensor, Tensor | None]) -> None:
        self._arguments: tuple[Tensor, Tensor, Tensor | None] | None = arguments
        self._found: Tensor | None = None

    def __call__(self) -> Tensor | None:
        if self._arguments is not None:
            self._found, self._arguments = gradient_of_weight(*self._arguments), None
        return self._found
