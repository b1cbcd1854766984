"""The sixteen defects of the systems that this one follows, each as a test that ours would fail if it had it.

ColossalAI's examples/language/gpt (finetune.py, data.py), its launchers, timers and partition functions, and the older
Titans. What they do is in each docstring, what we do in docs/seeds.md.
"""

import ast
import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from pipelines.command import StageSpec, parse
from pipelines.config import check
from pipelines.errors import ConfigError
from pipelines.project.profiles import compose
from tests.trainer import small
from tests.trainer.loop.test_loop import planned, process
from tests.trainer.parallel.cases import BATCH, STEPS, Case, References, merged, trained
from tests.trainer.processes.test_process import SRUN
from tests.trainer.small import Road
from tests.trainer.test_finetune import finetune
from trainer.checks import check_pretrain
from trainer.config import FinetuneConfig, ModelConfig, ParallelConfig, PretrainConfig
from trainer.finetune import FinetuneJob
from trainer.loop import metrics
from trainer.loop.optimizer import AdamW, OptimizerConfig
from trainer.model import Architecture, Classifier, LanguageModel
from trainer.pretrain import PretrainJob
from trainer.processes.process import StopFlag, prepare
from trainer.processes.rank import Rank, rank_from_environment, rendezvous_environment
from trainer.weights.base_model import BaseModel

ROOT = Path(__file__).parents[2]
LAYOUTS = {
    "tensor": ParallelConfig(tp=2, device="cpu"),
    "pipeline": ParallelConfig(pp=2, device="cpu"),
    "data": ParallelConfig(dp_replicate=2, device="cpu"),
}
ROWS = 43
"""Validation rows: neither processes nor batches divide them."""


@pytest.fixture(scope="module")
def glue(road: Road, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("defects") / "toy"
    return small.write_glue(folder, road.tokenizer, {"train": 101, "validation": ROWS})


def fine_tuning(road: Road, glue: Path, folder: Path, parallel: ParallelConfig) -> FinetuneJob:
    config = FinetuneConfig(dropout=0.0, attention_dropout=0.0, lr=1e-3, global_batch_size=16, epsilon=1e-6)
    config = dataclasses.replace(config, micro_batch_size=4, clip_norm=0.5)
    return FinetuneJob(
        config=config,
        parallel=parallel,
        task="toy",
        base=BaseModel(folder=road.export, tokenizer=road.export),
        glue=glue,
        scratch=folder / "scratch",
        plan=small.PLAN,
    )


def tuned(job: FinetuneJob, steps: int) -> dict[str, Any]:
    """Learning rates and losses of some steps, and what is then predicted, as one worker sees them."""
    from trainer.data.glue import GlueRows
    from trainer.finetune import predict_split
    from trainer.finetune import prepare as prepare_tuning
    from trainer.loop.loop import train_step
    from trainer.parallel.mesh import Mesh

    rows = GlueRows(job.glue / "train.arrow")
    training = prepare_tuning(process(), Mesh(job.parallel, torch.device("cpu")), planned(job), rows)
    reports = [train_step(training) for _ in range(steps)]
    predicted = predict_split(training, job.glue / "validation.arrow", rows)
    return {"rates": [r.lr for r in reports], "losses": [r.loss for r in reports], "predicted": predicted}


@pytest.fixture(scope="module")
def runs(
    workers: Any, road: Road, glue: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """What each process of each layout sees of the same fine-tuning."""
    folder = tmp_path_factory.mktemp("layouts")
    one = {"one": workers.run(1, tuned, fine_tuning(road, glue, folder, ParallelConfig(device="cpu")), 6)}
    return one | {
        name: workers.run(2, tuned, fine_tuning(road, glue, folder, layout), 6) for name, layout in LAYOUTS.items()
    }


def test_1_the_learning_rate_is_not_multiplied_by_processes(runs: dict[str, list[dict[str, Any]]]) -> None:
    """finetune.py trains at LEARNING_RATE x world_size, so also times tp and pp."""
    steps = 3 * 7
    expected = [1e-3 * step / 2 if step < 2 else 1e-3 * (1 - (step - 2) / (steps - 2)) for step in range(6)]
    for name, ranks in runs.items():
        for rank in ranks:
            assert rank["rates"] == pytest.approx(expected, rel=1e-12), name
            assert rank["losses"] == pytest.approx(runs["one"][0]["losses"], rel=1e-5), name


@pytest.mark.parametrize("kind", [LanguageModel, Classifier])
def test_2_weights_of_norms_are_not_decayed(kind: Callable[[Architecture], Any]) -> None:
    """finetune.py spares `LayerNorm.weight`, a name that GPT-2 does not have: its norms are ln_1, ln_2 and ln_f."""
    model = kind(Architecture(n_layer=2, n_head=2, n_embd=8, n_positions=8, vocab_size=16, num_labels=2))
    weights = dict(model.named_parameters())
    for weight in weights.values():
        torch.nn.init.ones_(weight)
        weight.grad = torch.zeros_like(weight)
    config = OptimizerConfig.of(FinetuneConfig(weight_decay=0.5), steps=1, warmup_steps=0)
    AdamW(weights, config).update(0.1)
    decayed = {name for name, weight in weights.items() if not torch.all(weight == 1)}
    norms_and_biases = {name for name in weights if "ln_" in name or name.endswith("bias")}
    assert len([name for name in norms_and_biases if name.endswith("weight")]) == 5
    assert decayed == weights.keys() - norms_and_biases
    for name in decayed:
        torch.testing.assert_close(weights[name].detach(), torch.full_like(weights[name], 0.95))


@pytest.mark.nightly
def test_3_scores_are_of_validation_rows_not_of_hidden_test_labels(road: Road, glue: Path, tmp_path: Path) -> None:
    """finetune.py scores on the test split, whose labels are -1 for most tasks."""
    with_test = tmp_path / "glue"
    with_test.mkdir()
    for split in ("train", "validation"):
        (with_test / f"{split}.arrow").write_bytes((glue / f"{split}.arrow").read_bytes())
    with pa.ipc.open_file(str(glue / "validation.arrow")) as file:
        rows = file.read_all()
    hidden = rows.set_column(rows.column_names.index("label"), "label", pa.array([-1] * len(rows), pa.int64()))
    with pa.ipc.new_file(str(with_test / "test.arrow"), hidden.schema) as writer:
        writer.write_table(hidden)
    small.publish(with_test)
    flags = ("--epochs", "1", "--parallel.dp-replicate", "1")
    scores = []
    for name, task in (("without", glue), ("with", with_test)):
        output = tmp_path / name
        assert finetune(road, task, output, *flags) == 0
        scores.append(json.loads((output / "scores.json").read_text()))
        rows = [json.loads(line) for line in (output / "predictions.jsonl").read_text().splitlines()]
        assert {row["split"] for row in rows} == {"validation"}
        assert {row["label"] for row in rows} == {0, 1}
    assert scores[0] == scores[1]
    assert scores[0].keys() == {"validation"}
    assert scores[0]["validation"]["rows"] == ROWS


def test_4_each_validation_row_is_counted_once_in_every_layout(runs: dict[str, list[dict[str, Any]]]) -> None:
    """finetune.py adds a row's prediction once per tp and pp process, and keeps the rows that samplers repeat."""
    one = runs["one"][0]["predicted"]
    assert one["index"] == [7 * i for i in range(ROWS)]
    for name, ranks in runs.items():
        for rank in ranks:
            assert rank["predicted"]["index"] == one["index"], name
            assert rank["predicted"]["label"] == one["label"], name
            np.testing.assert_allclose(rank["predicted"]["logits"], one["logits"], atol=1e-5, rtol=0, err_msg=name)


SWITCHES = [
    (section, field.name)
    for section, cls in (("", PretrainConfig), ("model", ModelConfig), ("parallel", ParallelConfig))
    for field in dataclasses.fields(cls)
    if field.type is bool or field.type == "bool"
]


@pytest.mark.parametrize(("section", "name"), SWITCHES)
def test_5_false_is_false(section: str, name: str) -> None:
    """`type=bool` of argparse takes any word for true: --use_lazy_init False turns it on."""
    spec, flag = StageSpec.load("trainer.pretrain"), f"--{section + '.' if section else ''}{name}".replace("_", "-")
    parameter = {"": "config"}.get(section, section)
    off = f"--{section + '.' if section else ''}no-{name}".replace("_", "-")

    def parsed(*words: str) -> bool:
        return getattr(parse(spec, ["a", "b", "c", *words]).sections[parameter], name)

    given = {words: parsed(*words) for words in ((flag,), (off,))}
    assert given == {(flag,): True, (off,): False}
    for word in ("False", "no", "0"):
        with pytest.raises(ConfigError, match=f"expected TRAIN VAL OUTPUT, got 4 arguments .*'{word}'"):
            parsed(flag, word)


@pytest.mark.parametrize("num_labels", [1, 3])
def test_6_labels_need_not_divide_among_tensor_parallel_processes(
    workers: Any, road: Road, tmp_path: Path, num_labels: int
) -> None:
    """Shardformer splits the head: stsb (1 label) and mnli (3) fail with tp 2."""
    task = small.write_glue(tmp_path / "glue", road.tokenizer, {"train": 40, "validation": 11}, num_labels)
    one = workers.run(1, tuned, fine_tuning(road, task, tmp_path, ParallelConfig(device="cpu")), 4)[0]
    for rank in workers.run(2, tuned, fine_tuning(road, task, tmp_path, LAYOUTS["tensor"]), 4):
        assert rank["losses"] == pytest.approx(one["losses"], rel=1e-5)
        assert np.shape(rank["predicted"]["logits"]) == (11, num_labels)
        np.testing.assert_allclose(rank["predicted"]["logits"], one["predicted"]["logits"], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "layers", "heads", "width", "millions"),
    [("gpt2-medium", 24, 16, 1024, 355), ("gpt2-large", 36, 20, 1280, 774), ("gpt2-xl", 48, 25, 1600, 1558)],
)
def test_7_sizes_are_gpt2s(
    monkeypatch: pytest.MonkeyPatch, name: str, layers: int, heads: int, width: int, millions: int
) -> None:
    """Titans' medium has 8 heads, its large is 1536 wide with 12 heads, its XL has 16 or 32 heads."""
    monkeypatch.chdir(ROOT)
    model = check(ModelConfig, compose("sample", [f"model={name}"])["model"], "model", "params.yaml")
    assert (model.n_layer, model.n_head, model.n_embd) == (layers, heads, width)
    shape = Architecture.of(model, 50257)
    assert round(shape.parameters / 1e6) == millions
    assert shape.n_embd // shape.n_head == 64, "as wide as in every published GPT-2"


def test_8_tera_is_a_thousand_billion(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their TFLOPS divide by 1024^4, a tenth too little, against data sheets that count in 10^12."""
    powers = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for folder in ("trainer", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
        if (ast.unparse(node.left), ast.unparse(node.right)) in {("1024", "4"), ("2", "40")}
    ]
    assert not powers
    shape = Architecture(n_layer=12, n_head=12, n_embd=768, n_positions=1024, vocab_size=50257)
    mesh = SimpleNamespace(device=torch.device("cpu"), data_ranks=2, pp=2, tp=1)
    training: Any = SimpleNamespace(mesh=mesh, model=SimpleNamespace(shape=shape))
    found = metrics.rates(training, tokens=1024 * 1000, samples=1000, seconds=4.0)
    per_token = 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 1024
    assert found.tflops == pytest.approx(per_token * 1024 * 1000 / 4.0 / 4 / 1e12, rel=1e-12)
    monkeypatch.setattr("torch.cuda.max_memory_allocated", lambda *_: 80_000_000_000)
    monkeypatch.setattr("torch.cuda.max_memory_reserved", lambda *_: 80_000_000_000)
    assert set(metrics.peak_memory(torch.device("cuda")).values()) == {80.0}


def test_9_under_slurm_the_same_command_line_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their scripts read args.config and args.host, which their parser does not define: the Slurm path cannot start."""
    params = sample_parameters(monkeypatch, tmp_path)
    arguments = ["train", "val", "out", "--params", str(params), "--steps", "5", "--warmup-steps", "0"]
    spec = StageSpec.load("trainer.pretrain")
    alone = parse(spec, arguments)
    for key, value in SRUN.items():
        monkeypatch.setenv(key, value)
    assert parse(spec, arguments) == alone
    assert alone.sections["config"].steps == 5
    place = rank_from_environment(os.environ)
    assert place is not None
    assert place == Rank(5, 8, 1, 4)
    found = rendezvous_environment(place, os.environ)
    assert found["MASTER_ADDR"] == "gpu07", "no --host is asked for"
    assert {"MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"} <= found.keys()


def sample_parameters(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """The sample's parameters as a file."""
    from pipelines.project.profiles import write_params

    with monkeypatch.context() as patch:
        patch.chdir(ROOT)
        params = compose("sample", [])
    write_params(params, folder / "params.yaml")
    return folder / "params.yaml"


def test_10_under_slurm_each_process_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """launch_from_slurm passes no local rank, so that all processes of a machine compute on its first GPU."""
    taken: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr("trainer.processes.process.set_arithmetic", lambda **_: None)
    for number in range(8):
        place = rank_from_environment({**SRUN, "SLURM_PROCID": str(number), "SLURM_LOCALID": str(number % 4)})
        assert place is not None
        assert prepare(place, ParallelConfig(), StopFlag()).device == taken[-1]
    assert [device.index for device in taken] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_11_timing_begins_anew_in_each_part_of_a_run(workers: Any, tmp_path: Path) -> None:
    """MultiTimer.reset() of all timers, which is its default, raises AttributeError."""
    job = pretraining(tmp_path)
    started = time.monotonic()
    workers.run(1, steps_of, job, 3)
    between = time.monotonic()
    workers.run(1, steps_of, job, None)
    first, second = json.loads(job.segments.read_text())
    assert (first["from_step"], first["to_step"]) == (0, 4)
    assert (second["from_step"], second["to_step"]) == (4, 8)
    assert 0 < first["seconds"] < between - started
    assert 0 < second["seconds"] < time.monotonic() - between
    for segment in (first, second):
        assert 4 * segment["median_step_seconds"] <= 2 * segment["seconds"], "medians are those of its own steps"


def test_12_what_is_prepared_for_training_is_written_and_used_again(
    monkeypatch: pytest.MonkeyPatch, road: Road, tmp_path: Path
) -> None:
    """WebtextDataset looks for gpt_webtext_{seq}.pt and never writes it: each start tokenizes everything anew."""
    from trainer.data.batches import PretrainBatches

    config = dataclasses.replace(small.PRETRAIN, packing="bestfit")

    def opened() -> PretrainBatches:
        return PretrainBatches.of(config, [road.train], ["digest"], tmp_path / "index")

    first = opened()
    assert list((tmp_path / "index").iterdir())
    monkeypatch.setattr("trainer.data.packing.document_pieces", lambda *_, **__: pytest.fail("made a second time"))
    again = opened()
    assert again.samples == first.samples
    sample_ids = first.sample_ids(0)
    assert torch.equal(again.collate(sample_ids).tokens, first.collate(sample_ids).tokens)


def pretraining(folder: Path, **model: Any) -> PretrainJob:
    return PretrainJob(
        config=dataclasses.replace(small.PRETRAIN, global_batch_size=4, checkpoint_every=100),
        model=dataclasses.replace(small.MODEL, **model),
        parallel=ParallelConfig(device="cpu"),
        train=small.write_stream(folder / "train"),
        val=small.write_stream(folder / "val", seed=1),
        data={"train": "a", "val": "b"},
        scratch=folder / "scratch",
        plan=small.PLAN,
    )


def steps_of(job: PretrainJob, stop_after: int | None) -> dict[str, Any]:
    """All steps that are left, or those up to a requested stop; the weights, and where in the data that is."""
    from trainer.loop import hooks
    from trainer.loop.loop import train
    from trainer.loop.training import Hook
    from trainer.pretrain import prepare as prepare_training
    from trainer.processes.process import Stopped

    class Stop(Hook):
        def after_step(self, training: Any, report: Any) -> None:
            training.stop.requested = training.stop.requested or report.step == stop_after

    training = prepare_training(process(), planned(job))
    samples, began = job.batches().samples, training.position
    with contextlib.suppress(Stopped):
        train(training, [hooks.Speeds(job.segments, {}), hooks.Checkpoints(job.checkpoints, 1), Stop()])
    weights = {name: weight.detach().numpy().copy() for name, weight in training.model.weights.items()}
    return {"weights": weights, "began": began, "position": training.position, "samples": samples}


def test_13_a_stopped_run_goes_on_inside_the_epoch_to_the_same_bits(workers: Any, tmp_path: Path) -> None:
    """Their runs go on from the last whole epoch, with the random state and the data of its beginning."""
    whole = dataclasses.replace(pretraining(tmp_path, dropout=0.2), scratch=tmp_path / "whole")
    broken = dataclasses.replace(whole, scratch=tmp_path / "broken")
    expected = workers.run(1, steps_of, whole, None)[0]
    stopped = workers.run(1, steps_of, broken, 3)[0]
    assert 0 < stopped["position"] < stopped["samples"], "inside the first epoch"
    resumed = workers.run(1, steps_of, broken, None)[0]
    assert resumed["began"] == stopped["position"] < resumed["position"] == expected["position"]
    for name, weight in expected["weights"].items():
        np.testing.assert_array_equal(resumed["weights"][name], weight, err_msg=name)
        assert not np.array_equal(stopped["weights"][name], weight) or weight.ndim == 1


def compared(workers: Any, references: References, case: Case, tolerance: float, n_layer: int = 0) -> None:
    """The case's processes train what one process trains."""
    one = workers.run(1, trained, references.job(case.reference, n_layer or case.n_layer, case.batch))[0]
    ranks = workers.run(case.processes, trained, references.job(case, n_layer))
    weights = merged(rank["weights"] for rank in ranks)
    assert len(one["losses"]) == STEPS
    for rank in ranks:
        assert rank["losses"] == pytest.approx(one["losses"], rel=tolerance)
    assert weights.keys() == one["weights"].keys()
    for name, weight in one["weights"].items():
        np.testing.assert_allclose(weights[name], weight, atol=10 * tolerance, rtol=0, err_msg=name)
        assert not np.array_equal(weight, one["initial"][name]), name


def test_14_fp16_zero_and_pipelines_work_together(
    monkeypatch: pytest.MonkeyPatch, workers: Any, tmp_path: Path
) -> None:
    """In Titans fp16 and ZeRO exclude each other, and pipelines take NAIVE amp only."""
    monkeypatch.chdir(ROOT)
    params = compose("sample", ["parallel=zero1-pp2-fp16"])
    parallel = check(ParallelConfig, params["parallel"], "parallel", "params.yaml")
    case = Case(zero=1, pp=2, micro_batch_size=2, precision="fp16")
    assert (parallel.zero, parallel.pp, parallel.dp_shard) == (case.zero, case.pp, case.dp_shard)
    assert params["pretrain"]["precision"] == case.precision
    check_pretrain(PretrainConfig(precision="fp16"), ModelConfig(), parallel)
    compared(workers, References(workers, tmp_path), case, 1e-3)


def watched(job: PretrainJob) -> list[str]:
    """Every call in a training that would make the host wait for the device."""
    from unittest import mock

    from trainer.loop import hooks
    from trainer.loop.loop import train
    from trainer.pretrain import prepare as prepare_training

    waits: list[str] = []
    names = ("torch.cuda.synchronize", "torch.cpu.synchronize", "torch.accelerator.synchronize")
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch(name, lambda *_, name=name: waits.append(name)))
        training = prepare_training(process(), planned(job))
        train(training, [hooks.Progress("pretrain", 1), hooks.Speeds(job.segments, {})])
    return waits


class Event:
    """A moment on a GPU that has not come."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        """It is asked for."""

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pytest.fail("it waits")

    def elapsed_time(self, _: object) -> float:
        pytest.fail("it reads what has not happened, for which it has to wait")


def test_15_timing_does_not_make_the_device_wait(monkeypatch: pytest.MonkeyPatch, workers: Any, tmp_path: Path) -> None:
    """Their timers call cuda.synchronize at each start and stop, so that what is measured is slower."""
    from trainer.loop.timing import Phases

    assert workers.run(1, watched, pretraining(tmp_path))[0] == []
    monkeypatch.setattr("torch.cuda.Event", Event)
    phases = Phases(torch.device("cuda"))
    for _ in range(5):
        phases.start_step()
        phases.begin("forward_backward")
        phases.begin("optimizer")
    assert phases.medians() == {}


@pytest.mark.parametrize(
    ("layers", "parallel", "sizes"),
    [
        (7, {"pp": 2, "chunks": 2, "schedule": "interleaved_1f1b", "stages": "uniform"}, [1, 2, 2, 2]),
        (48, {"pp": 2, "chunks": 5, "schedule": "looped_bfs", "stages": "uniform"}, [4, 5, 4, 5, 5, 5, 5, 5, 5, 5]),
    ],
)
def test_16_layers_need_not_divide_into_chunks(layers: int, parallel: dict[str, Any], sizes: list[int]) -> None:
    """partition_uniform asserts num_items % num_chunks == 0."""
    from trainer.stages import partition

    config = ParallelConfig(**parallel)
    check_pretrain(PretrainConfig(), ModelConfig(n_layer=layers), config)
    ranges = partition(config, layers, 0.0)
    assert [layer for stage in ranges for layer in stage] == list(range(layers)), "each once, in order"
    assert [len(stage) for stage in ranges] == sizes


def test_16_and_train_the_same_model(workers: Any, tmp_path: Path) -> None:
    case = Case(pp=2, schedule="interleaved_1f1b", micro_batch_size=BATCH // 2)
    compared(workers, References(workers, tmp_path), case, 1e-6, n_layer=7)
