"""The loss scale of fp16 grows while it can, falls when it must, and is part of a checkpoint."""

import dataclasses
import logging
from typing import Any

import pytest
import torch

from pipelines.errors import ConfigError
from trainer.config import LossScaleConfig
from trainer.loop.precision import LossScale, compute_dtype, resolve

CONFIG = LossScaleConfig(initial=64.0, growth_interval=3, hysteresis=1)


def scales(scale: LossScale, steps: str) -> list[float]:
    """The scale after each of some steps: `.` had finite gradients, `!` an overflow."""
    values: list[float] = []
    for step in steps:
        used = scale.update(finite=step == ".")
        assert used == (step == "."), "a step is used exactly when its gradients are finite"
        values.append(scale.value)
    return values


def made(**changes: Any) -> LossScale:
    return LossScale(dataclasses.replace(CONFIG, **changes), "fp16")


def test_it_grows_after_so_many_steps_without_an_overflow() -> None:
    assert scales(made(), ".......") == [64, 64, 128, 128, 128, 256, 256]
    assert scales(made(growth_factor=4.0, growth_interval=2), "....") == [64, 256, 256, 1024]


def test_an_overflow_lets_it_fall_and_the_steps_count_anew() -> None:
    assert scales(made(), "..!...") == [64, 64, 32, 32, 32, 64]
    assert scales(made(backoff_factor=0.25), "!!") == [16, 4]


def test_with_hysteresis_it_falls_at_the_last_of_several_overflows_and_at_each_later_one() -> None:
    assert scales(made(hysteresis=2), "!.!!") == [64, 64, 32, 16]


def test_growth_forgives_the_overflows_before() -> None:
    assert scales(made(hysteresis=2), "!...!!") == [64, 64, 64, 128, 128, 64]
    assert scales(made(hysteresis=2), "!..!..") == [64, 64, 64, 32, 32, 32]


def test_it_stays_between_its_floor_and_its_ceiling() -> None:
    assert scales(made(minimum=30.0), "!!!") == [32, 30, 30]
    assert scales(made(maximum=100.0, growth_interval=1), "...") == [100, 100, 100]


def test_it_goes_on_from_a_record_as_if_nothing_had_been() -> None:
    steps = "!..!...!!"
    whole = scales(made(hysteresis=2), steps)
    for cut in range(len(steps)):
        first, second = made(hysteresis=2), made(hysteresis=2)
        values = scales(first, steps[:cut])
        second.restore(first.record())
        assert values + scales(second, steps[cut:]) == whole


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_other_precisions_need_none(precision: Any) -> None:
    """Also where a step has no finite gradients: that ends the run with an error, so nothing is skipped in silence."""
    scale = LossScale(CONFIG, precision)
    assert scale.value == 1.0
    assert all(scale.update(finite=finite) for finite in (True, False, True, True, True))
    assert scale.value == 1.0


def test_each_precision_has_its_dtype_and_a_gpu_without_bf16_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert compute_dtype("fp32", cpu) == torch.float32
    assert compute_dtype("bf16", cpu) == torch.bfloat16
    assert compute_dtype("fp16", cpu) == torch.float16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert compute_dtype("fp16", gpu) == torch.float16
    with pytest.raises(ConfigError, match="this GPU has no bf16 units; set precision to fp32"):
        compute_dtype("bf16", gpu)


def test_auto_is_bf16_on_gpus_that_have_it_and_fp32_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    supported: list[bool] = [True]
    # Emulated, it is slower than fp32.
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda *, including_emulation: including_emulation or supported[0]
    )
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old GPU")
    with caplog.at_level(logging.WARNING):
        assert (resolve("auto", cpu), resolve("auto", gpu)) == ("fp32", "bf16")
        assert (resolve("fp16", cpu), resolve("fp32", gpu)) == ("fp16", "fp32")
        assert not caplog.messages
        supported[0] = False
        assert resolve("auto", gpu) == "fp32"
    assert caplog.messages == ["precision auto: Old GPU has no bf16 units, so it is fp32"]
