"""`determinism: portable`: every process that computes has one instruction set, and publishes the same bytes."""

import dataclasses
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.command import StageSpec
from pipelines.errors import ConfigError
from tests.trainer import small
from tests.trainer.processes.test_launch import ROOT
from tests.trainer.small import Road, pretrain_arguments
from trainer.checks import check_portable
from trainer.config import ParallelConfig
from trainer.processes import portable

PORTABLE = ParallelConfig(determinism="portable", device="cpu", dp_replicate=1)
SHOWS = """
import os, sys
from trainer.processes import process
before = process.set_arithmetic
def show(**how):
    import torch
    before(**how)
    named = {name: os.environ.get(name) for name in process.portable.VARIABLES}
    with open(os.environ["SHOWN"], "a") as file:
        print(torch.backends.cpu.get_cpu_capability(), named == process.portable.VARIABLES, file=file)
process.set_arithmetic = show
"""
"""A sitecustomize: each process notes its instruction set and variables where it sets its arithmetic."""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="portable is for x86-64 processors")


def command(module: str, *arguments: str, **variables: str) -> None:
    """Run a stage as a command."""
    plain = {name: value for name, value in os.environ.items() if name not in portable.VARIABLES}
    search = os.pathsep.join((variables.pop("first", ""), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**plain, "PYTHONPATH": search, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.nightly
def test_every_process_that_computes_has_one_instruction_set(road: Road, tmp_path: Path) -> None:
    """Two training processes, and the evaluation, which computes in the stage's own process."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(SHOWS)
    environment = {"first": str(tmp_path / "first"), "SHOWN": str(tmp_path / "shown")}
    how = ("--parallel.determinism", "portable", "--parallel.device", "cpu")
    layout = ("--parallel.dp-replicate", "2", "--steps", "1", "--warmup-steps", "0")
    command("trainer.pretrain", *pretrain_arguments(road.train, road.val, tmp_path / "p", *how, *layout), **environment)
    command(
        "trainer.evaluate", str(road.export), str(road.val), str(tmp_path / "e"), "--texts", "0", *how, **environment
    )
    assert (tmp_path / "shown").read_text().splitlines() == ["DEFAULT True"] * 3


@pytest.mark.nightly
def test_what_the_user_set_for_the_machine_changes_no_byte(road: Road, tmp_path: Path) -> None:
    """Without `portable` the two differ on any processor with AVX2."""
    how = ("--parallel.determinism", "portable", "--parallel.device", "cpu", "--parallel.dp-replicate", "1")
    for name, variables in (
        ("plain", {}),
        ("avx2", {"ATEN_CPU_CAPABILITY": "avx2", "GLIBC_TUNABLES": "glibc.malloc.check=0"}),
    ):
        arguments = pretrain_arguments(road.train, road.val, tmp_path / name, *how, "--steps", "5")
        command("trainer.pretrain", *arguments, **variables)
    plain, other = (small.contents(tmp_path / name) for name in ("plain", "avx2"))
    weights = [name for name in plain if "step-" in str(name)]
    assert weights
    assert {name: plain[name] for name in weights} == {name: other[name] for name in weights}


def test_a_process_that_started_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in portable.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="portable: this process started without ATEN_CPU_CAPABILITY='default' MKL"):
        portable.require(PORTABLE)
    portable.require(dataclasses.replace(PORTABLE, determinism="exact"))
    for name, value in portable.VARIABLES.items():
        monkeypatch.setenv(name, value)
    portable.require(PORTABLE)


def test_other_settings_of_the_c_library_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    merged = portable.environment(PORTABLE)["GLIBC_TUNABLES"]
    assert merged == f"glibc.malloc.check=1:{portable.VARIABLES['GLIBC_TUNABLES']}"
    monkeypatch.setenv("GLIBC_TUNABLES", merged)
    assert "GLIBC_TUNABLES" not in portable.environment(PORTABLE)


def test_what_would_depend_on_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_portable(PORTABLE)
    with pytest.raises(ConfigError, match=r"parallel.device auto with determinism portable"):
        check_portable(dataclasses.replace(PORTABLE, device="auto"))
    with pytest.raises(ConfigError, match=r"pretrain.compile with parallel.determinism portable"):
        check_portable(PORTABLE, compiled="pretrain")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(ConfigError, match="is for x86-64 processors, and this is arm64"):
        check_portable(PORTABLE)


@pytest.mark.parametrize("name", ["pretrain", "finetune", "evaluate", "glue_score"])
def test_each_stage_that_computes_with_torch_starts_again_with_the_variables(name: str) -> None:
    assert StageSpec.load(f"trainer.{name}").environment is portable.environment


def test_only_a_portable_run_is_another_run() -> None:
    assert PORTABLE.identity() == {"determinism": "portable"}
    assert ParallelConfig(pp=2, determinism="exact").identity() == {}
