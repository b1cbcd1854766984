"""The mesh: where each process stands, and what processes exchange."""

from typing import Any

import pytest

from pipelines.errors import ConfigError
from trainer.config import ParallelConfig


def places(parallel: ParallelConfig) -> dict[str, Any]:
    import torch

    from trainer.parallel.mesh import Mesh

    mesh = Mesh(parallel, torch.device("cpu"))
    sums = {axis: int(mesh.sum_over(torch.tensor([10**mesh.rank]), axis)) for axis in ("pp", "tp")}
    sums["data"] = int(mesh.sum_over_data(torch.tensor([10**mesh.rank])))
    return {
        "place": (mesh.pp_rank, mesh.data_rank, mesh.tp_rank),
        "degrees": (mesh.pp, mesh.data_ranks, mesh.tp),
        "first": mesh.is_first,
        **sums,
    }


def test_tp_processes_are_neighbours_and_pipeline_stages_far_apart(workers: Any) -> None:
    found = workers.run(8, places, ParallelConfig(pp=2, dp_replicate=2, tp=2))
    assert {each["degrees"] for each in found} == {(2, 2, 2)}
    assert [each["place"] for each in found] == [
        *((0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)),
        *((1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)),
    ]
    assert [each["first"] for each in found] == [True, *[False] * 7]
    assert [each["tp"] for each in found] == [number for number in (11, 1100, 110000, 11000000) for _ in range(2)]
    assert [each["pp"] for each in found] == [10001, 100010, 1000100, 10001000] * 2
    assert [each["data"] for each in found] == [101, 1010, 101, 1010, 1010000, 10100000, 1010000, 10100000]


def test_replicas_and_shards_are_both_data_parallel(workers: Any) -> None:
    found = workers.run(4, places, ParallelConfig(dp_shard=2, zero=1))
    assert [each["place"] for each in found] == [(0, rank, 0) for rank in range(4)]
    assert {each["data"] for each in found} == {1111}


def test_a_layout_that_does_not_fill_the_processes_is_refused(workers: Any) -> None:
    assert "does not make 2 processes" in workers.run(2, refusal, ParallelConfig(tp=4))[1]


def refusal(parallel: ParallelConfig) -> str:
    with pytest.raises(ConfigError) as error:
        places(parallel)
    return str(error.value)


def exchanged() -> None:
    """Positions come together in order, and what is scattered is the sum of all terms."""
    import torch

    from trainer.parallel.mesh import Mesh

    mesh = Mesh(ParallelConfig(tp=2), torch.device("cpu"))
    whole = torch.arange(2 * 6 * 3.0).view(2, 6, 3)
    mine = whole.chunk(2, 1)[mesh.tp_rank]
    assert torch.equal(mesh.all_gather(mine, 1), whole)
    term = whole * (1 + mesh.tp_rank)
    assert torch.equal(mesh.reduce_scatter(term, 1), 3 * mine)
    assert mesh.largest_over_tp(torch.tensor([mesh.tp_rank, -mesh.tp_rank])).tolist() == [1, 0]


def test_positions_are_gathered_in_order_and_sums_scattered(workers: Any) -> None:
    workers.run(2, exchanged)


def looked() -> tuple[Any, int]:
    import torch

    from trainer.parallel.mesh import Mesh

    looks: list[int] = []

    def look() -> dict[str, int]:
        looks.append(mesh.rank)
        return {"seen by": mesh.rank}

    mesh = Mesh(ParallelConfig(tp=2), torch.device("cpu"))
    return mesh.from_first(look), len(looks)


def test_what_the_first_process_sees_is_what_all_see(workers: Any) -> None:
    assert workers.run(4, looked) == [({"seen by": 0}, 1), *[({"seen by": 0}, 0)] * 3]


def swapped(timeout: float) -> tuple[int, list[float]]:
    """What comes from the other end of this process's pipeline, and how long its groups wait, in seconds."""
    import torch

    from trainer.parallel.mesh import Mesh

    mesh = Mesh(ParallelConfig(pp=2, dp_replicate=2, timeout_minutes=timeout), torch.device("cpu"))
    received = mesh.swap_along_pp(torch.tensor([mesh.rank]), 1 - mesh.pp_rank)
    cpu = torch.device("cpu")
    waits = [group._get_backend(cpu).options._timeout for group in mesh._groups.values() if group.size() > 1]
    return int(received), [wait.total_seconds() for wait in waits]


def test_the_ends_of_a_pipeline_swap_and_groups_wait_as_long_as_asked(workers: Any) -> None:
    assert workers.run(4, swapped, 2.5) == [(other, [150.0, 150.0]) for other in (2, 3, 0, 1)]
