"""The device mesh: the degrees of parallelism, this process's coordinates, and collectives between processes.

It owns the process groups of training and destroys them: while it exists, a gloo group takes three threads and a socket
to each of its processes, an NCCL group memory on each GPU.
"""

import datetime
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import debug

from trainer.config import ParallelConfig
from trainer.parallel import messages
from trainer.plan import replicas

T = TypeVar("T")

AXES = ("pp", "dp_replicate", "dp_shard", "tp")
"""From the slowest links to the fastest: the processes of a tp group are neighbours."""
DATA_AXES = ("dp_replicate", "dp_shard")

# Renamed in torch 2.13, where the old names warn.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # pyright: ignore[reportDeprecated]
_set_timeout: Any = dist.distributed_c10d._set_pg_timeout  # pyright: ignore
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # pyright: ignore[reportDeprecated]


class Mesh:
    """All processes as a box with one axis per kind of parallelism.

    As a context manager it destroys its groups at the end of the block. After an error it leaves them until the process
    ends: other processes may be waiting in a group, and would fail before this one has reported the error.
    """

    def __init__(self, parallel: ParallelConfig, device: torch.device) -> None:
        degrees = (parallel.pp, replicas(parallel, dist.get_world_size()), parallel.dp_shard, parallel.tp)
        self.device = device
        self.box: DeviceMesh = init_device_mesh(device.type, degrees, mesh_dim_names=AXES)
        self._groups: dict[str, Any] = {axis: self.box.get_group(axis) for axis in AXES}
        """Looked up once: torch makes a mesh of its own for each look at an axis."""
        self.timeout = datetime.timedelta(minutes=parallel.timeout_minutes)
        for group in self._groups.values():  # torch gives a mesh's groups its default
            _set_timeout(self.timeout, group)
        self._sizes: dict[str, int] = dict(zip(AXES, degrees, strict=True))
        self.rank = dist.get_rank()
        self.pp, self.dp_replicate, self.dp_shard, self.tp = degrees
        self.pp_rank, replicate, shard, self.tp_rank = self.box.get_coordinate() or (0, 0, 0, 0)
        self._coordinates = {"dp_replicate": replicate, "dp_shard": shard, "tp": self.tp_rank}
        self.data_ranks = self.dp_replicate * self.dp_shard
        """Processes (of one stage and one tp rank) that each take a different share of the batch."""
        self.data_rank = replicate * self.dp_shard + shard
        """Which share of the batch this process takes."""
        self.shares_memory = True
        """False once GPUs were found that cannot map each other's memory, in all processes."""

    def __enter__(self) -> "Mesh":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        if kind is None:
            self.close()

    def close(self) -> None:
        """Destroy the groups of this mesh once all processes have called this; the default group stays."""
        self.barrier()  # a process may still be sending data that another one has not read
        for group in self._groups.values():
            # An axis that spans all processes uses the default group, which is not the mesh's.
            if group != dist.group.WORLD:
                dist.destroy_process_group(group)
        self._groups.clear()
        forget(self.box)

    def swap_along_pp(self, x: Tensor, other: int) -> Tensor:
        """Send a tensor to the pp rank `other` of this pipeline, and return the one that it sends."""
        received = torch.empty_like(x)
        work = [
            dist.P2POp(dist.isend, x, group=self._groups["pp"], group_peer=other),
            dist.P2POp(dist.irecv, received, group=self._groups["pp"], group_peer=other),
        ]
        for each in dist.batch_isend_irecv(work):
            each.wait()
        return received

    @property
    def tp_group_name(self) -> str:
        """The name of the group that shares each layer's matrices, unique among this process's groups."""
        return self._groups["tp"].group_name

    def on_one_machine(self, axis: str) -> bool:
        """Whether each group of processes along an axis is on one machine; all processes call this at once."""
        hosts = self.gather(socket.gethostname())
        groups = self.box.mesh.movedim(AXES.index(axis), 0).flatten(1).T
        return all(len({hosts[rank] for rank in group}) == 1 for group in groups.tolist())

    @property
    def is_first(self) -> bool:
        """Whether this process writes what only one process writes: the curve, the log, the records."""
        return self.rank == 0

    def sum_over(self, values: Tensor, *axes: str) -> Tensor:
        """Sum over the processes along these axes, in place and always in the same order."""
        for axis in axes:
            if self._sizes[axis] > 1:
                dist.all_reduce(values, group=self._groups[axis])
        return values

    def sum_over_all(self, values: Tensor) -> Tensor:
        """Sum over all processes, in place and always in the same order."""
        if dist.get_world_size() > 1:
            dist.all_reduce(values)
        return values

    def counts(self, sharded: Sequence[str]) -> bool:
        """Whether this process is the first of those of its stage that have the same part of a weight.

        `sharded`: the axes along which processes have different parts.
        """
        return all(number == 0 for axis, number in self._coordinates.items() if axis not in sharded)

    def sum_over_data(self, values: Tensor) -> Tensor:
        """Sum over the data-parallel processes, in place."""
        return self.sum_over(values, *DATA_AXES)

    def begin_sum_over_replicas(self, values: Tensor) -> Any:
        """Begin to sum over the replicas, in place; return what to wait for."""
        return dist.all_reduce(values, group=self._groups["dp_replicate"], async_op=True)

    def sum_over_tp(self, values: Tensor) -> Tensor:
        """Sum over the processes that share each layer's matrices, in place."""
        return self.sum_over(values, "tp")

    def largest_over_tp(self, values: Tensor) -> Tensor:
        """Take the maximum over the processes that share each layer's matrices, in place."""
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self._groups["tp"])
        return values

    def copy_over_tp(self, values: Tensor) -> Tensor:
        """Take the values of the first process of those that share each layer's matrices, in place."""
        dist.broadcast(values, group=self._groups["tp"], group_src=0)
        return values

    def differs(self, largest: Tensor, smallest: Tensor, *axes: str) -> Tensor:
        """Return where the largest and the smallest values of all processes along these axes differ, in place."""
        for axis in axes:
            if self._sizes[axis] > 1:
                dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._groups[axis])
                dist.all_reduce(smallest, dist.ReduceOp.MIN, group=self._groups[axis])
        return largest != smallest

    def place(self, axis: str) -> tuple[int, int]:
        """Return this process's coordinate along an axis of DATA_AXES or tp, and the number of processes along it."""
        return self._coordinates[axis], self._sizes[axis]

    def all_gather(self, x: Tensor, dim: int, *, axis: str = "tp") -> Tensor:
        """Gather the shards of the processes along an axis, along `dim`: the whole tensor in each."""
        size = self._sizes[axis]
        shards = x.new_empty(size * len(x), *x.shape[1:])
        self.gather_into(shards, x, axis=axis)
        return shards if dim == 0 else torch.cat(shards.chunk(size), dim)

    def all_to_all(self, x: Tensor, source: int, target: int, *, axis: str = "tp") -> Tensor:
        """Exchange the shards along `source` of the processes along an axis for shards along `target`."""
        size = self._sizes[axis]
        outgoing = torch.cat(x.chunk(size, target))
        incoming = torch.empty_like(outgoing)
        dist.all_to_all_single(incoming, outgoing, group=self._groups[axis])
        return torch.cat(incoming.chunk(size), source)

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """Sum the tp processes' terms; each gets its shard of the sum along `dim`."""
        terms = x if dim == 0 else torch.cat(x.chunk(self.tp, dim))
        shard = x.new_empty(len(terms) // self.tp, *terms.shape[1:])
        self.scatter_into(shard, terms)
        return shard

    def gather_into(self, whole: Tensor, shard: Tensor, *, axis: str = "tp", begin: bool = False) -> Any:
        """Gather the shards of the processes along an axis, along the first dimension.

        `begin`: return what to wait for, so that something else is computed meanwhile.
        """
        return _all_gather(whole, shard.contiguous(), group=self._groups[axis], async_op=begin)

    def scatter_into(self, shard: Tensor, terms: Tensor, *, begin: bool = False) -> Any:
        """Sum the tp processes' terms; each gets its part of the first dimension. `begin`: as above."""
        return _reduce_scatter(shard, terms.contiguous(), group=self._groups["tp"], async_op=begin)

    def gather(self, value: Any) -> list[Any]:
        """Return every process's value, of JSON's types, in order of rank; too slow for every step."""
        return messages.gather(value)

    def from_first(self, look: Callable[[], T]) -> T:
        """Call `look` in the first process and return its result, of JSON's types, in all of them.

        For reads from a shared folder that decide what all processes do next: over a network, processes can see
        different contents for a while.
        """
        return messages.broadcast(look() if self.is_first else None)

    def barrier(self) -> None:
        """Wait for all processes."""
        cast(Any, dist).barrier()


def forget(box: DeviceMesh) -> None:
    """Make torch forget a mesh whose groups are destroyed.

    DTensor caches how operations are sharded, and with that the mesh: its groups' threads would live on, and an equal
    mesh created later would get tensors on this one.
    """
    debug._clear_sharding_prop_cache()  # pyright: ignore[reportPrivateUsage]
    box._pg_registry.clear()  # pyright: ignore[reportPrivateUsage]
