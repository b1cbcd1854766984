"""How the tokens of a tp group come together before a product, and how its terms are summed after one.

Shapes: N tokens, M = N / tp those of this process, D width.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from trainer.model import SequencePart
from trainer.parallel.mesh import Mesh


class TokenExchange(Protocol):
    """Exchanges in parts, so that some tokens are multiplied while others are on their way."""

    def room(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Return where what is gathered next, of the shape of x, is best written; None: anywhere."""
        ...

    def gather(self, x_MD: Tensor) -> tuple[Tensor, Iterator[tuple[slice, Tensor]]]:
        """Begin to gather all tokens; return them, (N, D), and their parts, each when it is there.

        A part is its rows' place in the whole and its values. The whole is there when the last part is.
        """
        ...

    def scatter(
        self, term: Callable[[slice, Tensor], Any], tokens: int, width: int, like: Tensor
    ) -> Callable[[], Tensor]:
        """Begin to sum the processes' terms of (N, D) = (`tokens`, `width`), of the type of `like`.

        `term` computes the rows at a place into the tensor that it is given. Return what waits for this process's rows
        of all terms and returns them, (P, M, D), or their sum, (1, M, D), to be read before the next exchange ends;
        until that is called, something else can be computed.
        """
        ...


class Collectives:
    """By NCCL, in the groups of tokens that `part` names."""

    def __init__(self, mesh: Mesh, part: SequencePart) -> None:
        self._mesh = mesh
        self._part = part

    def room(self, x: Tensor, dtype: torch.dtype) -> Tensor | None:  # noqa: ARG002 (TokenExchange's names)
        """See TokenExchange."""
        return None

    def gather(self, x_MD: Tensor) -> tuple[Tensor, Iterator[tuple[slice, Tensor]]]:
        """See TokenExchange."""
        x_ND = x_MD.new_empty(len(x_MD) * self._mesh.tp, x_MD.shape[1])
        count = self._part.groups(len(x_ND))
        pairs = zip(x_ND.chunk(count), x_MD.chunk(count), strict=True)
        return x_ND, _arriving(x_ND, count, [self._mesh.gather_into(*pair, begin=True) for pair in pairs])

    def scatter(
        self, term: Callable[[slice, Tensor], Any], tokens: int, width: int, like: Tensor
    ) -> Callable[[], Tensor]:
        """See TokenExchange."""
        whole_ND, own_MD = like.new_empty(tokens, width), like.new_empty(tokens // self._mesh.tp, width)
        works: list[Any] = []
        count = self._part.groups(tokens)
        for place, own in zip(_places(tokens, count), own_MD.chunk(count), strict=True):
            term(place, whole_ND[place])
            works.append(self._mesh.scatter_into(own, whole_ND[place], begin=True))

        def finish() -> Tensor:
            for work in works:
                work.wait()
            return own_MD[None]

        return finish


def _places(tokens: int, count: int) -> list[slice]:
    size = tokens // count
    return [slice(start, start + size) for start in range(0, tokens, size)]


def _arriving(x_ND: Tensor, count: int, works: list[Any]) -> Iterator[tuple[slice, Tensor]]:
    for place, work in zip(_places(len(x_ND), count), works, strict=True):
        work.wait()
        yield place, x_ND[place]
