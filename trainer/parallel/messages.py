"""Plain values from process to process: JSON in tensors. Nothing that arrives is unpickled, so nothing can be run.

torch's own exchanges of objects (`all_gather_object` and the like) unpickle what they receive. Those that remain are
inside torch, when it plans the saving of a checkpoint: `trainer/weights/index.py` limits them to a list of classes.
"""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def gather(value: Any) -> list[Any]:
    """Return every process's value, of JSON's types, in order of rank; too slow for every step."""
    own = _packed(value)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(own)]))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(own)] = own
    received = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(received, padded)
    return [_unpacked(data[: int(size)]) for data, size in zip(received, sizes, strict=True)]


def broadcast(value: Any) -> Any:
    """Return the first process's value, of JSON's types, in all processes; the value of the others is ignored."""
    data = _packed(None if dist.get_rank() else value)
    size = torch.tensor([len(data)])
    dist.broadcast(size, src=0)
    if dist.get_rank():
        data = torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(data, src=0)
    return _unpacked(data)


def _packed(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _unpacked(data: Tensor) -> Any:
    return json.loads(data.numpy().tobytes())
