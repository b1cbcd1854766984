"""Third step: compute activations again in the backward pass instead of keeping them."""

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.config import ParallelConfig
from trainer.model import GPT2

_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}
"""What `selective` keeps: the results of matrix products and attention, which cost most to compute."""


def checkpoint_activations(model: GPT2, parallel: ParallelConfig) -> None:
    """`full` computes whole blocks again, `selective` all in them but matrix products; of every k-th block each."""
    if parallel.activation_checkpointing == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}  # dropout has keys, no state
    if parallel.activation_checkpointing == "selective":
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)
    for layer, block in model.transformer.h.items():
        if int(layer) % parallel.checkpoint_every == 0:
            block.forward = functools.partial(checkpoint, block.forward, **options)


def _policy(_: Any, operation: Any, *__: Tensor, **___: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE
