"""As much of CUDA graphs as the project uses, on CPUs: a capture notes each operation, a replay repeats it.

Like a GPU's graph, a replay reads and writes the memory that the captured operations had, and takes every number that
was no tensor from the capture. Unlike there, what is captured is computed too.
"""

from collections.abc import Generator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class Graph(TorchDispatchMode):
    """Operations, in order, with the tensors that they read and returned."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = function(*arguments, **(options or {}))
        held = tree_map_only(Tensor, torch.Tensor.detach, (arguments, options or {}, result))
        self.operations.append((function, *held))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        """Repeat all operations, into the memory of their first results."""
        self.replays += 1
        for function, arguments, options, result in self.operations:
            again = function(*arguments, **options)
            for new, old in zip(tree_leaves(again), tree_leaves(result), strict=True):
                if isinstance(new, Tensor) and new.data_ptr() != old.data_ptr():
                    old.copy_(new)


class Stream:
    """Nothing waits for anything on a CPU."""

    def wait_stream(self, other: "Stream") -> None:
        """Do nothing."""


def install(patch: pytest.MonkeyPatch, *, failing: str = "") -> list[Graph]:
    """Put this in the place of torch's; return the list of all graphs. `failing`: what each capture ends with."""
    made: list[Graph] = []

    def graph() -> Graph:
        made.append(Graph())
        return made[-1]

    @contextmanager
    def capture(graph: Graph, *, pool: Any, stream: Any, capture_error_mode: str) -> Generator[None]:
        assert (pool, capture_error_mode) == ("the pool", "thread_local")
        assert isinstance(stream, Stream)
        with graph:
            yield
        if failing:
            raise RuntimeError(failing)

    @contextmanager
    def current(_: Stream) -> Generator[None]:
        yield

    for name, value in {
        "CUDAGraph": graph,
        "graph": capture,
        "Stream": Stream,
        "stream": current,
        "current_stream": Stream,
        "graph_pool_handle": lambda: "the pool",
    }.items():
        patch.setattr(torch.cuda, name, value)
    return made


def on_gpu(**changes: Any) -> Any:
    """A mesh of one process that says that it is on a GPU."""
    return SimpleNamespace(**{"device": torch.device("cuda"), "pp": 1, "tp": 1, **changes})
