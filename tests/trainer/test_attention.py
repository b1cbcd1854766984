"""Attention with one library's kernel forward and another's backward: torch's values, gradients and recomputation.

Its kernels are those of GPUs. Here the CPU's flash attention stands in for both, under their names and signatures, so
that everything around them is the real thing; `python -m benchmarks.layouts` compares the kernels themselves.
"""

import importlib.util
import logging
import sys
from collections.abc import Callable, Generator
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from trainer import attention
from trainer.config import ParallelConfig
from trainer.model import Architecture, LanguageModel
from trainer.parallel import _policy, parallelize
from trainer.parallel.mesh import Mesh

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


@pytest.fixture
def fa4(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """FlashAttention-4's interface, with the CPU's flash attention behind it."""

    def bwd(
        q: Tensor, k: Tensor, v: Tensor, y: Tensor, above: Tensor, lse: Tensor, *, causal: bool, deterministic: bool
    ) -> tuple[Tensor, ...]:
        calls.append("fa4, exact" if deterministic else "fa4")
        q, k, v, y, above = (each.transpose(1, 2) for each in (q, k, v, y, above))
        assert lse.shape == q.shape[:3]
        assert lse.is_contiguous()
        found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(above, q, k, v, y, lse, 0.0, causal)
        return tuple(each.transpose(1, 2).contiguous() for each in found)

    package, cute, interface = (ModuleType(f"flash_attn{more}") for more in ("", ".cute", ".cute.interface"))
    package.__spec__ = ModuleSpec("flash_attn", None)
    interface._flash_attn_bwd = bwd  # pyright: ignore[reportAttributeAccessIssue]
    for module in (package, cute, interface):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an old GPU")
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(attention, "mixes_kernels", False)
    monkeypatch.setattr(attention, "takes_fa4", True)
    before = torch.are_deterministic_algorithms_enabled()  # which another test of this process may have left on
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(before)


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


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.usefixtures("fa4")
def test_flash_attention_4_takes_the_backward_pass(compiled: bool) -> None:
    wanted = gradients(torch_own)
    found = gradients(torch.compile(mixed, fullgraph=True, dynamic=False) if compiled else mixed)
    for each, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(each, expected, rtol=0, atol=0)
    assert calls == ["cudnn", "fa4"]


@pytest.mark.usefixtures("fa4")
def test_flash_attention_4_is_asked_for_the_same_bits_where_training_is() -> None:
    torch.use_deterministic_algorithms(True)
    gradients(mixed)
    assert calls == ["cudnn", "fa4, exact"]


GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.usefixtures("fa4")
def test_flash_attention_4_is_taken_where_it_is_asked_for(width: int) -> None:
    attention.choose_fa4(wanted=False, device=GPU, head_width=width, says=True)
    assert not attention.takes_fa4
    attention.choose_fa4(wanted=True, device=GPU, head_width=width, says=True)
    assert attention.takes_fa4


LACKING = {
    "CPU": "it needs a GPU",
    "old": "it is not taken on an old GPU",
    "wide": "it is taken for heads 64 or 128 wide, and these are 80",
    "not installed": "package flash-attn-4 is not installed (pip install 'millrace-gpt2[fa4]')",
    "newer": "this version of package flash-attn-4 is another than expected",
}


@pytest.mark.parametrize("case", LACKING)
@pytest.mark.usefixtures("fa4")
def test_what_flash_attention_4_lacks_is_said_once_and_torch_attends(
    case: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if case == "old":
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    elif case == "not installed":
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "flash_attn" else find(name))
    elif case == "newer":
        monkeypatch.delattr(sys.modules["flash_attn.cute.interface"], "_flash_attn_bwd")
    device, width = torch.device("cpu") if case == "CPU" else GPU, 80 if case == "wide" else 64
    with caplog.at_level(logging.WARNING):
        for says in (True, False):
            attention.choose_fa4(wanted=True, device=device, head_width=width, says=says)
    assert caplog.text.count(f"parallel.attention fa4: {LACKING[case]}") == 1
    assert not attention.takes_fa4


def built_for(parallel: ParallelConfig) -> list[str]:
    """What one process says of its attention while it builds a model."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("trainer.attention")
    logger.addHandler(handler)
    shape = Architecture(n_layer=1, n_head=4, n_embd=32, n_positions=32, vocab_size=64)
    parallelize(lambda stage: LanguageModel(shape, stage), shape, Mesh(parallel, torch.device("cpu")), parallel)
    logger.removeHandler(handler)
    return said


def test_only_the_first_process_of_a_model_says_it(workers: Any) -> None:
    wanted = ParallelConfig(device="cpu", dp_replicate=2, attention="fa4")
    (first,), others = workers.run(2, built_for, wanted)
    assert first == "parallel.attention fa4: it needs a GPU; attention takes torch's kernels"
    assert others == []
    assert workers.run(1, built_for, ParallelConfig(device="cpu", dp_replicate=1)) == [[]]


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
