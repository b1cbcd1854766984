"""What matrices are multiplied in.

Weights, gradients, optimizer state and sums are always fp32. With bf16 the layers cast their weights to the dtype
of the activations as they use them (see `model.Linear`), so there is no autocast, no second copy of the weights
and no loss scale, and gradients reach the fp32 weights in fp32.
"""

import torch

from pipelines.errors import ConfigError
from trainer.config import Precision
from trainer.model import GPT2

DTYPES: dict[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def set_precision(model: GPT2, precision: Precision, device: torch.device) -> None:
    """Let the blocks of `model` compute in `precision`."""
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError("precision bf16: this GPU has no bf16 units; set precision to fp32")
    model.transformer.compute_dtype = DTYPES[precision]
