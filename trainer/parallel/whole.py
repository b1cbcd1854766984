"""Whole matrices of a sharded model, each put together in one process, and the results taken apart again.

For what cannot be computed on parts. Equal matrices of several blocks go together. Along an axis that splits them
(dp_shard with ZeRO, tp) processes exchange their parts in one all-to-all, after which each has some of the matrices
whole, and in another one afterwards. Along an axis whose processes hold the same (replicas, or a matrix that tp does
not split) each takes some, and gathers the others' results. So each process computes its share of the matrices, a
process of S along one axis of sharding sends and receives 1/S of all values twice, and one of R replicas (R - 1)/R of
them once. With one process nothing is copied.
"""

import math
from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainer.parallel.mesh import DATA_AXES, Mesh


class WholeMatrices:
    """Where the parts of a matrix lie on the mesh, and how processes put several such matrices together."""

    def __init__(self, weight: Tensor, mesh: Mesh) -> None:
        """`weight`: one of the matrices, as this process has it."""
        self._mesh = mesh
        dims = _split_dims(weight)
        self._copies = [axis for axis in (*DATA_AXES, "tp") if axis not in dims and mesh.place(axis)[1] > 1]
        self._splits: list[tuple[str, int, int]] = []
        """Axis, dimension of the matrix, and what the processes along this axis have of it together, the axis that
        split last first: tensor parallelism splits before ZeRO does."""
        sizes = list(weight.shape)
        for axis in ("tp", *DATA_AXES):
            if axis in dims:
                self._splits.insert(0, (axis, dims[axis], sizes[dims[axis]]))
                sizes[dims[axis]] = _share(sizes[dims[axis]], *mesh.place(axis))

    @property
    def splits(self) -> int:
        """Return the number of processes over which a matrix is split."""
        return math.prod(self._mesh.place(axis)[1] for axis, _, _ in self._splits)

    @property
    def processes(self) -> int:
        """Return the number of processes that share the work on a matrix's kind."""
        return self.splits * math.prod(self._mesh.place(axis)[1] for axis in self._copies)

    def collect(self, parts: Tensor) -> Tensor:
        """Return this process's share of the matrices, whole, of which it gives its parts (matrices, rows, columns).

        Where their number does not divide, some that are returned are 0.
        """
        for axis in self._copies:
            number, size = self._mesh.place(axis)
            share = -(-len(parts) // size)
            parts = _padded(parts[number * share : (number + 1) * share], 0, share)
        for axis, dim, together in self._splits:
            _, size = self._mesh.place(axis)
            parts = _padded(_padded(parts, 0, _multiple(len(parts), size)), dim + 1, -(-together // size))
            parts = self._mesh.all_to_all(parts, source=dim + 1, target=0, axis=axis).narrow(dim + 1, 0, together)
        return parts

    def spread(self, wholes: Tensor, count: int) -> Tensor:
        """Return this process's parts of what all processes computed of `count` matrices: `collect` backwards."""
        counts = list(self._counts(count))
        for axis, dim, together in reversed(self._splits):
            place = self._mesh.place(axis)
            wholes = _padded(wholes, dim + 1, _multiple(together, place[1]))
            parts = self._mesh.all_to_all(wholes, source=0, target=dim + 1, axis=axis)
            wholes = parts.narrow(dim + 1, 0, _share(together, *place))[: counts.pop()]
        for axis in reversed(self._copies):
            wholes = self._mesh.all_gather(wholes, 0, axis=axis)[: counts.pop()]
        return wholes

    def _counts(self, count: int) -> Iterator[int]:
        """Yield how many matrices there are before each exchange of `collect`."""
        for axis in (*self._copies, *(axis for axis, _, _ in self._splits)):
            yield count
            count = -(-count // self._mesh.place(axis)[1])


def _split_dims(weight: Tensor) -> dict[str, int]:
    """Return axis -> the dimension that it splits."""
    if not isinstance(weight, DTensor):
        return {}
    names = weight.device_mesh.mesh_dim_names or ()
    kinds = zip(names, weight.placements, weight.device_mesh.shape, strict=True)
    return {name: getattr(kind, "dim") for name, kind, size in kinds if size > 1 and not kind.is_replicate()}  # noqa: B009 (kinds of shards share no class)


def _share(whole: int, number: int, size: int) -> int:
    """Return how many of `whole` rows process `number` of `size` has, which is how torch splits them."""
    most = -(-whole // size)
    return max(0, min(most, whole - number * most))


def _multiple(count: int, of: int) -> int:
    return -(-count // of) * of


def _padded(x: Tensor, dim: int, size: int) -> Tensor:
    """Return `x` with zeros at the end of a dimension, up to this size."""
    missing = size - x.shape[dim]
    return F.pad(x, (*(0, 0) * (x.ndim - 1 - dim), 0, missing)) if missing else x
