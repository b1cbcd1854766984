"""Losses, as sums: the caller divides by the number of terms in the whole step, over all processes.

Shapes: N tokens, D width, V rows of the embedding, C classes, B rows of a batch.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_VALUES = {"cpu": 2**20, "cuda": 2**28}
"""Logits at a time: on a CPU what stays in the cache, on a GPU what fills it without crowding memory."""
IGNORED = -100
"""The target that is none, as in torch's and transformers' losses."""
CHUNK_TOKENS = 128
"""Tokens at a time, at least: a smaller matrix product wastes the machine."""


def _itself(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, slots=True)
class VocabPart:
    """Which rows of the vocabulary a process has, and how numbers of all processes come together, in place."""

    first: int = 0
    largest: Callable[[Tensor], Tensor] = _itself
    total: Callable[[Tensor], Tensor] = _itself


WHOLE = VocabPart()


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    vocab_size: int,
    part: VocabPart = WHOLE,
    *,
    compiled: bool = False,
) -> Tensor:
    """Sum over tokens of -log softmax(hidden @ weight.T)[target], as an fp32 scalar.

    A target of IGNORED adds nothing.

    The logits exist for a chunk of tokens at a time, and their gradient is taken at once, so memory does not
    grow with tokens x vocabulary. Rows of the weight from `vocab_size` on are padding: never predicted. Where
    the process has a part of the rows only, the loss is that of all, and the gradient of `hidden` a term of a sum.
    `compiled` fuses what happens to the logits, which a GPU else reads and writes ten times; not where they are split,
    since processes talk in the middle of it.
    """
    if not torch.is_grad_enabled():
        # A function's context says what requires a gradient, not whether one will be asked for.
        hidden_ND, weight_VD = hidden_ND.detach(), weight_VD.detach()
    differentiate = _compiled() if compiled and part is WHOLE else _loss_and_gradient
    return _LinearCrossEntropy.apply(hidden_ND, weight_VD, targets_N, vocab_size, part, differentiate)  # pyright: ignore[reportReturnType]


def class_loss(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Sum over rows: cross entropy of classes, or the squared error where there is one output (a regression).

    A label of IGNORED adds nothing.
    """
    if logits_BC.shape[1] == 1:
        errors_B = F.mse_loss(logits_BC[:, 0].float(), labels_B.float(), reduction="none")
        return errors_B.where(labels_B != IGNORED, 0.0).sum()
    return F.cross_entropy(logits_BC.float(), labels_B, reduction="sum", ignore_index=IGNORED)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        vocab_size: int,
        part: VocabPart,
        differentiate: "Differentiate",
    ) -> Tensor:
        matrix_VD = weight_VD.to(hidden_ND.dtype)
        train = any(ctx.needs_input_grad)
        hidden_grad_ND = torch.empty_like(hidden_ND) if train else None
        weight_grad_VD = torch.zeros_like(weight_VD) if train else None
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        step = _chunk_tokens(hidden_ND, weight_VD)
        for start in range(0, hidden_ND.shape[0], step):
            chunk = slice(start, start + step)
            loss, gradient_NV = differentiate(hidden_ND[chunk] @ matrix_VD.T, targets_N[chunk], vocab_size, part)
            total += loss
            if hidden_grad_ND is not None and weight_grad_VD is not None:
                hidden_grad_ND[chunk] = gradient_NV @ matrix_VD
                weight_grad_VD += gradient_NV.T @ hidden_ND[chunk]
        ctx.gradients, ctx.scaled = (hidden_grad_ND, weight_grad_VD), False
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, Tensor, None, None, None, None]:
        (scale,) = grad_outputs
        hidden_grad_ND, weight_grad_VD = ctx.gradients
        if not ctx.scaled:  # zero-bubble schedules come twice: for the input's gradient, later for the weight's
            hidden_grad_ND.mul_(scale)
            weight_grad_VD.mul_(scale)
            ctx.scaled = True
        return hidden_grad_ND, weight_grad_VD, None, None, None, None


def _chunk_tokens(hidden_ND: Tensor, weight_VD: Tensor) -> int:
    """A power of two, so that micro batches are mostly whole chunks: each other length is compiled for itself."""
    most = CHUNK_VALUES[hidden_ND.device.type] // weight_VD.shape[0]
    return max(CHUNK_TOKENS, 1 << max(0, most.bit_length() - 1))


def _loss_and_gradient(
    product_NV: Tensor, targets_N: Tensor, vocab_size: int, part: VocabPart
) -> tuple[Tensor, Tensor]:
    """The chunk's summed loss, and the gradient of its logits, softmax minus one-hot, in their dtype.

    `product_NV`, the logits, is overwritten where it is fp32.
    """
    logits_NV = product_NV.float()
    width = logits_NV.shape[1]
    logits_NV[:, max(0, vocab_size - part.first) :] = -torch.inf
    logits_NV -= part.largest(logits_NV.amax(1, keepdim=True))
    real_N = targets_N != IGNORED
    columns_N = targets_N - part.first
    here_N = real_N & (columns_N >= 0) & (columns_N < width)
    columns_N1 = columns_N.clamp(0, width - 1)[:, None]
    target_logits_N = logits_NV.gather(1, columns_N1)[:, 0].where(here_N, 0.0)
    sums_N, target_logits_N = part.total(torch.stack((logits_NV.exp_().sum(1), target_logits_N)))
    logits_NV /= torch.where(real_N, sums_N, torch.inf)[:, None]  # a gradient of 0 where there is no target
    if torch.compiler.is_compiling():  # a comparison is fused with the rest, single additions would need all in memory
        logits_NV -= ((torch.arange(width, device=columns_N.device) == columns_N1) & here_N[:, None]).float()
    else:
        logits_NV.scatter_add_(1, columns_N1, -here_N[:, None].float())
    return ((sums_N.log() - target_logits_N) * real_N).sum(), logits_NV.to(product_NV.dtype)


Differentiate = Callable[[Tensor, Tensor, int, VocabPart], tuple[Tensor, Tensor]]


@functools.cache
def _compiled() -> Differentiate:
    # A graph for each length of a chunk: there are two or three of them.
    return torch.compile(_loss_and_gradient, dynamic=False)
