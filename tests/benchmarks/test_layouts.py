"""The layouts on GPUs: what this torch or machine cannot do is told from what failed."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import blocks, layouts
from benchmarks.gpu import shards
from pipelines.errors import UserError
from tests.nightly import nightly_but
from tests.trainer import triton_stand_in
from trainer.checks import check_pretrain
from trainer.config import ParallelConfig
from trainer.processes import launch


def compute(_: Path, changes: dict[str, Any], parallel: ParallelConfig) -> dict[str, Any]:
    """As far as a case goes before its processes start; those with tensor parallelism then die."""
    check_pretrain(dataclasses.replace(layouts.TRAINING, **changes), layouts.MODEL, parallel)
    launch.count_processes(parallel)
    if parallel.tp > 1:
        raise UserError("training process 1 was killed")
    return {}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the number of GPUs and torch's release; every comparison fits."""
    monkeypatch.setattr(layouts, "compared", lambda *_: ("0 | 0 | 0", True))

    def prepare(gpus: int, torch: tuple[int, int]) -> None:
        monkeypatch.setattr("trainer.processes.launch._count_gpus", lambda: gpus)
        monkeypatch.setattr("trainer.checks._torch_release", lambda: torch)

    return prepare


def ends(rows: list[str]) -> dict[str, str]:
    found = [row.split(" | ")[-1].strip(" |") for row in rows]
    return dict(zip((case.name for case in layouts.CASES), found, strict=True))


def test_a_schedule_that_this_torch_cannot_do_is_refused_and_not_failed(
    machine: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    machine(4, (2, 11))
    rows = layouts.check_parity(tmp_path, 4, layouts.CASES, compute)
    split = {case.name for case in layouts.CASES if case.parallel.get("schedule") in ("zbv", "dualpipev")}
    split.add("pipeline 2 x data 2, interleaved zero bubble")
    killed = {case.name for case in layouts.CASES if case.parallel.get("tp", 1) > 1} - split
    assert {name for name, end in ends(rows).items() if end == "refused on this torch"} == split
    assert {name for name, end in ends(rows).items() if end == "FAILED"} == killed
    counts = Counter(ends(rows).values())
    assert layouts.counted(rows) == (
        f"{len(rows)} cases: {counts['ok']} ok, {len(split)} refused on this torch, 0 too few GPUs, "
        f"{len(killed)} FAILED."
    )
    machine(4, (2, 13))
    assert "refused" not in "".join(layouts.check_parity(tmp_path, 4, layouts.CASES, compute))
    capsys.readouterr()


def test_each_case_is_compared_with_one_gpu_of_its_precision_and_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pairs: list[tuple[dict[str, Any], dict[str, Any], str]] = []
    monkeypatch.setattr(layouts, "compared", lambda *given: pairs.append(given) or ("0 | 0 | 0", True))
    layouts.check_parity(tmp_path, 4, layouts.CASES, lambda _, changes, __: changes)
    assert len(pairs) == len(layouts.CASES)
    for found, reference, limits in pairs:
        assert reference == {"precision": "fp32", **{k: v for k, v in found.items() if k in layouts.SHAPING}}
        assert limits == reference.get("optimizer", reference["precision"])
    assert {limits for *_, limits in pairs} == {*layouts.LIMITS}
    capsys.readouterr()


def test_two_gpus_compute_every_case_of_one_kind_and_say_what_needs_more(
    machine: Any, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    machine(2, (2, 13))
    found = ends(layouts.check_parity(tmp_path, 2, layouts.CASES, compute))
    degrees = ("pp", "tp", "dp_shard", "dp_replicate")
    kinds = {case.name: sum(name in case.parallel for name in degrees) for case in layouts.CASES}
    assert {name for name, end in found.items() if end == "too few GPUs"} == {
        n for n, kind in kinds.items() if kind > 1
    }
    assert found["ZeRO 3"] == found["pipeline 4, 1F1B"] == "ok"
    assert found["tensor 4"] == "FAILED"
    capsys.readouterr()


@pytest.mark.nightly
def test_pretraining_and_fine_tuning_are_compared_with_one_process(tmp_path: Path) -> None:
    one, two = (ParallelConfig(dp_replicate=number, device="cpu", determinism="exact") for number in (1, 2))
    for compute in (layouts.pretrained, layouts.tuned):
        alone = compute(tmp_path, {}, one)
        cells, fits = layouts.compared(compute(tmp_path, {}, two), alone, "fp32")
        assert fits, f"{compute.__name__}: {cells}"
        faster = compute(tmp_path, {"lr": 2e-3}, two)
        assert not layouts.compared(faster, alone, "fp32")[1]


def test_a_speed_that_the_trainer_refuses_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(layouts, "shards", lambda folder, *_: folder)
    assert "FAILED: parallel.tp 4" in layouts.measure_speeds(tmp_path, [layouts.Speed("1.5B", 16, 4, {"tp": 4})])[0]
    capsys.readouterr()


def test_every_speed_is_one_that_the_trainer_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(layouts, "shards", lambda folder, *_: folder)
    monkeypatch.setattr(launch, "launch", lambda *_: layouts.Timed(1.0, 0.1, 1.0, 1))
    rows = layouts.measure_speeds(tmp_path, layouts.SPEEDS)
    assert len(rows) == len(layouts.SPEEDS)
    assert not [row for row in rows if "FAILED" in row]
    capsys.readouterr()


@pytest.mark.parametrize("size", [(16, 3, 2, 8), (2, 24, 16, 1)], ids=["heads 3 wide", "one token"])
def test_blocks_are_compared_with_fp64_in_each_precision(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, size: tuple[int, int, int, int]
) -> None:
    triton_stand_in.install(monkeypatch)
    rows = blocks.rows([blocks.Size("tiny", *size)], torch.device("cpu"))
    assert [row.split(" | ")[1] for row in rows] == ["bf16", "fp16", "fp8"]
    assert all(row.endswith("| ok |") for row in rows), rows
    assert all(row.count("|") == head.count("|") for row in rows for head in blocks.HEAD)
    assert float(rows[2].split(" | ")[2]) > 3 * float(rows[2].split(" | ")[3]), "fp8 took no products of its own"
    monkeypatch.setattr(blocks, "MORE", 0.01)
    assert blocks.row(blocks.Size("tiny", *size), "bf16", torch.device("cpu")).endswith("| FAILED |")
    capsys.readouterr()


@pytest.mark.parametrize("words", [["--only", "tensor5"], ["--no-parity"], ["--skip", "e", "i"]])
def test_choosing_no_row_is_an_error(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, words: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    monkeypatch.setattr("sys.argv", ["layouts", str(tmp_path), *words])
    with pytest.raises(SystemExit, match="2"):
        layouts.main()
    assert "no row is left" in capsys.readouterr().err


def test_two_gpus_time_what_they_are_enough_for(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    timed: list[layouts.Speed] = []
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a GPU")
    monkeypatch.setattr("sys.argv", ["layouts", str(tmp_path), "--speed", "--no-parity"])
    monkeypatch.setattr(layouts, "measure_speeds", lambda _, speeds, __: timed.extend(speeds) or [])
    layouts.main()
    assert timed == [each for each in layouts.SPEEDS if each.gpus <= 2 and not each.nanogpt]
    assert {each.gpus for each in timed} == {1, 2}
    timed.clear()
    monkeypatch.setattr("sys.argv", ["layouts", str(tmp_path), "--speed", "--no-parity", "--nanogpt", "model.py"])
    layouts.main()
    assert timed == [each for each in layouts.SPEEDS if each.gpus <= 2]
    capsys.readouterr()


@pytest.mark.parametrize("parallel", nightly_but([{}, {"dp_replicate": 2}]))
def test_exact_runs_of_one_layout_end_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, parallel: dict[str, Any]
) -> None:
    monkeypatch.setitem(layouts.SIZES, "tiny", (1, 2, 16))
    monkeypatch.setattr(layouts, "shards", lambda folder, *_: shards(tmp_path / folder.name, 64, 8, 2_000, 1))
    on_cpus = {**parallel, "device": "cpu"}
    rows = layouts.measure_exact(tmp_path, [layouts.Speed("tiny", 1, 1, on_cpus, compile=False)])
    assert "| the same bits | ok |" in rows[0]
    capsys.readouterr()


def test_a_digest_sees_one_bit_and_the_place_of_each() -> None:
    cpu, ones = torch.device("cpu"), torch.ones(3, 5)
    before = layouts.digest({"a": ones, "b": torch.zeros(2)}, cpu)
    assert before == layouts.digest({"b": torch.zeros(2), "a": ones.clone()}, cpu)
    other = ones.clone()
    other.view(torch.int32)[1, 2] ^= 1
    swapped = torch.stack([other[0], other[2], other[1]])
    digests = {layouts.digest({"a": each, "b": torch.zeros(2)}, cpu) for each in (other, swapped)}
    assert len({before, *digests, layouts.digest({"b": ones, "a": torch.zeros(2)}, cpu)}) == 4
