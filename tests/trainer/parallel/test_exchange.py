"""Exchanges: each way gives the right values, and the gradients of the same work in one process."""

import itertools
from typing import Any

import pytest

from trainer.config import ParallelConfig

PLACES = (None, 1, -1)


def exchanged(kind: str, source: int | None, target: int | None) -> None:
    """In two processes: values and gradients beside those of plain arithmetic on the whole tensors."""
    import torch

    from trainer.parallel.exchange import TOKENS, Exchange
    from trainer.parallel.mesh import Mesh

    mesh = Mesh(ParallelConfig(tp=2), torch.device("cpu"))
    exchange = Exchange(mesh, sequence_parallel=True)
    chance = torch.Generator().manual_seed(0)
    # In each process another weight, and for sums another term.
    x, *terms = torch.randn(3, 2, 4, 6, generator=chance)
    weights = torch.randn(2, 2, 4, 6, generator=chance)

    def here(whole: Any, place: int | None) -> Any:
        if place == TOKENS:  # one sample after the other
            return whole.flatten(0, 1).chunk(2)[mesh.tp_rank].unflatten(0, (len(whole), -1))
        return whole if place is None else whole.chunk(2, place)[mesh.tp_rank]

    if kind == "move":
        given, expected, gradient = here(x, source), here(x, target), here(weights[0], source)
    elif kind == "spread":
        given, expected, gradient = here(x, source), x, here(weights.sum(0), source)
    else:
        given, expected, gradient = terms[mesh.tp_rank], here(terms[0] + terms[1], target), weights[0]
    leaf = given.clone().requires_grad_()
    found = {
        "move": lambda: exchange.move(leaf, source, target),
        "spread": lambda: exchange.spread(leaf, source),
        "total": lambda: exchange.total(leaf, target),
    }[kind]()
    after = weights[mesh.tp_rank] if kind == "spread" else here(weights[0], target)
    (found * after).sum().backward()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(leaf.grad, gradient)


def checked_operators() -> None:
    """Torch's own checks of an operator: fakes like the real results, nothing shared, backward passes that trace."""
    import torch

    from trainer.parallel.exchange import Exchange
    from trainer.parallel.mesh import Mesh

    mesh = Mesh(ParallelConfig(tp=2), torch.device("cpu"))
    kept = Exchange(mesh, sequence_parallel=True)
    operators, name = torch.ops.millrace, kept.name
    x = torch.randn(6, 4, 2).transpose(0, 2).requires_grad_()  # in another order of its dimensions
    for source, target in itertools.permutations(PLACES, 2):
        torch.library.opcheck(operators.move.default, (x, source, target, name))
    for place in PLACES:
        torch.library.opcheck(operators.spread.default, (x, place, name))
        torch.library.opcheck(operators.total.default, (x, place, name))
    assert kept.mesh is mesh


@pytest.mark.nightly
def test_the_operators_keep_what_they_promise_the_compiler(workers: Any) -> None:
    workers.run(2, checked_operators)


@pytest.mark.parametrize(("source", "target"), itertools.product(PLACES, repeat=2))
def test_what_moves_keeps_its_values_and_its_gradients_go_back(workers: Any, source: Any, target: Any) -> None:
    workers.run(2, exchanged, "move", source, target)


@pytest.mark.parametrize("place", PLACES)
def test_what_is_spread_gets_the_sum_of_all_gradients(workers: Any, place: Any) -> None:
    workers.run(2, exchanged, "spread", place, None)


@pytest.mark.parametrize("place", PLACES)
def test_terms_become_their_sum(workers: Any, place: Any) -> None:
    workers.run(2, exchanged, "total", None, place)
