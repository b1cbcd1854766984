"""Throughput and memory of a training: tokens and samples per second, TFLOP/s, MFU, peak memory.

Rates use the wall clock. Each step ends with its loss on the host anyway, so nothing waits for the device.
"""

import os
import resource
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.loop.training import Training
from trainer.model import Architecture
from trainer.parallel.shared_memory import held_bytes, most_allocated

PEAK_TFLOPS = {
    "GB200": 2500,
    "B200": 2250,
    "GH200": 989,
    "H200": 989,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "H800": 989,
    "H20": 148,
    "A100": 312,
    "A800": 312,
    "A10G": 70,
    "A10": 125,
    "A40": 149.7,
    "A6000": 154.8,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "RTX 4090": 165.2,
    "RTX 3090": 71,
}
"""Dense bf16 TFLOP/s by a part of the device's name, from NVIDIA's data sheets; the first match counts."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The speed of a training."""

    tokens_per_second: float
    """Of all processes together, without padding."""
    samples_per_second: float
    tflops: float
    """TFLOP/s of one process, 10^12 a second."""
    mfu: float | None
    """Fraction of the device's peak; None on CPUs and devices that are not in the table."""


def flops_per_token(shape: Architecture, length: float) -> float:
    """Return the FLOPs of the forward and backward passes per token, 6 N + 12 L D T, without recomputation.

    N weights that multiply (all but the position embeddings, and the token embeddings if no head shares them), L layers
    of width D, T tokens per sample. Attention counts in full although half of it is masked, as in PaLM (Chowdhery et
    al., arXiv:2204.02311, appendix B) and nanoGPT (`model.py: estimate_mfu`).
    """
    looked_up = shape.n_positions + (shape.vocab_size if shape.num_labels else 0)
    return 6 * (shape.parameters - looked_up * shape.n_embd) + 12 * shape.n_layer * shape.n_embd * length


def peak_tflops(device: torch.device) -> float | None:
    """Return the device's dense bf16 TFLOP/s, None if unknown; fp32 trainings are measured against it too."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((float(peak) for part, peak in PEAK_TFLOPS.items() if part in name), None)


def rates(training: Training, tokens: int, samples: int, seconds: float) -> Rates:
    """Return the rates of `tokens` in `seconds`; MFU = FLOPs per token x tokens/s / processes / peak."""
    mesh, seconds = training.mesh, max(seconds, 1e-9)
    flops = flops_per_token(training.model.shape, tokens / max(samples, 1)) * tokens
    tflops = flops / seconds / (mesh.data_ranks * mesh.pp * mesh.tp) / 1e12
    peak = peak_tflops(mesh.device)
    return Rates(tokens / seconds, samples / seconds, tflops, tflops / peak if peak else None)


class Meter:
    """Measures rates since its last restart."""

    def __init__(self, training: Training, *, of_steps: bool = False) -> None:
        """`of_steps`: validations and checkpoints do not count as time."""
        self._training = training
        self._of_steps = of_steps
        self.restart()

    def restart(self) -> None:
        """Start measuring anew."""
        self._since = (self._time(), self._training.tokens, self._training.position)

    def read(self) -> Rates:
        """Return the rates since the last restart."""
        then, tokens, position = self._since
        training = self._training
        return rates(training, training.tokens - tokens, training.position - position, self._time() - then)

    def _time(self) -> float:
        return time.monotonic() - (self._training.paused if self._of_steps else 0.0)


def peak_memory(device: torch.device) -> dict[str, float]:
    """Return this process's peaks in GB: allocated and reserved memory of a GPU, resident memory on CPUs."""
    if device.type == "cuda":
        peaks = {
            "allocated_gb": most_allocated(device),
            "reserved_gb": torch.cuda.max_memory_reserved(device) + held_bytes(),
        }
    else:
        unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kibibytes, but on macOS bytes
        peaks = {"resident_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    return {name: round(value / 1e9, 3) for name, value in peaks.items()}


def held_memory(device: torch.device) -> float:
    """Return the GB that this process holds now: what torch reserves of a GPU, resident memory on CPUs.

    Where the system does not say (macOS), resident memory is its peak so far.
    """
    if device.type == "cuda":
        return round((torch.cuda.memory_reserved(device) + held_bytes()) / 1e9, 3)
    statm = Path("/proc/self/statm")  # proc(5): the second number is resident pages
    if not statm.exists():
        return peak_memory(device)["resident_gb"]
    return round(int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e9, 3)
