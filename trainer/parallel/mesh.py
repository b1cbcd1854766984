"""The one object that knows which process does what: degrees, places, and exchanges between processes."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config import ParallelConfig, replicas

T = TypeVar("T")

AXES = ("pp", "dp_replicate", "dp_shard", "tp")
"""From the slowest links to the fastest: tp stays inside a machine."""
DATA_AXES = ("dp_replicate", "dp_shard")

# Renamed in torch 2.13, where the old names warn.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # pyright: ignore[reportDeprecated]
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # pyright: ignore[reportDeprecated]


class Mesh:
    """All processes as a box with one edge per kind of parallelism."""

    def __init__(self, parallel: ParallelConfig, device: torch.device) -> None:
        degrees = (parallel.pp, replicas(parallel, dist.get_world_size()), parallel.dp_shard, parallel.tp)
        self.device = device
        self.box: DeviceMesh = init_device_mesh(device.type, degrees, mesh_dim_names=AXES)
        self.rank = dist.get_rank()
        self.pp, self.dp_replicate, self.dp_shard, self.tp = degrees
        self.pp_rank, replicate, shard, self.tp_rank = self.box.get_coordinate() or (0, 0, 0, 0)
        self.data_ranks = self.dp_replicate * self.dp_shard
        """Processes (of one stage and one tp place) that each take another share of the batch."""
        self.data_rank = replicate * self.dp_shard + shard
        """Which share of the batch this process takes."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once: the curve, the log, the records."""
        return self.rank == 0

    def sum_over(self, values: Tensor, *axes: str) -> Tensor:
        """Add up over the processes along these axes, in place, in the same order each time."""
        for axis in axes:
            if self.box[axis].size() > 1:
                dist.all_reduce(values, group=self.box.get_group(axis))
        return values

    def sum_over_data(self, values: Tensor) -> Tensor:
        """Add up over the data-parallel processes, in place."""
        return self.sum_over(values, *DATA_AXES)

    def sum_over_tp(self, values: Tensor) -> Tensor:
        """Add up over the processes that share each layer's matrices, in place."""
        return self.sum_over(values, "tp")

    def largest_over_tp(self, values: Tensor) -> Tensor:
        """The largest of these processes' values, in place."""
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self.box.get_group("tp"))
        return values

    def gather_parts(self, x: Tensor, dim: int) -> Tensor:
        """A tp-th along `dim` in each tp process -> all of it in each."""
        parts = x.new_empty(self.tp * len(x), *x.shape[1:])
        _all_gather(parts, x.contiguous(), group=self.box.get_group("tp"))
        return torch.cat(parts.chunk(self.tp), dim)

    def swap_parts(self, x: Tensor, source: int, target: int) -> Tensor:
        """A tp-th along `source` in each tp process -> a tp-th along `target` in each."""
        pieces = torch.cat(x.chunk(self.tp, target))
        theirs = torch.empty_like(pieces)
        dist.all_to_all_single(theirs, pieces, group=self.box.get_group("tp"))
        return torch.cat(theirs.chunk(self.tp), source)

    def scatter_sums(self, x: Tensor, dim: int) -> Tensor:
        """A term of a sum in each tp process -> a tp-th of the sum along `dim` in each."""
        terms = torch.cat(x.chunk(self.tp, dim))
        mine = terms.new_empty(len(terms) // self.tp, *terms.shape[1:])
        _reduce_scatter(mine, terms, group=self.box.get_group("tp"))
        return mine

    def gather(self, value: T) -> list[T]:
        """Every process's value, any small Python object, in order of rank; for what happens rarely."""
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value)
        return found

    def from_first(self, look: Callable[[], T]) -> T:
        """What `look` finds in the first process, any small Python object, in all of them.

        For what is read from a shared folder and decides what all do next: over a network, processes can see it
        differently for a while.
        """
        found: list[Any] = [look() if self.is_first else None]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def barrier(self) -> None:
        """Wait for all processes."""
        cast(Any, dist).barrier()
