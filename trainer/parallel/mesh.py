"""The one object that knows which process does what: degrees, places, and sums over processes."""

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trainer.config import ParallelConfig, replicas

AXES = ("pp", "dp_replicate", "dp_shard", "tp")
"""From the slowest links to the fastest: tp stays inside a machine."""


class Mesh:
    """All processes as a box with one edge per kind of parallelism."""

    def __init__(self, parallel: ParallelConfig, device: torch.device) -> None:
        degrees = (parallel.pp, replicas(parallel, dist.get_world_size()), parallel.dp_shard, parallel.tp)
        self.device = device
        self.box: DeviceMesh = init_device_mesh(device.type, degrees, mesh_dim_names=AXES)
        self.rank = dist.get_rank()

    @property
    def data_ranks(self) -> int:
        """Processes that each take another share of the batch."""
        return self.box["dp_replicate"].size()

    @property
    def data_rank(self) -> int:
        """Which share of the batch this process takes."""
        return self.box.get_local_rank("dp_replicate")

    @property
    def is_first(self) -> bool:
        """Whether this process writes what is written once: the curve, the log, the records."""
        return self.rank == 0

    def sum_over_data(self, values: Tensor) -> Tensor:
        """Add up over the data-parallel processes, in place, in the same order each time."""
        if self.data_ranks > 1:
            dist.all_reduce(values, group=self.box.get_group("dp_replicate"))
        return values

    def gather(self, value: Any) -> list[Any]:
        """One small Python object of each process, in order of rank."""
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values

    def barrier(self) -> None:
        """Wait for all processes."""
        cast(Any, dist).barrier()
