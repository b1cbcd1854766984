"""Layouts of one small pretraining: all that are possible, a list that covers every pair, and what each computes.

A case is a layout with whatever else must not change the result: micro batches, activation checkpointing, offloading.
Precision and dropout change it, so they are the reference's too.
"""

import dataclasses
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import ConfigError
from tests.trainer import small
from tests.trainer.loop.test_loop import planned, process
from trainer.checks import check_parallel
from trainer.config import ONE_STAGE_EACH, ParallelConfig
from trainer.plan import plan_pretraining
from trainer.pretrain import PretrainJob

SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev")
BATCH = 8
STEPS = 5
DROPOUT = 0.1
Trained = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    zero: int = 0
    dp_replicate: int = 1
    tp: int = 1
    sequence_parallel: bool = True
    pp: int = 1
    schedule: str = "1f1b"
    micro_batch_size: int = 0
    offload: str = "none"
    activation_checkpointing: str = "none"
    precision: str = "fp32"
    dropout: bool = False
    optimizer: str = "adamw"

    @property
    def dp_shard(self) -> int:
        return 2 if self.zero else 1

    @property
    def processes(self) -> int:
        return self.dp_replicate * self.dp_shard * self.tp * self.pp

    @property
    def chunks(self) -> int:
        return 1 if self.pp == 1 or self.schedule in ONE_STAGE_EACH else 2

    @property
    def batch(self) -> int:
        """Samples of a step: dualpipev needs two micro batches for each of its processes, also of half a batch."""
        return 2 * BATCH if self.zero and self.pp == 4 and self.schedule == "dualpipev" else BATCH

    @property
    def exchanges(self) -> float:
        """About how many messages it takes, which is what its time goes into."""
        return self.processes * self.tp / (self.micro_batch_size or self.batch)

    @property
    def n_layer(self) -> int:
        """Few layers are fast, but each stage needs one."""
        return max(4, self.pp * self.chunks)

    @property
    def parallel(self) -> ParallelConfig:
        names = ("zero", "dp_replicate", "dp_shard", "tp", "sequence_parallel", "pp", "schedule", "chunks", "offload")
        values: dict[str, Any] = {name: getattr(self, name) for name in (*names, "activation_checkpointing")}
        return ParallelConfig(device="cpu", **values)

    @property
    def reference(self) -> "Case":
        """The same training in one process."""
        return Case(precision=self.precision, dropout=self.dropout, optimizer=self.optimizer)

    def pairs(self) -> set[tuple[tuple[str, Any], ...]]:
        """All pairs of its values; what means nothing in this case is none."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if self.pp == 1:
            del values["schedule"]
        if self.tp == 1:
            del values["sequence_parallel"]
        if self.optimizer == "adamw":  # of all cases but test_muon's
            del values["optimizer"]
        return set(itertools.combinations(values.items(), 2))

    def __str__(self) -> str:
        sequence = "+sp" if self.tp > 1 and self.sequence_parallel else ""
        words = [
            f"zero{self.zero}",
            f"replicas{self.dp_replicate}" * (self.dp_replicate > 1),
            f"tp{self.tp}{sequence}" * (self.tp > 1),
            f"pp{self.pp}-{self.schedule}" * (self.pp > 1),
            f"micro{self.micro_batch_size}" * (self.micro_batch_size > 0),
            f"offload-{self.offload}" * (self.offload != "none"),
            f"recompute-{self.activation_checkpointing}" * (self.activation_checkpointing != "none"),
            self.precision,
            "dropout" * self.dropout,
            self.optimizer * (self.optimizer != "adamw"),
        ]
        return "-".join(word for word in words if word)


def feasible(processes: int) -> Iterator[Case]:
    """Every case that at most so many processes can compute, and the trainer does not refuse."""
    layouts = itertools.product(
        (0, 1, 2, 3), (1, 2), (1, 2, 4), (True, False), (1, 2, 4), SCHEDULES, (0, 1, 2), ("none", "optimizer", "all")
    )
    for zero, replicas, tp, sequence_parallel, pp, schedule, micro, offload in layouts:
        case = Case(
            zero=zero,
            dp_replicate=replicas,
            tp=tp,
            sequence_parallel=sequence_parallel,
            pp=pp,
            schedule=schedule,
            micro_batch_size=micro,
            offload=offload,
        )
        repeated = (tp == 1 and not sequence_parallel) or (pp == 1 and schedule != "1f1b")
        if repeated or case.processes > processes:
            continue
        for recomputed in ("none", "full", "selective"):
            accepted = dataclasses.replace(case, activation_checkpointing=recomputed)
            if not refusal(accepted):
                for precision, dropout in itertools.product(("fp32", "bf16", "fp16"), (False, True)):
                    yield dataclasses.replace(accepted, precision=precision, dropout=dropout)


def refusal(case: Case) -> str:
    """Why the trainer refuses the case; empty where it does not."""
    try:
        check_parallel(case.parallel, case.n_layer, n_head=4)
        config = dataclasses.replace(
            small.PRETRAIN, global_batch_size=case.batch, micro_batch_size=case.micro_batch_size
        )
        plan_pretraining(config, case.parallel, case.processes)
    except ConfigError as error:
        return str(error)
    return ""


def covering(cases: Sequence[Case]) -> list[Case]:
    """Few of these cases that have between them each pair of values that any of them has.

    Most are in fp32, where a wrong layout cannot hide: those have all pairs of the other values by themselves.
    """
    exact = _cover([case for case in cases if case.precision == "fp32"], [])
    return _cover(cases, exact)


def _cover(cases: Sequence[Case], start: Sequence[Case]) -> list[Case]:
    """Add cases to `start` until each pair of values that any of `cases` has is there."""
    chance = random.Random(0)
    having: dict[Any, list[Case]] = {}
    for case in cases:
        for pair in case.pairs():
            having.setdefault(pair, []).append(case)
    # The rarest first: they leave the least choice.
    left = dict.fromkeys(sorted(having, key=lambda pair: (len(having[pair]), str(pair))))
    chosen = list(start)
    for pair in {pair for case in start for pair in case.pairs()}:
        left.pop(pair, None)
    while left:
        rarest = having[next(iter(left))]
        candidates = chance.sample(rarest, min(80, len(rarest)))
        best = max(candidates, key=lambda case: (len(left.keys() & case.pairs()), -case.exchanges))
        chosen.append(best)
        for pair in best.pairs():
            left.pop(pair, None)
    return chosen


class References:
    """What one process computes, once for each kind of training."""

    def __init__(self, workers: Any, folder: Path, pad_vocab_to: int = 8) -> None:
        self.workers = workers
        self.folder = folder
        self.pad_vocab_to = pad_vocab_to
        self.train = small.write_stream(folder / "train")
        self.val = small.write_stream(folder / "val", seed=1)
        self._trained: dict[tuple[Case, int, int], Trained] = {}

    def job(self, case: Case, n_layer: int = 0, batch: int = 0) -> PretrainJob:
        """The case as a job for each of its processes."""
        model = dataclasses.replace(
            small.MODEL,
            n_layer=n_layer or case.n_layer,
            n_head=4,
            dropout=DROPOUT * case.dropout,
            pad_vocab_to=self.pad_vocab_to,
        )
        config = dataclasses.replace(
            small.PRETRAIN,
            clip_norm=0.5,
            global_batch_size=batch or case.batch,
            micro_batch_size=case.micro_batch_size,
            precision=case.precision,
            optimizer=case.optimizer,
        )
        return PretrainJob(
            config=config,
            model=model,
            parallel=case.parallel,
            train=self.train,
            val=self.val,
            data={"train": "a", "val": "b"},
            scratch=self.folder / "scratch",
            plan=small.PLAN,
        )

    def of(self, case: Case) -> Trained:
        """What one process computes for this case."""
        key = case.reference, case.n_layer, case.batch
        if key not in self._trained:
            self._trained[key] = self.workers.run(1, trained, self.job(*key))[0]
        return self._trained[key]

    def run(self, case: Case, timeout: float = 300) -> list[Trained]:
        """What each process of the case sees."""
        return self.workers.run(case.processes, trained, self.job(case), timeout=timeout)


def prepare(job: PretrainJob) -> Any:
    """As pretraining does, but with as much dropout in the attention too, which else only fine-tuning has."""
    from trainer.loop.loop import assemble
    from trainer.model import Architecture, LanguageModel
    from trainer.parallel.mesh import Mesh

    here, config, batches = process(), job.config, job.batches()
    shape = Architecture.of(job.model, batches.meta.vocab_size)
    shape = dataclasses.replace(shape, attention_dropout=job.model.dropout)
    return assemble(
        here,
        Mesh(job.parallel, here.device),
        lambda stage: LanguageModel(shape, stage),
        shape,
        batches,
        {"tokenizer": dataclasses.asdict(batches.meta)},
        config=config,
        parallel=job.parallel,
        plan=planned(job).plan,
    )


def trained(job: PretrainJob) -> Trained:
    """Initial weights, losses, gradient norms and final weights of some steps, as one worker sees them."""
    from trainer.loop.loop import train_step

    training = prepare(job)
    initial = whole_weights(training)
    reports = [train_step(training) for _ in range(STEPS)]
    losses, norms = [report.loss for report in reports], [report.grad_norm for report in reports]
    return {"initial": initial, "losses": losses, "norms": norms, "weights": whole_weights(training)}


def whole_weights(training: Any) -> dict[str, Any]:
    """The weights of this process's stages, put together, under canonical names."""
    from trainer.weights.checkpoint import model_tensors

    return whole(model_tensors(training.model.masters, training.model.shape.vocab_size))


def whole(tensors: dict[str, Any]) -> dict[str, Any]:
    """Tensors put together from the parts of all processes."""
    from torch.distributed.tensor import DTensor

    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().numpy().copy()
        for name, tensor in tensors.items()
    }


def merged(ranks: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The tensors of all stages; what several processes have must be equal to the bit."""
    found: dict[str, Any] = {}
    for tensors in ranks:
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(found.setdefault(name, tensor), tensor, err_msg=name)
    return found


@dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two trainings are, at most."""

    losses: float
    """Relative."""
    norms: float
    """Of gradients before clipping; relative."""
    weights: float
    """Absolute."""
    updates: float
    """Of what all steps have changed: the norm of the difference, relative to the norm of the change."""

    def within(self, most: Sequence[float]) -> bool:
        """Whether each is a number, and none larger than its bar."""
        return all(value <= bar for value, bar in zip(dataclasses.astuple(self), most, strict=True))


def distance(one: Trained, ranks: Sequence[Trained]) -> Distance:
    """How far what the processes of a case computed is from what one did.

    Raises AssertionError unless both begin with equal weights, and all processes agree, both to the bit.
    """
    initial, final = (merged(rank[name] for rank in ranks) for name in ("initial", "weights"))
    assert initial.keys() == final.keys() == one["weights"].keys()
    for name, weight in one["initial"].items():
        np.testing.assert_array_equal(initial[name], weight, err_msg=name)
    for rank in ranks:
        assert rank["losses"] == ranks[0]["losses"]
        assert rank["norms"] == ranks[0]["norms"]
    wrong = {name: np.float64(final[name]) - weight for name, weight in one["weights"].items()}
    moved = {name: np.float64(weight) - one["initial"][name] for name, weight in one["weights"].items()}
    return Distance(
        _relative(ranks[0]["losses"], one["losses"]),
        _relative(ranks[0]["norms"], one["norms"]),
        float(np.max([np.abs(each).max() for each in wrong.values()])),
        _norm(wrong.values()) / _norm(moved.values()),
    )


def _relative(values: Sequence[float], right: Sequence[float]) -> float:
    return float(np.max(np.abs(np.subtract(values, right) / right)))


def _norm(arrays: Iterable[Any]) -> float:
    return float(np.sqrt(sum(float(np.square(array).sum()) for array in arrays)))
