"""Flash attention for sequences of several lengths, for CPUs: torch has these kernels for GPUs only.

Under the kernels' names and signatures, so that autograd, the compiler, recomputation and every layout around them are
the real thing. Like the kernels, they compute in fp32, round the result, and leave alone what is in no sequence.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer import attention

calls: list[str] = []


def _scores(q: Tensor, k: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """(N, H, K) each -> scaled scores (H, N, N), -inf where a token does not see another; and who is in a sequence."""
    assert ends.dtype == torch.int32
    assert ends.is_contiguous()
    positions = torch.arange(len(q))
    sequence = torch.searchsorted(ends, positions, right=True)
    inside = (sequence > 0) & (sequence < len(ends))
    seen = (sequence[:, None] == sequence) & (positions[:, None] >= positions) & inside[:, None]
    scores = torch.einsum("nhk,mhk->hnm", q.float(), k.float()) * q.shape[-1] ** -0.5
    return scores.masked_fill(~seen, -torch.inf), inside


def forward(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, ends_k: Tensor, longest: int, longest_k: int, *rest: Any, **_: Any
) -> tuple[Tensor, ...]:
    calls.append("forward")
    dropout, causal, debug = rest
    assert (dropout, causal, debug) == (0.0, True, False)
    assert longest == longest_k >= int(ends.diff().max())
    assert torch.equal(ends, ends_k)
    assert all(part.ndim == 3 and part.stride(-1) == 1 for part in (q, k, v))
    scores, inside = _scores(q, k, ends)
    logsumexp = scores.logsumexp(-1)
    y = torch.einsum("hnm,mhk->nhk", (scores - logsumexp[..., None]).exp(), v.float())
    y = torch.empty_like(q).copy_(y.where(inside[:, None, None], torch.nan))
    state = torch.empty(2, dtype=torch.uint64), torch.empty((), dtype=torch.uint64)
    return y, logsumexp, *state, torch.empty(0, dtype=q.dtype)


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, logsumexp: Tensor, ends: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor, Tensor]:
    calls.append("backward")
    shares = (_scores(q, k, ends)[0] - logsumexp[..., None]).exp()
    of_value = torch.einsum("hnm,nhk->mhk", shares, grad.float())
    of_share = torch.einsum("nhk,mhk->hnm", grad.float(), v.float())
    of_score = shares * (of_share - (grad.float() * y.float()).sum(-1).T[..., None]) * q.shape[-1] ** -0.5
    of_query = torch.einsum("hnm,mhk->nhk", of_score, k.float())
    of_key = torch.einsum("hnm,nhk->mhk", of_score, q.float())
    return torch.empty_like(q).copy_(of_query), torch.empty_like(k).copy_(of_key), torch.empty_like(v).copy_(of_value)


@contextmanager
def in_use() -> Generator[None]:
    """Take them inside this block, on CPUs."""
    calls.clear()
    with torch.library._scoped_library("aten", "IMPL") as library, pytest.MonkeyPatch.context() as patch:
        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        patch.setattr(attention, "takes_lengths", True)
        # `set_arithmetic` would decide against them.
        patch.setattr(attention, "choose_kernels", lambda **_: None)
        yield
