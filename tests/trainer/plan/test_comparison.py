"""A run beside what was predicted for it."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from trainer.config import ModelConfig, ParallelConfig, PretrainConfig
from trainer.plan import Layout, Plan
from trainer.plan.comparison import compare
from trainer.pretrain import PretrainJob, compared

MODEL = ModelConfig(n_layer=12, n_head=12, n_embd=768)
CONFIG = PretrainConfig(global_batch_size=512, precision="bf16", compile=True, steps=10)
LAYOUT = Layout(processes=1, data_ranks=1, micro_batch_size=64)


def segment(device: str) -> dict[str, Any]:
    """One of 124M on one H200 (benchmarks/README.md, 561,327 tokens per second, 24 GiB)."""
    layout = {"offload": "none", "offload_fraction": 1.0}
    return {"device": device, "layout": layout, "median_step_seconds": 0.934, "peak_memory_gb": 25.8, "to_step": 10}


def test_a_run_on_a_known_gpu_is_compared() -> None:
    found = compare(CONFIG, MODEL, ParallelConfig(), LAYOUT, 50257, segment("NVIDIA H200"))
    assert found is not None
    assert found["step_error"] == pytest.approx(found["step_seconds"] / 0.934 - 1, abs=1e-3)
    assert abs(found["step_error"]) < 0.2
    assert abs(found["memory_error"]) < 0.1


def test_offload_auto_is_compared_as_what_it_became() -> None:
    auto, there = ParallelConfig(offload="auto"), {"offload": "optimizer", "offload_fraction": 0.5}
    became = {**segment("NVIDIA H200"), "layout": there}
    named = compare(CONFIG, MODEL, ParallelConfig(offload="optimizer", offload_fraction=0.5), LAYOUT, 50257, became)
    assert compare(CONFIG, MODEL, auto, LAYOUT, 50257, became) == named
    assert named != compare(CONFIG, MODEL, ParallelConfig(), LAYOUT, 50257, segment("NVIDIA H200"))


def test_fp8_that_no_product_could_be_in_is_compared_as_the_bf16_it_ran_in() -> None:
    asked, bf16 = dataclasses.replace(CONFIG, precision="fp8"), {**segment("NVIDIA H200"), "precision": "bf16"}
    found = compare(asked, MODEL, ParallelConfig(), LAYOUT, 50257, bf16)
    assert found == compare(CONFIG, MODEL, ParallelConfig(), LAYOUT, 50257, segment("NVIDIA H200"))
    assert found != compare(asked, MODEL, ParallelConfig(), LAYOUT, 50257, {**bf16, "precision": "fp8"})


@pytest.mark.parametrize("device", ["cpu", "Quadro P600"])
def test_nothing_is_said_of_cpus_and_unknown_gpus(device: str) -> None:
    assert compare(CONFIG, MODEL, ParallelConfig(), LAYOUT, 50257, segment(device)) is None


def test_the_provenance_and_the_log_have_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = PretrainJob(
        config=CONFIG,
        model=MODEL,
        parallel=ParallelConfig(),
        plan=Plan(steps=10, warmup_steps=1, layout=LAYOUT),
        train=tmp_path,
        val=tmp_path,
        data={},
        scratch=tmp_path,
    )
    with caplog.at_level(logging.INFO):
        segments = compared(job, [segment("cpu"), segment("NVIDIA H200")], 50257)
    assert "planned" not in segments[0]
    assert segments[1]["planned"]["memory_gb"] > 20
    (line,) = caplog.messages
    (line,) = caplog.messages
    assert line.startswith("pretrain: a step took 934.0 ms, planned 8")
    assert "memory 25.8 GB, planned 2" in line
    assert compared(job, [segment("cpu")], 50257) == [segment("cpu")]
