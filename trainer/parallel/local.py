"""This process's local part of a tensor: a shard of a DTensor, all of any other tensor."""

import math

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """Return this process's part, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def values(tensor: Tensor) -> Tensor:
    """Return this process's part, in the same memory and outside of autograd.

    `to_local` and `detach` of a DTensor take the host some 20 microseconds each, for every weight in every step.
    """
    if isinstance(tensor, DTensor):
        return tensor._local_tensor  # pyright: ignore[reportPrivateUsage]
    return tensor.detach() if tensor.requires_grad else tensor


def like(tensor: Tensor, part: Tensor) -> Tensor:
    """Return a tensor with the local part `part`, sharded like `tensor`."""
    if not isinstance(tensor, DTensor):
        return part
    # Not from_local: it would copy a part in the host's memory to the mesh's device.
    return DTensor(part, tensor._spec, requires_grad=False)  # pyright: ignore


def sharded_axes(tensor: Tensor) -> tuple[str, ...]:
    """Return the axes of the mesh along which processes have different parts."""
    if not isinstance(tensor, DTensor):
        return ()
    names = tensor.device_mesh.mesh_dim_names or ()
    return tuple(name for name, kind in zip(names, tensor.placements, strict=True) if not kind.is_replicate())


@torch.no_grad()
def fill(tensor: Tensor, whole: Tensor) -> None:
    """Copy this process's part of `whole`; rows that `whole` lacks, padding, become 0."""
    if not isinstance(tensor, DTensor):
        tensor[: len(whole)] = whole
        tensor[len(whole) :] = 0
        return
    part = values(tensor)  # not of `detach`, whose changes torch does not count as the weight's
    for chunk in tensor.__create_chunk_list__():
        if not math.prod(chunk.sizes):
            continue
        first = chunk.offsets[0]
        rows = whole[first : first + chunk.sizes[0]]
        for dim, (start, size) in list(enumerate(zip(chunk.offsets, chunk.sizes, strict=True)))[1:]:
            rows = rows.narrow(dim, start, size)
        part[: len(rows)] = rows
        part[len(rows) :] = 0
