"""Values go from process to process as they are, and nothing that arrives is unpickled without a list."""

import math
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trainer.parallel import messages
from trainer.weights.index import restrict_torch


def exchange() -> tuple[list[Any], Any]:
    rank = dist.get_rank()
    value = {"rank": rank, "text": "é\n" * 1000 * rank, "numbers": [0.1, 1e300, math.inf, None, True]}
    return messages.gather(value), messages.broadcast(["first", 1 / 3] if rank == 0 else object)


def test_values_of_any_length_arrive_in_order(workers: Any) -> None:
    for gathered, first in workers.run(3, exchange):
        assert [each["rank"] for each in gathered] == [0, 1, 2]
        assert [len(each["text"]) for each in gathered] == [0, 2000, 4000]
        assert all(each["numbers"] == [0.1, 1e300, math.inf, None, True] for each in gathered)
        assert first == ["first", 1 / 3]


class Exploit:
    """Makes a folder wherever it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


def receive(path: Path, kind: str) -> str:
    """Process 1 sends what process 0 would have to run."""
    import pickle

    from torch.distributed import distributed_c10d

    before = distributed_c10d._pickler, distributed_c10d._unpickler
    if kind == "restricted":
        restrict_torch()
    else:
        distributed_c10d._pickler, distributed_c10d._unpickler = pickle.Pickler, pickle.Unpickler
    try:
        received: Any = [None, None]
        dist.gather_object(Exploit(path) if dist.get_rank() else None, received if dist.get_rank() == 0 else None)
        return "received"
    except pickle.UnpicklingError as error:
        return str(error)
    finally:
        distributed_c10d._pickler, distributed_c10d._unpickler = before


def test_torchs_own_exchanges_build_only_what_is_on_a_list(workers: Any, tmp_path: Path) -> None:
    first, _ = workers.run(2, receive, tmp_path / "made", "restricted")
    assert first == "it asks for posix.mkdir"
    assert not (tmp_path / "made").exists()
    workers.run(2, receive, tmp_path / "made", "as it was")
    assert (tmp_path / "made").exists(), "the exploit itself must work, or this test shows nothing"


def errors() -> list[Any]:
    """What processes tell each other when one cannot write, and every kind of plan."""
    restrict_torch()
    received: Any = [None] * dist.get_world_size()
    dist.all_gather_object(received, OSError(28, "No space left on device", "file"))
    return [str(each) for each in received]


def test_errors_still_arrive(workers: Any) -> None:
    assert workers.run(2, errors) == [["[Errno 28] No space left on device: 'file'"] * 2] * 2
