"""Losses, as sums: the caller divides by the number of terms in the whole step, over all processes.

Shapes: N tokens, D width, V rows of the embedding, C classes, B rows of a batch.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.halved import halved

CHUNK_VALUES = {"cpu": 2**20, "cuda": 2**28}
"""Logits per chunk: on a CPU they fit into the cache, on a GPU they use it fully without taking much memory."""
IN_PLACE = 4
"""Times as many on a GPU without the plain loss, which copies them in fp32."""
IGNORED = -100
"""A target that is ignored, as in torch's and transformers' losses."""
CHUNK_TOKENS = 128
"""Fewest tokens per chunk: smaller matrix products are inefficient."""


def _itself(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, slots=True)
class VocabPart:
    """The rows of the vocabulary that a process has from `first` on, and the in-place reductions over processes."""

    first: int = 0
    largest: Callable[[Tensor], Tensor] = _itself
    total: Callable[[Tensor], Tensor] = _itself


WHOLE = VocabPart()
Differentiate = Callable[[Tensor, Tensor, int, VocabPart, Tensor | None], tuple[Tensor, Tensor]]
"""The work on a chunk's logits: `loss_and_gradient`, or what does the same faster."""


def linear_cross_entropy(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    vocab_size: int,
    part: VocabPart = WHOLE,
    *,
    differentiate: Differentiate | None = None,
    expected: float = 1.0,
    total_VD: Tensor | None = None,
) -> Tensor:
    """Return the sum over tokens of -log softmax(hidden @ weight.T)[target], as an fp32 scalar.

    A target of IGNORED adds nothing. Logits exist for a chunk of tokens at a time, and their gradient is computed at
    once, so memory does not grow with tokens x vocabulary. Rows of the weight from `vocab_size` on are padding, never
    predicted. If the process has only a part of the rows, the loss is that of all rows, and the gradient of `hidden` is
    a term of a sum.

    `differentiate`: what computes a chunk's loss and the gradient of its logits; None: `loss_and_gradient`, which a GPU
    needs ten passes over the logits for. `expected`: what the backward pass will multiply the gradients by, so that
    products of fp16 have it already: they would overflow with many tokens, and lose small probabilities with few. The
    nearest power of two is taken, which is exact. `total_VD`: an fp32 tensor to which the backward pass adds the
    weight's gradient itself, then returning none.
    """
    if not torch.is_grad_enabled():
        # The context of an autograd function shows which inputs require gradients, not whether any will be computed.
        hidden_ND, weight_VD = hidden_ND.detach(), weight_VD.detach()
    differentiate = differentiate or loss_and_gradient
    factor = None
    if hidden_ND.dtype == torch.float16:
        # A tensor, since a loss compiled for each number would soon be compiled too often, and then no more.
        factor = torch.full((), 2.0 ** round(math.log2(expected)), device=hidden_ND.device)
    options = (vocab_size, part, differentiate, factor, total_VD)
    return _LinearCrossEntropy.apply(hidden_ND, weight_VD, targets_N, *options)  # pyright: ignore[reportReturnType]


def class_loss(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Return the sum over rows of the cross entropy, or of the squared error with one output (a regression).

    A label of IGNORED adds nothing.
    """
    if logits_BC.shape[1] == 1:
        errors_B = F.mse_loss(logits_BC[:, 0].float(), labels_B.float(), reduction="none")
        # Not `where`, which copies the 0 from the host's memory and waits for it: no graph of a GPU may do that.
        return errors_B.masked_fill(labels_B == IGNORED, 0.0).sum()
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
        differentiate: Differentiate,
        factor: Tensor | None,
        total_VD: Tensor | None,
    ) -> Tensor:
        matrix_VD = halved(weight_VD, hidden_ND.dtype, keep=total_VD is not None)
        train = any(ctx.needs_input_grad)
        hidden_grad_ND = torch.empty_like(hidden_ND) if train else None
        weight_grad_VD = torch.zeros_like(weight_VD) if train else None
        total = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        step = _chunk_tokens(hidden_ND, weight_VD, plain=differentiate is loss_and_gradient)
        for start in range(0, hidden_ND.shape[0], step):
            chunk = slice(start, start + step)
            product_NV = hidden_ND[chunk] @ matrix_VD.T
            loss, gradient_NV = differentiate(product_NV, targets_N[chunk], vocab_size, part, factor)
            total += loss
            if hidden_grad_ND is not None and weight_grad_VD is not None:
                torch.mm(gradient_NV, matrix_VD, out=hidden_grad_ND[chunk])
                add_product(weight_grad_VD, gradient_NV.T, hidden_ND[chunk])
        ctx.gradients, ctx.factor, ctx.scaled, ctx.total = (hidden_grad_ND, weight_grad_VD), factor, False, total_VD
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor | None, ...]:
        scale = grad_outputs[0] if ctx.factor is None else grad_outputs[0] / ctx.factor
        hidden_grad_ND, weight_grad_VD = ctx.gradients
        nothing = (None,) * 6
        if ctx.total is not None:
            ctx.total.addcmul_(weight_grad_VD, scale)
            return hidden_grad_ND.mul_(scale), None, *nothing
        if not ctx.scaled:  # zero-bubble schedules call this twice: for the input's gradient, later for the weight's
            hidden_grad_ND.mul_(scale)
            weight_grad_VD.mul_(scale)
            ctx.scaled = True
        return hidden_grad_ND, weight_grad_VD, *nothing


adds_inside = True
"""Whether GPUs add products to fp32 tensors inside of them: set for each process (`process.set_arithmetic`)."""


def add_product(total_VD: Tensor, left_VN: Tensor, right_ND: Tensor) -> None:
    """Add a product to an fp32 tensor; on a GPU inside the product, which is not rounded to 16 bits on the way."""
    if adds_inside and total_VD.is_cuda and right_ND.dtype != torch.float32:
        torch.addmm(total_VD, left_VN, right_ND, out_dtype=torch.float32, out=total_VD)
    else:
        total_VD += left_VN @ right_ND


def _chunk_tokens(hidden_ND: Tensor, weight_VD: Tensor, *, plain: bool) -> int:
    """Return a power of two, so that micro batches are mostly whole chunks: every other length is compiled anew."""
    most = CHUNK_VALUES[hidden_ND.device.type] // weight_VD.shape[0]
    if hidden_ND.is_cuda and not plain:
        most *= IN_PLACE
    return max(CHUNK_TOKENS, 1 << max(0, most.bit_length() - 1))


def loss_and_gradient(
    product_NV: Tensor, targets_N: Tensor, vocab_size: int, part: VocabPart, factor: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the chunk's summed loss, and the gradient of its logits (softmax minus one-hot), times `factor`.

    `product_NV`, the logits, is overwritten if it is fp32.
    """
    logits_NV = product_NV.float()
    width = logits_NV.shape[1]
    logits_NV[:, max(0, vocab_size - part.first) :] = -torch.inf
    logits_NV -= part.largest(logits_NV.amax(1, keepdim=True))
    real_N = targets_N != IGNORED
    columns_N = targets_N - part.first
    local_N = real_N & (columns_N >= 0) & (columns_N < width)
    columns_N1 = columns_N.clamp(0, width - 1)[:, None]
    target_logits_N = logits_NV.gather(1, columns_N1)[:, 0].where(local_N, 0.0)
    sums_N, target_logits_N = part.total(torch.stack((logits_NV.exp_().sum(1), target_logits_N)))
    logits_NV /= torch.where(real_N, sums_N, torch.inf)[:, None]  # a gradient of 0 for ignored targets
    if torch.compiler.is_compiling():  # a comparison can be fused, a scatter would need all logits in memory
        logits_NV -= ((torch.arange(width, device=columns_N.device) == columns_N1) & local_N[:, None]).float()
    else:
        logits_NV.scatter_add_(1, columns_N1, -local_N[:, None].float())
    if factor is not None:
        logits_NV *= factor
    return ((sums_N.log() - target_logits_N) * real_N).sum(), logits_NV.to(product_NV.dtype)


def compiled_loss_and_gradient(
    product_NV: Tensor, targets_N: Tensor, vocab_size: int, part: VocabPart, factor: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Do the same in one compiled graph, which cannot hold what processes exchange about split logits."""
    differentiate = _compiled() if part is WHOLE else loss_and_gradient
    return differentiate(product_NV, targets_N, vocab_size, part, factor)


@functools.cache
def _compiled() -> Differentiate:
    # One graph per chunk length, of which there are two or three.
    return torch.compile(loss_and_gradient, dynamic=False)
