"""The cases of layouts on GPUs: what this torch or machine cannot do is told from what failed."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks import layout_parity
from pipelines.errors import UserError
from trainer.checks import check_pretrain
from trainer.config import ParallelConfig
from trainer.processes import launch


def compute(_: Path, changes: dict[str, Any], parallel: ParallelConfig) -> dict[str, Any]:
    """As far as a case goes before its processes start; those with tensor parallelism then die."""
    check_pretrain(dataclasses.replace(layout_parity.TRAINING, **changes), layout_parity.MODEL, parallel)
    launch.count_processes(parallel)
    if parallel.tp > 1:
        raise UserError("training process 1 was killed")
    return {}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the number of GPUs and torch's release; every comparison fits."""
    monkeypatch.setattr(layout_parity, "compared", lambda *_: ("0 | 0 | 0", True))

    def prepare(gpus: int, torch: tuple[int, int]) -> None:
        monkeypatch.setattr("trainer.processes.launch._count_gpus", lambda: gpus)
        monkeypatch.setattr("trainer.checks._torch_release", lambda: torch)

    return prepare


def ends(rows: list[str]) -> dict[str, str]:
    found = [row.split(" | ")[-1].strip(" |") for row in rows]
    return dict(zip((case.name for case in layout_parity.CASES), found, strict=True))


def test_a_schedule_that_this_torch_cannot_do_is_refused_and_not_failed(
    machine: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    machine(4, (2, 11))
    rows = layout_parity.check_parity(tmp_path, 4, layout_parity.CASES, compute)
    split = {case.name for case in layout_parity.CASES if case.parallel.get("schedule") in ("zbv", "dualpipev")}
    split.add("pipeline 2 x data 2, interleaved zero bubble")
    killed = {case.name for case in layout_parity.CASES if case.parallel.get("tp", 1) > 1} - split
    assert {name for name, end in ends(rows).items() if end == "refused on this torch"} == split
    assert {name for name, end in ends(rows).items() if end == "FAILED"} == killed
    counts = Counter(ends(rows).values())
    assert layout_parity.counted(rows) == (
        f"{len(rows)} cases: {counts['ok']} ok, {len(split)} refused on this torch, 0 too few GPUs, "
        f"{len(killed)} FAILED."
    )
    machine(4, (2, 13))
    assert "refused" not in "".join(layout_parity.check_parity(tmp_path, 4, layout_parity.CASES, compute))
    capsys.readouterr()


def test_each_case_is_compared_with_one_gpu_of_its_precision_and_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pairs: list[tuple[dict[str, Any], dict[str, Any], str]] = []
    monkeypatch.setattr(layout_parity, "compared", lambda *given: pairs.append(given) or ("0 | 0 | 0", True))
    layout_parity.check_parity(tmp_path, 4, layout_parity.CASES, lambda _, changes, __: changes)
    assert len(pairs) == len(layout_parity.CASES)
    for found, reference, limits in pairs:
        assert reference == {"precision": "fp32", **{k: v for k, v in found.items() if k in layout_parity.SHAPING}}
        assert limits == reference.get("optimizer", reference["precision"])
    assert {limits for *_, limits in pairs} == {*layout_parity.LIMITS}
    capsys.readouterr()


def test_two_gpus_compute_every_case_of_one_kind_and_say_what_needs_more(
    machine: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    machine(2, (2, 13))
    found = ends(layout_parity.check_parity(tmp_path, 2, layout_parity.CASES, compute))
    degrees = ("pp", "tp", "dp_shard", "dp_replicate")
    kinds = {case.name: sum(name in case.parallel for name in degrees) for case in layout_parity.CASES}
    assert {name for name, end in found.items() if end == "too few GPUs"} == {
        n for n, kind in kinds.items() if kind > 1
    }
    assert found["ZeRO 3"] == found["pipeline 4, 1F1B"] == "ok"
    assert found["tensor 4"] == "FAILED"
    capsys.readouterr()


@pytest.mark.nightly
def test_pretraining_and_fine_tuning_are_compared_with_one_process(tmp_path: Path) -> None:
    one, two = (ParallelConfig(dp_replicate=number, device="cpu", determinism="exact") for number in (1, 2))
    for compute in (layout_parity.pretrained, layout_parity.tuned):
        alone = compute(tmp_path, {}, one)
        cells, fits = layout_parity.compared(compute(tmp_path, {}, two), alone, "fp32")
        assert fits, f"{compute.__name__}: {cells}"
        faster = compute(tmp_path, {"lr": 2e-3}, two)
        assert not layout_parity.compared(faster, alone, "fp32")[1]
