"""Exchanges: each way gives the right values, and the gradients of the same work in one process."""

import itertools
from typing import Any

import pytest

from trainer.config import ParallelConfig

PLACES = (None, 1, -1)


def exchanged(kind: str, source: int | None, target: int | None, groups: int = 1) -> None:
    """In two processes: values and gradients beside those of plain arithmetic on the whole tensors."""
    import torch

    from trainer.parallel.exchange import TOKENS, Exchange
    from trainer.parallel.mesh import Mesh

    mesh = Mesh(ParallelConfig(tp=2), torch.device("cpu"))
    exchange = Exchange(mesh, sequence_parallel=True, least_group=4 if groups == 2 else 0)
    assert exchange.part.groups(8) == groups
    chance = torch.Generator().manual_seed(0)
    # In each process another weight, and for sums another term.
    x, *terms = torch.randn(3, 2, 4, 6, generator=chance)
    weights = torch.randn(2, 2, 4, 6, generator=chance)

    def here(whole: Any, place: int | None) -> Any:
        if place == TOKENS:  # one sample after the other
            parts = [group.chunk(2)[mesh.tp_rank] for group in whole.flatten(0, 1).chunk(groups)]
            return torch.cat(parts).unflatten(0, (len(whole), -1))
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


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [("move", None, 1), ("move", 1, None), ("spread", 1, None), ("total", None, 1)],
)
def test_tokens_in_two_groups_keep_their_values(workers: Any, kind: str, source: Any, target: Any) -> None:
    workers.run(2, exchanged, kind, source, target, 2)


def overlapped() -> None:
    """Notes when exchanges begin and are waited for, and when products are computed."""
    import torch
    from torch.overrides import TorchFunctionMode

    from tests.trainer import triton_stand_in
    from trainer.parallel.exchange import Exchange
    from trainer.parallel.mesh import Mesh

    with pytest.MonkeyPatch.context() as patch:
        kernels = triton_stand_in.imported("trainer.kernels.exchanged", patch)
        said: list[str] = []

        class Work:
            def __init__(self, work: Any) -> None:
                self.work = work

            def wait(self) -> None:
                said.append("wait")
                self.work.wait()

        def noting(name: str, method: Any) -> Any:
            def noted(*given: Any, **options: Any) -> Any:
                said.append(name)
                return Work(method(*given, **options))

            return noted

        class Products(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func in (torch.addmm, torch.mm, torch.Tensor.__matmul__, torch.Tensor.matmul, torch.Tensor.addmm_):
                    said.append("product")
                return func(*args, **(kwargs or {}))

        mesh = Mesh(ParallelConfig(tp=2), torch.device("cpu"))
        for name in ("gather_into", "scatter_into"):
            patch.setattr(mesh, name, noting(name.partition("_")[0], getattr(mesh, name)))
        exchange = Exchange(mesh, sequence_parallel=True, least_group=4)
        first, second = kernels.Columns(exchange), kernels.Rows(exchange)
        own, columns = torch.randn(4, 6), torch.randn(3, 6)
        with Products():
            inner, kept = first.forward(own, columns, torch.randn(3), None, keep=False)
            assert said == ["gather", "gather", "wait", "product", "wait", "product"]
            said.clear()
            _, kept_second = second.forward(inner, columns.T.contiguous(), None, None, keep=False)
            assert said == ["product", "scatter", "product", "scatter", "wait", "wait"]
            said.clear()
            above, _ = second.backward(own, kept_second, None, None)
            assert said[:6] == ["gather", "gather", "wait", "product", "wait", "product"]
            said.clear()
            first.backward(above, kept, None, None)
            assert said == ["product", "scatter", "product", "scatter", "product", "wait", "wait"]


def test_one_group_is_on_its_way_while_another_is_multiplied(workers: Any) -> None:
    workers.run(2, overlapped)


def filled() -> None:
    import torch

    from trainer.halved import halved
    from trainer.parallel.local import fill, values
    from trainer.parallel.mesh import Mesh

    mesh = Mesh(ParallelConfig(tp=2), torch.device("cpu"))
    weight = torch.distributed.tensor.zeros(
        4, 2, device_mesh=mesh.box["tp"], placements=[torch.distributed.tensor.Shard(0)]
    )
    assert not halved(values(weight), torch.bfloat16, keep=True).any()
    fill(weight, torch.ones(4, 2))
    assert halved(values(weight), torch.bfloat16, keep=True).all()


def test_a_filled_shard_counts_the_change(workers: Any) -> None:
    """By that, its copy in half precision is made anew."""
    workers.run(2, filled)
