"""Attention whose result is the same in every run, on GPUs whose fastest kernel is not.

cuDNN's forward pass is deterministic, its backward pass is not, so torch takes its own flash attention for both when
it is asked for deterministic algorithms. Taking cuDNN forward and flash attention backward costs a third less of that
price (`benchmarks/README.md`, "determinism: exact").
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WIDEST_HEAD = 128
"""Columns; wider heads need a newer cuDNN."""

mixes_kernels = False
"""Whether `attend` may take kernels of both libraries: set for each process by `choose_kernels`."""


def choose_kernels(*, exact: bool, gpu: torch.device | None) -> None:
    """Decide for this process; both libraries must have the kernels, and cuDNN be what torch would take by itself."""
    global mixes_kernels  # noqa: PLW0603 - one choice per process, like torch's own
    hopper = gpu is not None and torch.cuda.get_device_capability(gpu) >= (9, 0)
    mixes_kernels = exact and hopper and torch.backends.cudnn.is_available()


def attend(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask_B1TT: Tensor | None) -> Tensor:
    """(B, H, T, K) each -> (B, H, T, K). Each position sees itself and earlier ones, or what the mask says."""
    if mask_B1TT is not None:
        return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask_B1TT)
    half = q_BHTK.dtype in (torch.bfloat16, torch.float16)
    width = q_BHTK.shape[-1]
    fits = half and width % 8 == 0 and width <= WIDEST_HEAD and q_BHTK.shape[2] > 1
    if mixes_kernels and fits and torch.is_grad_enabled():
        return _MixedAttention.apply(q_BHTK, k_BHTK, v_BHTK)  # pyright: ignore[reportReturnType]
    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)


class _MixedAttention(torch.autograd.Function):
    """cuDNN's causal attention forward, flash attention backward; without dropout."""

    @staticmethod
    def forward(ctx: Any, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        y_BHTK, logsumexp_BHT1, *_, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q_BHTK, k_BHTK, v_BHTK, None, True, 0.0, True
        )
        ctx.save_for_backward(q_BHTK, k_BHTK, v_BHTK, y_BHTK, logsumexp_BHT1, seed, offset)
        return y_BHTK

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_BHTK, k_BHTK, v_BHTK, y_BHTK, logsumexp_BHT1, seed, offset = ctx.saved_tensors
        length, none = q_BHTK.shape[2], None  # no cumulative lengths: all samples are equally long
        saved = (q_BHTK, k_BHTK, v_BHTK, y_BHTK, logsumexp_BHT1.reshape(q_BHTK.shape[:3]))
        return torch.ops.aten._scaled_dot_product_flash_attention_backward(
            gradients[0], *saved, none, none, length, length, 0.0, True, seed, offset
        )
