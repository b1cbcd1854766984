"""Checkpoints pass between layouts: weights and both moments to the bit, and training goes on as if nothing was."""

import dataclasses
import functools
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.nightly import nightly, nightly_but
from tests.trainer import small
from tests.trainer.parallel.cases import STEPS, Case, References, merged, prepare, whole
from trainer.pretrain import PretrainJob

LAYOUTS = [
    Case(),
    Case(dp_replicate=2),
    Case(tp=2, micro_batch_size=2),
    Case(tp=4, sequence_parallel=False),
    Case(zero=1, offload="optimizer"),
    Case(zero=2, tp=2),
    Case(zero=3, dp_replicate=2),
    Case(zero=3, tp=2, offload="all"),
    Case(pp=2, schedule="1f1b", tp=2),
    Case(pp=2, schedule="zbv", zero=1),
    Case(pp=4, schedule="gpipe", micro_batch_size=2),
    Case(pp=2, schedule="interleaved_1f1b", zero=3),
    Case(pp=2, schedule="dualpipev", tp=2, sequence_parallel=False),
    Case(pp=2, schedule="interleaved_1f1b", tp=2, precision="fp16"),
]
SAVED_AT = 2


@pytest.fixture(scope="module", params=[pytest.param(8, marks=pytest.mark.nightly), 1], ids=["padded", "unpadded"])
def references(request: pytest.FixtureRequest, workers: Any, tmp_path_factory: pytest.TempPathFactory) -> References:
    """With the vocabulary's 61 rows as 64, and as 61, which no number of processes divides."""
    return References(workers, tmp_path_factory.mktemp("checkpoints"), pad_vocab_to=request.param)


def save(job: PretrainJob, root: Path) -> dict[str, Any]:
    """A few steps, then a checkpoint; returns digests of its tensors as they stand in memory, and its loss scale."""
    from trainer.loop.loop import train_step
    from trainer.weights import checkpoint

    training = prepare(job)
    for _ in range(SAVED_AT):
        train_step(training)
    checkpoint.save(root, training.step, training.tensors(), training.record())
    return {"tensors": digests(training), "scale": training.loss_scale.record()}


def load(job: PretrainJob, folder: Path, steps: int) -> list[float]:
    """The losses of the steps after a checkpoint of another layout."""
    from trainer.loop.loop import train_step

    training = prepare(job)
    training.restore(folder)
    return [train_step(training).loss for _ in range(steps)]


def load_each(job: PretrainJob, folders: list[Path]) -> list[dict[str, Any]]:
    """What one layout makes of the checkpoints of all, one after the other, each time from something else."""
    from trainer.parallel.local import local

    training, found = prepare(job), list[dict[str, Any]]()
    for folder in folders:
        for name, weight in training.model.masters.items():
            for tensor in (local(weight.detach()), *training.optimizer.moments[name]):
                tensor.fill_(7.0)
        training.restore(folder)
        scale = training.loss_scale.record() if training.loss_scale.dynamic else None
        state = {"tensors": digests(training), "padding": padding_rows(training), "step": training.step, "scale": scale}
        found.append(state)
    return found


def digests(training: Any) -> dict[str, str]:
    """Each tensor, put together from the parts of all processes, as a few letters."""
    return {name: sha256(array.tobytes()).hexdigest() for name, array in whole(training.tensors()).items()}


def padding_rows(training: Any) -> float:
    """The largest value in rows of the embedding, and of its moments, that stand for no token."""
    from trainer.model import HEAD, TIED
    from trainer.parallel.local import like

    largest = 0.0
    for name in (TIED, HEAD):
        if name in training.model.masters:
            weight = training.model.masters[name].detach()
            tensors = (weight, *(like(weight, moment) for moment in training.optimizer.moments[name]))
            rows = whole({str(number): tensor for number, tensor in enumerate(tensors)})
            largest = max(largest, *(float(np.abs(row[61:]).sum()) for row in rows.values()))
    return largest


Saved = Callable[[int], tuple[Path, dict[str, str], dict[str, Any]]]


@pytest.fixture(scope="module")
def saved(workers: Any, references: References, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The checkpoint of a layout by number, what was in its memory, and the state of its loss scale."""

    @functools.cache
    def save_once(number: int) -> tuple[Path, dict[str, str], dict[str, Any]]:
        case, root = LAYOUTS[number], tmp_path_factory.mktemp("saved")
        ranks = workers.run(case.processes, save, references.job(case, n_layer=4), root)
        return root / f"step-{SAVED_AT:08d}", merged(rank["tensors"] for rank in ranks), ranks[0]["scale"]

    return save_once


EVERY = tuple(range(len(LAYOUTS)))
SOME = (7, 9, 13)
"""Sharded and offloaded; two pipelines, one of them with tensor parallelism and a loss scale."""


@pytest.mark.nightly
@pytest.mark.parametrize("numbers", [SOME, EVERY], ids=["some", "every"])
def test_each_layout_saves_all_tensors_and_bits_of_its_own(saved: Saved, numbers: tuple[int, ...]) -> None:
    """Else loading the wrong checkpoint, or none, would not be seen."""
    everything = [saved(number)[1] for number in numbers]
    for tensors in everything:
        weights = {name for name in tensors if name.startswith("model.")}
        assert len(weights) == 4 + 12 * 4
        assert len(tensors) == 3 * len(weights)
    name = "optimizer.exp_avg.transformer.h.1.mlp.c_fc.weight"
    assert len({tensors[name] for tensors in everything}) > len(numbers) / 2


@pytest.mark.parametrize(
    ("number", "every"),
    [
        *(nightly((number, SOME)) for number in SOME),
        *(nightly((number, EVERY)) for number in EVERY),
    ],
    ids=[*(f"{LAYOUTS[number]}-some" for number in SOME), *(f"{LAYOUTS[number]}-every" for number in EVERY)],
)
def test_a_layout_loads_the_checkpoints_of_all_layouts_to_the_bit(
    workers: Any, references: References, saved: Saved, number: int, every: tuple[int, ...]
) -> None:
    """Weights, both moments, and with fp16 the loss scale.

    Every ordered pair of layouts where no number of processes divides the vocabulary. With padding, which is never in a
    checkpoint, one process loads each, and each layout that of one process and of the layout before it.
    """
    case = LAYOUTS[number]
    sources = every if references.pad_vocab_to == 1 or not number else sorted({0, number - 1, number})
    folders = [saved(source)[0] for source in sources]
    ranks = workers.run(case.processes, load_each, references.job(case, n_layer=4), folders)
    for place, source in enumerate(sources):
        _, tensors, scale = saved(source)
        states = [rank[place] for rank in ranks]
        assert merged(state["tensors"] for state in states) == tensors, f"{LAYOUTS[source]} -> {case}"
        assert {(state["padding"], state["step"]) for state in states} == {(0.0, SAVED_AT)}
        if case.precision == LAYOUTS[source].precision == "fp16":
            assert [state["scale"] for state in states] == [scale] * len(states)
            assert scale["good_steps"] == SAVED_AT


@pytest.mark.parametrize(
    ("before", "after"),
    nightly_but(
        [
            (Case(dp_replicate=2), Case(pp=2, schedule="zbv", tp=2)),
            (Case(pp=2, schedule="1f1b", zero=2), Case(tp=4)),
            (Case(zero=3, tp=2), Case(pp=4, schedule="1f1b", micro_batch_size=2)),
            (Case(tp=2, offload="optimizer"), Case(zero=3, dp_replicate=2, activation_checkpointing="full")),
            (Case(pp=2, schedule="dualpipev"), Case()),
        ],
        3,
    ),
    ids=str,
)
def test_training_goes_on_in_another_layout(
    workers: Any, references: References, tmp_path: Path, before: Case, after: Case
) -> None:
    before, after = (dataclasses.replace(case, dropout=True) for case in (before, after))
    workers.run(before.processes, save, references.job(before, n_layer=4), tmp_path)
    job, folder = references.job(after, n_layer=4), tmp_path / f"step-{SAVED_AT:08d}"
    without_pause = references.of(Case(dropout=True))["losses"]
    for losses in workers.run(after.processes, load, job, folder, STEPS - SAVED_AT):
        assert losses == pytest.approx(without_pause[SAVED_AT:], rel=1e-6)


IMPORTING = [
    Case(),
    Case(tp=2),
    Case(tp=4),
    Case(pp=2, schedule="1f1b"),
    Case(pp=2, schedule="interleaved_1f1b", tp=2),
    Case(zero=3),
    Case(zero=3, tp=2, offload="all"),
]


def take_in(job: PretrainJob, source: Path, root: Path) -> None:
    """Fill a layout from a Hugging Face folder, and save it."""
    from trainer.weights import checkpoint, huggingface

    training = prepare(job)
    huggingface.fill(training.model.masters, huggingface.read_weights(source), source)
    checkpoint.save(root, 0, training.tensors(), training.record())


@pytest.mark.parametrize("case", nightly_but(IMPORTING, 1, 4, 6), ids=str)
def test_a_hugging_face_folder_goes_into_a_layout_and_comes_out_to_the_bit(
    workers: Any, references: References, tmp_path: Path, case: Case
) -> None:
    """Its vocabulary is of 61 rows, in memory 64 or as many; no row of padding comes out."""
    import torch
    import transformers
    from safetensors.torch import load_file

    from trainer.weights import huggingface
    from trainer.weights.conversion import read_checkpoint
    from trainer.weights.records import read_record

    settings = transformers.GPT2Config(n_layer=4, n_head=4, n_embd=32, n_positions=32, vocab_size=61)
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(settings)
    for weight in model.parameters():
        weight.detach().normal_()
    model.save_pretrained(tmp_path / "theirs")
    job = references.job(case, n_layer=4)
    workers.run(case.processes, take_in, job, tmp_path / "theirs", tmp_path)
    folder = tmp_path / "step-00000000"
    shape, weights = read_checkpoint(folder, read_record(folder))
    huggingface.save_folder(tmp_path / "ours", shape, weights, {})
    theirs, ours = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name


def read_alone(job: PretrainJob, source: Path) -> dict[str, Any]:
    """The weights that this process read of a Hugging Face folder, most of them at once, and what it holds then."""
    import weakref

    import torch

    from trainer.model import HEAD, TIED, canonical
    from trainer.parallel.local import local
    from trainer.weights import huggingface

    training = prepare(job)
    read: list[str] = []
    alive: list[Any] = []
    most = 0
    opened = huggingface.safe_open

    class Counting:
        def __init__(self, *arguments: Any) -> None:
            self.file = opened(*arguments)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: Any) -> None:
            self.file.__exit__(None, None, None)

        def get_tensor(self, key: str) -> Any:
            nonlocal most
            most = max(most, 1 + sum(each() is not None for each in alive))
            read.append(key)
            tensor = self.file.get_tensor(key)
            alive.append(weakref.ref(tensor))
            return tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huggingface, "safe_open", Counting)
        huggingface.fill(training.model.masters, huggingface.read_weights(source), source)
    weights = training.model.masters
    ends = [local(weights[name].detach())[61:] for name in (TIED, HEAD) if name in weights]
    return {
        "read": sorted(read),
        "needed": sorted(canonical(name).replace(".qkv.", ".c_attn.") for name in weights),
        "most": most,
        "padding": [float(torch.count_nonzero(rows)) for rows in ends],
    }


@pytest.mark.parametrize(
    ("case", "stages"),
    [
        (Case(), [52]),
        # 4 layers of 12 weights; both ends have the embedding, the first its positions, the last its norm.
        (Case(pp=2, schedule="1f1b"), [26, 27]),
        (Case(pp=4, schedule="gpipe"), [14, 12, 12, 15]),
        (Case(pp=2, schedule="zbv"), [29, 24]),
        (Case(pp=2, schedule="1f1b", zero=3), [26, 26, 27, 27]),
    ],
    ids=str,
)
def test_a_process_reads_only_the_weights_of_its_stages_and_one_at_a_time(
    workers: Any, references: References, tmp_path: Path, case: Case, stages: list[int]
) -> None:
    from trainer.model import Architecture, LanguageModel
    from trainer.weights import huggingface

    job = references.job(case, n_layer=4)
    shape = Architecture.of(job.model, 61)
    model = LanguageModel(shape)
    small.initialise(model, seed=3)
    weights = {name: weight.detach()[:61] if ".wte." in name else weight for name, weight in model.named_parameters()}
    huggingface.save_folder(tmp_path, shape, weights, {})
    found = workers.run(case.processes, read_alone, job, tmp_path)
    assert [len(each["read"]) for each in found] == stages
    for each in found:
        assert each["read"] == each["needed"]
        assert each["most"] == 1
        assert not any(each["padding"])
