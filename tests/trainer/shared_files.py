"""Memory that several processes write, on CPUs: files that each of them maps. GPUs have torch's symmetric memory."""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist

from trainer.config import ParallelConfig
from trainer.parallel.mesh import Mesh
from trainer.parallel.peer_copies import PeerCopies
from trainer.parallel.shared_memory import Parts
from trainer.parallel.stage_copies import StageCopies

CHANNELS = 512
"""Enough for one to each tensor of any case."""


class SharedFiles:
    def __init__(self, mesh: Mesh, axis: str, channels: int = CHANNELS) -> None:
        self._group = mesh.box.get_group(axis)
        self._rank, self._size = self._group.rank(), self._group.size()
        folders = mesh.gather("" if self._rank else tempfile.mkdtemp())
        self._folder = Path(folders[dist.get_process_group_ranks(self._group)[0]])
        self._number = 0
        self.meetings = self.allocations = 0
        self.channels = channels
        self.signals = 0
        self.waited = 0
        """Signals that waited for one before to be taken."""
        self._pads = self._mapped(self._size * channels)
        self._senders: dict[int, ThreadPoolExecutor] = {}

    def allocate(self, size: int) -> Parts:
        self.allocations += 1
        return Parts(self._mapped(size))

    def _mapped(self, size: int) -> list[torch.Tensor]:
        self._number += 1
        files = [self._folder / f"{self._number}-{rank}" for rank in range(self._size)]
        files[self._rank].write_bytes(bytes(size))
        self._wait()
        parts = [torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8) for file in files]
        self._wait()
        files[self._rank].unlink()
        return parts

    def meet(self) -> None:
        self.meetings += 1
        self._wait()

    def _wait(self) -> None:
        dist.all_reduce(torch.zeros(1), group=self._group)

    def put_signal(self, rank: int, channel: int) -> None:
        """Beside what the process computes, as a GPU's streams do, but all of them in order."""
        self.signals += 1
        self._senders.setdefault(rank, ThreadPoolExecutor(1)).submit(self._put, rank, channel)

    def _put(self, rank: int, channel: int) -> None:
        flag = self._flag(rank, self._rank, channel)
        self.waited += bool(flag.item())
        _await(flag, 0)
        flag.fill_(1)

    def wait_signal(self, rank: int, channel: int) -> None:
        flag = self._flag(self._rank, rank, channel)
        _await(flag, 1)
        flag.fill_(0)

    def _flag(self, of_rank: int, from_rank: int, channel: int) -> torch.Tensor:
        assert 0 < channel < self.channels
        return self._pads[of_rank][channel * self._size + from_rank]


def _await(flag: torch.Tensor, value: int) -> None:
    end = time.monotonic() + 60
    while flag.item() != value:
        assert time.monotonic() < end, "no signal came"
        time.sleep(1e-4)


def copies_on_cpus(mesh: Mesh) -> PeerCopies:
    """Take the place of `peer_copies`."""
    return PeerCopies(SharedFiles(mesh, "tp"), mesh.tp_rank, mesh.tp, mesh.device)


def stage_copies_on_cpus(parallel: ParallelConfig, mesh: Mesh, channels: int = CHANNELS) -> StageCopies:
    """Take the place of `stage_copies_of`."""
    return StageCopies(SharedFiles(mesh, "pp", channels), parallel, mesh.pp_rank, mesh.device)
