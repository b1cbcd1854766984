"""Throughput by its formula, and memory."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.loop import metrics
from trainer.model import Architecture

GPT2 = Architecture(n_layer=12, n_head=12, n_embd=768, n_positions=1024, dropout=0.0, vocab_size=50257, pad_vocab_to=64)
CPU = torch.device("cpu")


def training(device: torch.device = CPU, processes: int = 8) -> Any:
    mesh = SimpleNamespace(device=device, data_ranks=processes // 4, pp=2, tp=2)
    return SimpleNamespace(mesh=mesh, model=SimpleNamespace(shape=GPT2), tokens=0, position=0)


def test_gpt2_needs_855_million_flops_per_token_at_its_full_length() -> None:
    """NanoGPT's estimate_mfu: N = 124,439,808 - 786,432 positions = 123,653,376; 6 N + 12 * 12 * 768 * 1024."""
    assert metrics.flops_per_token(GPT2, 1024) == 6 * 123_653_376 + 12 * 12 * 768 * 1024


def test_a_classifier_looks_its_tokens_up_and_multiplies_none() -> None:
    import dataclasses

    classifier = dataclasses.replace(GPT2, num_labels=2)
    saved = metrics.flops_per_token(GPT2, 64) - metrics.flops_per_token(classifier, 64)
    assert saved == 6 * 50257 * 768


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989.0),
        ("NVIDIA H100 80GB HBM3", 989.0),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-40GB", 312.0),
        ("NVIDIA A10G", 70.0),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA B200", 2250.0),
        ("Something New", None),
    ],
)
def test_mfu_is_the_share_of_the_devices_peak(monkeypatch: pytest.MonkeyPatch, name: str, peak: float | None) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    found = metrics.rates(training(torch.device("cuda", 0)), 1024 * 80, 80, 2.0)
    assert (found.tokens_per_second, found.samples_per_second) == (40960, 40)
    assert found.tflops == pytest.approx(855_166_464 * 40960 / 8 / 1e12)
    assert found.mfu == (None if peak is None else pytest.approx(found.tflops / peak))


def test_a_cpu_has_no_mfu() -> None:
    assert metrics.rates(training(), 1024, 1, 1.0).mfu is None


def test_a_meter_counts_from_where_it_was_set_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((10.0, 12.0, 12.0, 16.0))
    monkeypatch.setattr(metrics.time, "monotonic", lambda: next(now))
    run = training()
    meter = metrics.Meter(run)
    run.tokens, run.position = 1000, 10
    assert meter.read().tokens_per_second == 500
    meter.restart()
    run.tokens, run.position = 1400, 12
    assert (meter.read().tokens_per_second) == 100


@pytest.mark.nightly
def test_the_peak_of_a_process_on_a_cpu_is_all_its_memory() -> None:
    before = metrics.peak_memory(CPU)["resident_gb"]
    more = bytearray(b"x") * int(1e9 * before + 3e8)
    assert metrics.peak_memory(CPU)["resident_gb"] > before + 0.25
    del more
