"""Attention with one library's kernel forward and another's backward: torch's values, gradients and recomputation.

Its kernels are those of GPUs. Here the CPU's flash attention stands in for both, under their names and signatures, so
that everything around them is the real thing; `python -m benchmarks.layouts` compares the kernels themselves.
"""

from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainer import attention
from trainer.parallel import _policy

calls: list[str] = []


def forward(
    q: Tensor, k: Tensor, v: Tensor, _bias: None, logsumexp: bool, dropout: float = 0.0, causal: bool = False
) -> tuple[Any, ...]:
    calls.append("cudnn")
    assert logsumexp
    y, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal)
    none, number = torch.empty(0), torch.tensor(0)
    return y, lse.contiguous().unsqueeze(-1), none, none, q.shape[2], k.shape[2], number, number, none


def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, lse: Tensor, *rest: Any) -> Any:
    calls.append("flash")
    _, _, _, _, dropout, causal, *_ = rest
    assert lse.shape == q.shape[:3]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, y, lse, dropout, causal)


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    calls.clear()
    monkeypatch.setattr(attention, "mixes_kernels", True)
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_scaled_dot_product_cudnn_attention", forward, "CPU")
        library.impl("_scaled_dot_product_flash_attention_backward", backward, "CPU")
        yield


def parts(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    together = torch.randn(2, 20, 4, 3, 16, generator=generator, dtype=torch.bfloat16)  # as the model has them
    return [part.transpose(1, 2).detach().requires_grad_() for part in together.unbind(3)]


def gradients(attend: Callable[..., Tensor]) -> list[Tensor]:
    leaves = parts()
    y = attend(*leaves)
    y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y))
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def torch_own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention.attend(q, k, v, None)


def test_values_and_gradients_are_those_of_torch() -> None:
    wanted = gradients(torch_own)
    assert calls == []
    for found, expected in zip(gradients(mixed), wanted, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert calls == ["cudnn", "flash"]


def test_compiled_it_is_one_graph_with_the_same_values() -> None:
    wanted = gradients(mixed)
    calls.clear()
    found = gradients(torch.compile(mixed, fullgraph=True, dynamic=False))
    for each, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(each, expected, rtol=0, atol=0)
    assert calls == ["cudnn", "flash"]


def test_selective_recomputation_does_not_compute_it_twice() -> None:
    wanted = gradients(mixed)
    calls.clear()

    def recomputed(*leaves: Tensor) -> Tensor:
        def contexts() -> Any:
            return create_selective_checkpoint_contexts(_policy)

        return checkpoint(lambda *each: mixed(*each).sin(), *leaves, use_reentrant=False, context_fn=contexts)

    found = gradients(recomputed)
    assert [each.shape for each in found] == [each.shape for each in wanted]
    assert calls == ["cudnn", "flash"]


@pytest.mark.parametrize("change", ["mask", "fp32", "no gradient", "off"])
def test_elsewhere_torch_decides(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (part.float() if change == "fp32" else part for part in parts())
    mask = torch.ones(20, 20, dtype=torch.bool).tril().expand(2, 1, 20, 20) if change == "mask" else None
    if change == "off":
        monkeypatch.setattr(attention, "mixes_kernels", False)
    with torch.set_grad_enabled(change != "no gradient"):
        y = attention.attend(q, k, v, mask)
    assert calls == []
    torch.testing.assert_close(y, torch_own(q, k, v), rtol=0, atol=1e-2)


@pytest.mark.parametrize("exact", [True, False])
def test_only_exact_training_on_a_gpu_mixes(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda", 0)
    for device, capability, mixes in ((gpu, (9, 0), exact), (gpu, (8, 0), False), (None, (9, 0), False)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
        attention.choose_kernels(exact=exact, gpu=device)
        assert attention.mixes_kernels is mixes
