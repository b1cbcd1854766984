"""One training process: its place among all, its device and arithmetic, and the signals that stop it.

torch is imported inside the functions, so that the parent of the processes never pays for it.
"""

import contextlib
import os
import re
import signal
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipelines.engine import default_workers
from pipelines.errors import ConfigError
from trainer.config import ParallelConfig

if TYPE_CHECKING:
    import torch


class Stopped(Exception):  # noqa: N818 (no error)
    """Training ended early because it was asked to, with a checkpoint."""


class StopFlag:
    """Set by SIGTERM or SIGUSR1 (and by Ctrl-C, where `interrupts`); training looks at it after each step."""

    def __init__(self) -> None:
        self.requested = False

    @contextlib.contextmanager
    def listening(self, *, interrupts: bool) -> Generator[None, None, None]:
        """Set the flag on signals, inside this block."""
        before = {
            signal.SIGTERM: signal.signal(signal.SIGTERM, self._request),
            signal.SIGUSR1: signal.signal(signal.SIGUSR1, self._request),
            signal.SIGINT: signal.signal(signal.SIGINT, self._request if interrupts else signal.SIG_IGN),
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _request(self, *_: object) -> None:
        self.requested = True


def take_usr1_for_sigterm() -> None:
    """From here on SIGUSR1, which Slurm sends on request before a job's time is over, does what SIGTERM does."""
    signal.signal(signal.SIGUSR1, lambda *_: signal.raise_signal(signal.SIGTERM))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands: among all, and among those of its machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


@dataclass(frozen=True, slots=True)
class Process:
    """What a training process knows of itself."""

    place: Place
    device: "torch.device"
    exact: bool
    stop: StopFlag


def place_from_environment(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun or srun gave this process; None when neither did."""
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"} <= environment.keys():
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return Place(*(int(environment[name]) for name in names))
    # srun sets these for each task; a batch script outside srun has the job's SLURM_NTASKS only.
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
        per_node = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
        return Place(*(int(environment[name]) for name in names), local_size=int(per_node[0]) if per_node else 1)
    return None


def rendezvous_environment(place: Place, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of torch's `env://` that a process of srun lacks."""
    if "RANK" in environment:
        return {}
    found = {"RANK": str(place.rank), "WORLD_SIZE": str(place.size), "LOCAL_RANK": str(place.local_rank)}
    if "MASTER_ADDR" not in environment:
        found["MASTER_ADDR"] = first_host(environment.get("SLURM_STEP_NODELIST", ""))
    if "MASTER_PORT" not in environment:
        # Two jobs on one machine must not meet.
        found["MASTER_PORT"] = str(20000 + int(environment.get("SLURM_JOB_ID", "0")) % 20000)
    return found


def first_host(nodelist: str) -> str:
    """The first host of Slurm's compressed list: `gpu[07-09,12],login1` -> `gpu07`."""
    match = re.match(r"([^,\[]+)(?:\[(\w+))?", nodelist)
    if not match:
        raise ConfigError(f"SLURM_STEP_NODELIST {nodelist!r}: no host in it; set MASTER_ADDR")
    return match[1] + (match[2] or "")


def prepare(place: Place, parallel: ParallelConfig, flag: StopFlag) -> Process:
    """Choose the device and the kind of arithmetic of this process."""
    import torch

    on_gpu = parallel.device != "cpu" and torch.cuda.is_available()
    if parallel.device == "cuda" and not on_gpu:
        raise ConfigError(
            f"parallel.device cuda: torch sees no GPU in process {place.rank}; check its driver, or set cpu"
        )
    exact = parallel.determinism == "exact" or (parallel.determinism == "auto" and not on_gpu)
    # Slurm's --gpus-per-task shows each process one GPU only, as number 0.
    number = place.local_rank if on_gpu and torch.cuda.device_count() > 1 else 0
    device = torch.device("cuda", number) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    set_arithmetic(exact=exact, threads=1 if exact else max(1, default_workers() // place.local_size))
    return Process(place, device, exact, flag)


def set_arithmetic(*, exact: bool, threads: int) -> None:
    """Deterministic kernels or the fastest ones, and how many threads a process may use on the CPU."""
    import torch

    if exact:
        # cuBLAS reads it when it starts (NVIDIA's cuBLAS documentation, "Results Reproducibility").
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(exact)
    # Filling fresh tensors would only show reads of uninitialised memory, and costs time in every operation.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore
    torch.set_num_threads(threads)


def join(process: Process, store: Any) -> None:
    """Meet the other processes."""
    import torch.distributed as dist

    on_gpu = process.device.type == "cuda"
    # Objects and checkpoint plans travel over gloo between GPUs too.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=process.place.rank,
        world_size=process.place.size,
        device_id=process.device if on_gpu else None,
    )
