"""The pictures of a planned step: the order of a pipeline's passes, and memory that is as much as was predicted."""

from pathlib import Path
from typing import Any

import pytest

from trainer.config import ModelConfig, ParallelConfig, PretrainConfig
from trainer.plan.__main__ import main
from trainer.plan.machines import GPUS, Machine
from trainer.plan.pictures import COLORS, drawn_passes, memory_over_time, planned_passes, write_pictures
from trainer.plan.prediction import Prediction, Task, memory_of, predict
from trainer.plan.schedule import order

MACHINE = Machine(gpu=GPUS["h100"], gpus=4)
INTERLEAVED: dict[str, Any] = {"pp": 4, "chunks": 3, "schedule": "interleaved_1f1b"}


def planned(micro_batch: int = 8, samples: int = 128, **layout: Any) -> Prediction:
    config = PretrainConfig(global_batch_size=samples, precision="bf16", compile=True)
    task = Task(model=ModelConfig(n_layer=24, n_head=16, n_embd=1024), vocab_size=50257, config=config)
    return predict(task, MACHINE, ParallelConfig(**{"dp_replicate": 1, **layout}), micro_batch)


@pytest.mark.parametrize(("passes", "chunks"), [(8, 2), (12, 3), (4, 3)])
def test_interleaved_passes_have_the_order_of_torchs_schedule(passes: int, chunks: int) -> None:
    from torch.distributed.pipelining import schedules

    kinds: Any = schedules._ComputationType  # pyright: ignore[reportPrivateUsage]
    words = {kinds.FORWARD: "forward", kinds.FULL_BACKWARD: "backward"}
    pp = 4
    schedule: Any = object.__new__(schedules.ScheduleInterleaved1F1B)
    schedule.pp_group_size, schedule.n_local_stages, schedule._n_microbatches = pp, chunks, passes
    schedule.number_of_rounds = max(1, passes // pp)
    schedule.microbatches_per_round = passes // schedule.number_of_rounds
    for rank in range(pp):
        actions = [each for each in schedule._calculate_single_rank_operations(rank) if each]
        computed = [
            (words[each.computation_type], each.stage_index, each.microbatch_index)
            for each in actions
            if each.computation_type in words
        ]
        assert order("interleaved_1f1b", pp, chunks, passes, rank) == computed


def test_passes_of_1f1b_and_gpipe() -> None:
    assert [f"{kind[0]}{micro}" for kind, _, micro in order("1f1b", 3, 1, 4, rank=0)] == (
        ["f0", "f1", "f2", "b0", "f3", "b1", "b2", "b3"]
    )
    assert [f"{kind[0]}{micro}" for kind, _, micro in order("1f1b", 3, 1, 3, rank=2)] == (
        ["f0", "b0", "f1", "b1", "f2", "b2"]
    )
    assert [f"{kind[0]}{micro}" for kind, _, micro in order("gpipe", 3, 1, 2, rank=1)] == ["f0", "f1", "b0", "b1"]
    assert [stage for _, stage, _ in order("zbv", 2, 2, 2, rank=0)][:4] == [0, 0, 3, 3]


@pytest.mark.parametrize("layout", [{}, {"pp": 4}, {"pp": 4, "activation_checkpointing": "full"}, INTERLEAVED])
def test_the_memory_of_a_step_begins_and_ends_without_activations_and_peaks_as_predicted(
    layout: dict[str, Any],
) -> None:
    found = planned(**layout)
    passes = planned_passes(found, MACHINE)
    for rank in range(found.parallel.pp):
        moments = memory_over_time(found, MACHINE, passes, rank)
        assert moments[0].memory["activations"] == 0
        assert moments[-1].memory["activations"] == pytest.approx(0, abs=1)
        predicted = memory_of(found.task, found.parallel, 8, found.passes, rank)
        most = max(moment.memory["activations"] for moment in moments)
        assert most == pytest.approx(predicted["activations"])


@pytest.mark.parametrize("layout", [{"pp": 4}, INTERLEAVED, {}])
def test_a_drawn_step_takes_as_long_as_was_predicted(layout: dict[str, Any]) -> None:
    found = planned(micro_batch=4, **layout)
    passes = planned_passes(found, MACHINE)
    drawn = found.passes if found.parallel.pp > 1 else 2
    assert len(passes) == 2 * drawn * found.parallel.pp * found.parallel.chunks
    seconds = found.step - found.seconds["update"] - found.seconds["sums"]
    assert max(each.end_ms for each in passes) / 1e3 == pytest.approx(seconds * drawn / found.passes, rel=0.05)


@pytest.mark.parametrize(
    "layout", [INTERLEAVED, {"tp": 4}, {"offload": "optimizer"}, {"zero": 3, "dp_shard": 4}], ids=str
)
def test_every_part_of_the_memory_is_drawn(layout: dict[str, Any]) -> None:
    found = planned(**layout)
    assert not set(memory_of(found.task, found.parallel, 8, found.passes, 0)) - set(COLORS)


def test_of_a_long_step_the_first_micro_batches_are_drawn() -> None:
    assert drawn_passes(planned(micro_batch=1, pp=4)) == 32
    assert drawn_passes(planned(micro_batch=1, samples=480, **{**INTERLEAVED, "pp": 3})) == 30
    assert drawn_passes(planned(micro_batch=1)) == 2


def test_pictures_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, layout in (("one", {}), ("pipeline", {"pp": 4})):
        files = write_pictures(planned(**layout), MACHINE, tmp_path / folder)
        assert [file.name for file in files] == ["memory.png", *(["pipeline.png"] if layout else [])]
        assert all(file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 10_000 for file in files)
    monkeypatch.chdir(Path(__file__).parents[3])
    words = ["--model", "gpt2", "--gpus", "1", "--gpu", "h100", "--pictures", str(tmp_path / "command")]
    assert main(words) == 0
    assert f"picture: {tmp_path / 'command' / 'memory.png'}" in capsys.readouterr().out
