"""What matrices are multiplied in.

Weights, gradients, optimizer state and sums are always fp32. With bf16 and fp16 the layers cast their weights to the
dtype of the activations as they use them (see `model.Linear`), so there is no autocast and no second copy of the
weights, and gradients reach the fp32 weights in fp32. fp16 needs a loss scale: its smallest number is 6e-8.
"""

from typing import Any

import torch

from pipelines.errors import ConfigError
from trainer.config import LossScaleConfig, Precision

DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def compute_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """The dtype of activations and matrix products."""
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError("precision bf16: this GPU has no bf16 units; set precision to fp32")
    return DTYPES[precision]


class LossScale:
    """What the loss is multiplied by: always 1 but with fp16 (Micikevicius et al., arXiv:1710.03740)."""

    def __init__(self, config: LossScaleConfig, precision: Precision) -> None:
        self.config = config
        self.dynamic = precision == "fp16"
        self.value = config.initial if self.dynamic else 1.0
        self._good_steps = 0
        self._overflows = 0

    def update(self, *, finite: bool) -> bool:
        """After a step's gradients: whether to use them. An overflow at the least scale is an error of the caller's."""
        if not self.dynamic:
            return True
        if not finite:
            self._good_steps, self._overflows = 0, self._overflows + 1
            if self._overflows >= self.config.hysteresis:
                self.value = max(self.config.minimum, self.value * self.config.backoff_factor)
            return False
        self._good_steps += 1
        if self._good_steps % self.config.growth_interval == 0:
            self.value = min(self.config.maximum, self.value * self.config.growth_factor)
            self._overflows = 0
        return True

    def record(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"value": self.value, "good_steps": self._good_steps, "overflows": self._overflows}

    def restore(self, record: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.value, self._good_steps, self._overflows = record["value"], record["good_steps"], record["overflows"]
