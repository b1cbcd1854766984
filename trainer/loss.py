"""Losses, as sums: the caller divides by the number of terms in the whole step, over all processes.

Shapes: N tokens, D width, V rows of the embedding, C classes, B rows of a batch.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_VALUES = {"cpu": 2**20, "cuda": 2**28}
"""Logits at a time: on a CPU what stays in the cache, on a GPU what fills it without crowding memory."""
CHUNK_TOKENS = 128
"""Tokens at a time, at least: a smaller matrix product wastes the machine."""


def linear_cross_entropy(hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int) -> Tensor:
    """Sum over tokens of -log softmax(hidden @ weight.T)[target], as an fp32 scalar.

    The logits exist for a chunk of tokens at a time, and their gradient is taken at once, so memory does not
    grow with tokens x vocabulary. Rows of the weight from `vocab_size` on are padding: never predicted.
    """
    if not torch.is_grad_enabled():
        # A function's context says what requires a gradient, not whether one will be asked for.
        hidden_ND, weight_VD = hidden_ND.detach(), weight_VD.detach()
    return _LinearCrossEntropy.apply(hidden_ND, weight_VD, targets_N, vocab_size)  # pyright: ignore[reportReturnType]


def class_loss(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Sum over rows: cross entropy of classes, or the squared error where there is one output (a regression)."""
    if logits_BC.shape[1] == 1:
        return F.mse_loss(logits_BC[:, 0].float(), labels_B.float(), reduction="sum")
    return F.cross_entropy(logits_BC.float(), labels_B, reduction="sum")


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, targets_N: Tensor, vocab_size: int) -> Tensor:
        matrix_VD = weight_VD.to(hidden_ND.dtype)
        train = any(ctx.needs_input_grad)
        hidden_grad_ND = torch.empty_like(hidden_ND) if train else None
        weight_grad_VD = torch.zeros_like(weight_VD) if train else None
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        step = max(CHUNK_TOKENS, CHUNK_VALUES[hidden_ND.device.type] // weight_VD.shape[0])
        for start in range(0, hidden_ND.shape[0], step):
            chunk = slice(start, start + step)
            logits_NV = (hidden_ND[chunk] @ matrix_VD.T).float()
            total += _loss_and_gradient(logits_NV, targets_N[chunk], vocab_size)
            if hidden_grad_ND is not None and weight_grad_VD is not None:
                gradient_NV = logits_NV.to(hidden_ND.dtype)
                hidden_grad_ND[chunk] = gradient_NV @ matrix_VD
                weight_grad_VD += gradient_NV.T @ hidden_ND[chunk]
        ctx.gradients = hidden_grad_ND, weight_grad_VD
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, Tensor, None, None]:
        (scale,) = grad_outputs
        hidden_grad_ND, weight_grad_VD = ctx.gradients
        return hidden_grad_ND.mul_(scale), weight_grad_VD.mul_(scale), None, None


def _loss_and_gradient(logits_NV: Tensor, targets_N: Tensor, vocab_size: int) -> Tensor:
    """The chunk's summed loss; `logits_NV` becomes its gradient, softmax minus one-hot, in place."""
    logits_NV[:, vocab_size:] = -torch.inf
    logits_NV -= logits_NV.amax(1, keepdim=True)
    rows_N = torch.arange(len(targets_N), device=targets_N.device)
    target_logits_N = logits_NV[rows_N, targets_N]
    sums_N1 = logits_NV.exp_().sum(1, keepdim=True)
    logits_NV /= sums_N1
    logits_NV[rows_N, targets_N] -= 1.0
    return (sums_N1[:, 0].log() - target_logits_N).sum()
