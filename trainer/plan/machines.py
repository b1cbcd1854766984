"""What is known of GPUs and of the machines that hold them.

Peak figures are the makers' data sheets (dense bf16; V100 and T4: fp16). How much of them a training step reaches was
measured with this trainer on H200s (benchmarks/README.md) and is taken over for the others.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipelines.config import NonNegative, Positive
from pipelines.errors import ConfigError, choose_from, shown
from trainer.config import ParallelConfig

GIB = 2.0**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU, and its place in a machine."""

    memory: float
    """Bytes that a process can allocate."""
    half: float
    """Matrix products in bf16 (or fp16), FLOP/s, dense."""
    single: float
    """Matrix products in fp32, FLOP/s, without TF32."""
    bandwidth: float
    """Reading and writing its own memory, bytes/s."""
    link: float
    """To another GPU of its machine, in one direction, bytes/s: NVLink, or PCI Express."""
    host: float
    """To the host's memory, in one direction, bytes/s."""
    has_fp8: bool = False
    """Whether it multiplies in fp8."""
    has_bf16: bool = True
    """Whether it computes in bf16; if not, `half` is of fp16."""
    price: float = 0.0
    """US dollars per hour; 0: not known."""


def _gpu(
    memory: float,
    half: float,
    single: float,
    bandwidth: float,
    link: float,
    host: float,
    price: float = 0.0,
    **has: bool,
) -> Gpu:
    """Return a GPU from GB, TFLOP/s, TFLOP/s, GB/s, GB/s, GB/s and dollars per hour."""
    # The driver, CUDA's context, NCCL and what the allocator cannot use take some of the memory.
    usable = memory * 1e9 - 2.5 * GIB
    return Gpu(
        memory=usable,
        half=half * 1e12,
        single=single * 1e12,
        bandwidth=bandwidth * 1e9,
        link=link * 1e9,
        host=host * 1e9,
        price=price,
        **has,
    )


GPUS: dict[str, Gpu] = {
    "b200": _gpu(192, 2250, 75, 8000, 900, 55, has_fp8=True),
    "h200": _gpu(151, 989, 67, 4800, 450, 55, has_fp8=True),
    "h100-pcie": _gpu(85.9, 756, 51, 2000, 55, 55, has_fp8=True),
    "h100": _gpu(85.9, 989, 67, 3350, 450, 55, 3.5, has_fp8=True),
    "a100-80gb": _gpu(85.9, 312, 19.5, 2039, 300, 25, 1.75),
    "a100-40gb": _gpu(42.9, 312, 19.5, 1555, 300, 25),
    "v100-32gb": _gpu(34.3, 125, 15.7, 900, 150, 12, has_bf16=False),
    "l40s": _gpu(48.3, 362, 91.6, 864, 25, 25, has_fp8=True),
    "rtx4090": _gpu(25.7, 165, 82.6, 1008, 25, 25, has_fp8=True),
    "rtx3090": _gpu(25.7, 71, 35.6, 936, 25, 25),
    "a10": _gpu(24.1, 125, 31.2, 600, 25, 25),
    "l4": _gpu(24.1, 121, 30.3, 300, 25, 25, has_fp8=True),
    "t4": _gpu(16.1, 65, 8.1, 320, 12, 12, has_bf16=False),
}
"""Name -> GPU. bf16 is half of the RTX cards' fp16 figure with fp16 sums, since sums are in fp32. Prices are those of
machines with eight of them that llm.c's scripts name, $28 and $14 per hour (2024)."""


KINDS = ("single", "data", "tensor", "pipeline")
"""Kinds of layouts, whose predictions are off for reasons of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """How runs with one kind of layout were, relative to their predictions."""

    seconds: Positive = 1.0
    """Time of a step."""
    memory: Positive = 1.0
    """Memory of a process."""
    runs: NonNegative = 0
    """Number of runs, of which the factors are medians."""


Calibration = Mapping[str, Factors]
"""Kind of layout -> factors, for one kind of GPU."""


def kind_of_layout(parallel: ParallelConfig) -> str:
    """Return which of KINDS a layout is."""
    if parallel.pp > 1:
        return "pipeline"
    if parallel.tp > 1:
        return "tensor"
    return "data" if parallel.dp_replicate * parallel.dp_shard > 1 else "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machines that train together."""

    gpu: Gpu
    gpus: int
    per_node: int = 8
    """GPUs of one machine."""
    node_link: float = 50e9
    """Between machines, bytes/s for each GPU: 400 Gbit/s."""
    host_memory: float = 1e12
    """Bytes of one machine's own memory."""
    updates: float = 3.2e9
    """Parameters per second that a machine's CPUs update by AdamW: measured with 16 cores."""
    calibration: Calibration = field(default_factory=dict[str, Factors])
    """What earlier runs on these GPUs were, relative to their predictions."""

    def learned(self, parallel: ParallelConfig) -> Factors:
        """Return the factors for a layout; runs with another kind of layout say nothing about it."""
        return self.calibration.get(kind_of_layout(parallel), Factors())

    def inside(self, processes: int, stride: int) -> bool:
        """Whether each group of `processes`, whose ranks are `stride` apart, is on one machine."""
        span = processes * stride
        return self.gpus <= self.per_node or (span <= self.per_node and self.per_node % span == 0)

    def link(self, processes: int, stride: int) -> float:
        """Return the bytes/s between neighbours of such a group."""
        return self.gpu.link if self.inside(processes, stride) else self.node_link


def name_in_table(name: str) -> str:
    """Return how GPUS would write a name: H100, a100 80gb, or what a driver calls it; as it is, if it has none such."""
    plain = name.lower().replace(" ", "-")
    return plain if plain in GPUS else known_gpu(name) or plain


def find_gpu(name: str, changes: dict[str, Any]) -> Gpu:
    """Return the GPU called `name` with other values for the fields in `changes`. Raises ConfigError if unknown."""
    known = name_in_table(name)
    if known not in GPUS:
        raise ConfigError(
            f"--gpu {shown(name)}: not in the table of GPUs; name the nearest, and what is different by --gpu-memory, "
            f"--gpu-tflops, --gpu-bandwidth and --gpu-link.{choose_from(known, GPUS)}"
        )
    return dataclasses.replace(GPUS[known], **{key: value for key, value in changes.items() if value})


def known_gpu(called: str) -> str | None:
    """Return the name in GPUS of what a driver calls its GPU, such as NVIDIA A100-SXM4-80GB; None for another kind."""
    words = {*re.split(r"[^a-z0-9]+", called.lower().replace("a10g", "a10"))}
    if words & {"nvl", "mig"}:  # more memory, or a part of it
        return None
    return next((name for name in GPUS if {*name.removeprefix("rtx").split("-")} <= words), None)


def gpus_at_hand() -> tuple[str, int] | None:
    """Return the name (in GPUS) and number of this machine's GPUs; None without a GPU or for one of another kind."""
    import torch

    if not torch.cuda.is_available():
        return None
    name = known_gpu(torch.cuda.get_device_name(0))
    return (name, torch.cuda.device_count()) if name else None
