"""Layouts of the trainer on real GPUs: each trains the model of one GPU, and how fast some are.

    python -m benchmarks.layouts WORKDIR [--speed] [--only WORD...]

Needs nothing but the packages of `trainer/` (no DVC, no network). Each case is five steps of a small GPT-2 through the
trainer's own launcher, in processes of its own: losses, gradient norms and the weights of a checkpoint are compared
with those of one GPU in the same precision. `--speed` then times GPT-2 in bf16 with compiled blocks.
"""

import argparse
import contextlib
import dataclasses
import signal
import statistics
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import shards
from pipelines import store
from pipelines.errors import ConfigError, UserError
from trainer import checkpoint, launch
from trainer.config import ModelConfig, ParallelConfig, PretrainConfig, check_pretrain, needs_newer_torch
from trainer.pretrain import Job, prepare
from trainer.process import Process
from trainer.records import step_folder

STEPS = 5
SECONDS = 120
"""A case that takes longer has a deadlock."""
MODEL = ModelConfig(n_layer=8, n_head=8, n_embd=256, n_positions=128, pad_vocab_to=64)
TRAINING = PretrainConfig(
    steps=STEPS,
    sequence_length=128,
    global_batch_size=16,
    micro_batch_size=2,
    lr=1e-3,
    warmup_steps=2,
    epsilon=1e-6,  # gradients of the keys' biases are 0 but for rounding, which a tiny epsilon would blow up
    clip_norm=0.5,
    checkpoint_every=STEPS,
)
LIMITS = {"fp32": (2e-6, 1e-5, 2e-5), "bf16": (2e-3, 3e-2, 5e-3), "fp16": (5e-4, 1e-2, 2e-3)}
"""Of losses and gradient norms, relative; of weights, absolute."""
PEAK_FLOPS = 989e12
"""H100 and H200, dense bf16 (NVIDIA's data sheet)."""

OK, REFUSED, FAILED = "ok", "refused on this torch", "FAILED"
"""What becomes of a case. Refused: a schedule that the trainer takes with a newer torch only."""

Keys = dict[str, Any]
COMPILED: Keys = {"precision": "bf16", "compile": True}
INTERLEAVED: Keys = {"pp": 2, "chunks": 2, "schedule": "interleaved_1f1b"}


@dataclass(frozen=True, slots=True)
class Case:
    """A layout by name, and what of the training differs from `TRAINING`."""

    name: str
    parallel: Keys
    training: Keys = dataclasses.field(default_factory=dict[str, Any])

    @property
    def precision(self) -> str:
        """The reference that it is compared with."""
        return self.training.get("precision", "fp32")


def fp32(name: str, **parallel: Any) -> Case:
    """A layout that has to agree to rounding."""
    return Case(name, parallel)


CASES = [
    fp32("data parallel", dp_replicate=4),
    fp32("ZeRO 1", zero=1, dp_shard=4),
    fp32("ZeRO 2", zero=2, dp_shard=4),
    fp32("ZeRO 3", zero=3, dp_shard=4),
    fp32("ZeRO 3, two replicas (HSDP)", zero=3, dp_shard=2, dp_replicate=2),
    fp32("ZeRO 1, optimizer offloaded", zero=1, dp_shard=4, offload="optimizer"),
    fp32("ZeRO 3, all offloaded", zero=3, dp_shard=4, offload="all"),
    fp32("ZeRO 3, selective recomputation", zero=3, dp_shard=4, activation_checkpointing="selective"),
    fp32("tensor 2 x data 2", tp=2, dp_replicate=2),
    fp32("tensor 4", tp=4),
    fp32("tensor 4 without sequence parallelism", tp=4, sequence_parallel=False),
    fp32("tensor 2 x ZeRO 2, full recomputation", tp=2, zero=2, dp_shard=2, activation_checkpointing="full"),
    fp32("tensor 2 x ZeRO 3", tp=2, zero=3, dp_shard=2),
    fp32("tensor 4, ColoTensor's placements", tp=4, placements=("attn.c_proj=column", "wte=hidden", "wpe=hidden")),
    fp32("pipeline 4, GPipe", pp=4, schedule="gpipe"),
    fp32("pipeline 4, 1F1B", pp=4),
    fp32("pipeline 2 x data 2, 1F1B", pp=2, dp_replicate=2),
    fp32("pipeline 2 x data 2, interleaved 1F1B", **INTERLEAVED, dp_replicate=2),
    fp32("pipeline 2 x data 2, looped BFS", pp=2, chunks=2, schedule="looped_bfs", dp_replicate=2),
    fp32("pipeline 2 x data 2, interleaved zero bubble", pp=2, chunks=2, schedule="interleaved_zero_bubble"),
    fp32("pipeline 4, ZBV", pp=4, chunks=2, schedule="zbv"),
    fp32("pipeline 2 x data 2, DualPipeV", pp=2, chunks=2, schedule="dualpipev", dp_replicate=2),
    fp32("pipeline 2 x tensor 2", pp=2, tp=2),
    fp32("pipeline 2 x tensor 2, ZBV", pp=2, chunks=2, schedule="zbv", tp=2),
    fp32("pipeline 2 x ZeRO 1", pp=2, zero=1, dp_shard=2),
    fp32("pipeline 2 x ZeRO 2", pp=2, zero=2, dp_shard=2),
    fp32("pipeline 2 x ZeRO 3, interleaved 1F1B", **INTERLEAVED, zero=3, dp_shard=2),
    Case("ZeRO 2, bf16", {"zero": 2, "dp_shard": 4}, {"precision": "bf16"}),
    Case("pipeline 2 x tensor 2, bf16", {"pp": 2, "tp": 2}, {"precision": "bf16"}),
    Case("ZeRO 3, bf16, compiled", {"zero": 3, "dp_shard": 4}, COMPILED),
    Case("tensor 2 x ZeRO 2, bf16, compiled", {"tp": 2, "zero": 2, "dp_shard": 2}, COMPILED),
    Case("pipeline 2 x tensor 2, bf16, compiled", {"pp": 2, "tp": 2}, COMPILED),
    Case("pipeline 2 x ZeRO 1, fp16", {"pp": 2, "zero": 1, "dp_shard": 2}, {"precision": "fp16"}),
    Case("ZeRO 3, fp16", {"zero": 3, "dp_shard": 4}, {"precision": "fp16"}),
    Case("tensor 4, fp16", {"tp": 4}, {"precision": "fp16"}),
]  # fmt: skip
SIZES = {"124M": (12, 12, 768), "1.5B": (48, 25, 1600)}


@dataclass(frozen=True, slots=True)
class Speed:
    """A size of GPT-2, a layout, and samples per forward pass and process, so many times a step."""

    size: str
    gpus: int
    micro_batch_size: int
    passes: int
    parallel: Keys = dataclasses.field(default_factory=dict[str, Any])
    compile: bool = True


SPEEDS = [
    Speed("124M", 1, 64, 8, compile=False),
    Speed("124M", 1, 64, 8),
    Speed("1.5B", 1, 16, 4),
    Speed("124M", 4, 64, 2, {"dp_replicate": 4}),
    Speed("1.5B", 4, 16, 4, {"zero": 2, "dp_shard": 4}),
    Speed("1.5B", 4, 16, 4, {"zero": 3, "dp_shard": 4}),
    Speed("1.5B", 4, 16, 4, {"tp": 4}),
    Speed("1.5B", 4, 4, 16, {"pp": 4}),
    Speed("1.5B", 4, 8, 8, {"pp": 2, "tp": 2}),
    Speed("1.5B", 4, 16, 4, {"tp": 2, "zero": 2, "dp_shard": 2}),
]


def main() -> None:
    """Run everything that the machine's GPUs allow; exit status 1 when a case failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layouts", description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--speed", action="store_true", help="time GPT-2 too")
    parser.add_argument("--no-parity", action="store_true", help="time GPT-2 only")
    parser.add_argument("--only", nargs="*", default=[], help="cases whose name has one of these words")
    given = parser.parse_args()
    if not (gpus := torch.cuda.device_count()):
        raise SystemExit("torch sees no GPU on this machine; on CPUs make matrix compares layouts")
    title = f"{gpus} x {torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}"
    print(title, flush=True)
    rows: list[str] = []
    if not given.no_parity:
        wanted = [case for case in CASES if not given.only or any(word in case.name for word in given.only)]
        rows += [
            "| case | GPUs | losses | norms | weights | seconds | |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        rows += check_parity(given.work, gpus, wanted)
        rows += ["", counted(rows)]
    if given.speed:
        rows += ["", "| size | GPUs | layout | micro batch x passes | tokens/s | MFU | GiB |"]
        rows += ["| --- | --- | --- | --- | --- | --- | --- |", *measure_speeds(given.work, gpus)]
    table = "\n".join([title, "", *rows])
    (given.work / "table.md").write_text(table + "\n")
    print(f"\n{table}")
    if any(FAILED in row for row in rows if row.startswith("|")):
        raise SystemExit(1)


def check_parity(work: Path, gpus: int, cases: list[Case]) -> list[str]:
    """A row of the table for each case."""
    train, val = shards(work / "small/train", 512, 200, 600, 1), shards(work / "small/val", 512, 20, 600, 2)
    references: dict[str, Keys] = {}
    rows: list[str] = []
    for number, case in enumerate(cases):
        parallel = layout(case.parallel, "exact")
        start = time.monotonic()
        try:
            if case.precision not in references:
                one = layout({}, "exact")
                training = dataclasses.replace(TRAINING, precision=case.precision)
                references[case.precision] = run(small_job(work, f"one-{case.precision}", training, one, train, val))
            training = dataclasses.replace(TRAINING, **case.training)
            found = run(small_job(work, f"case-{number}", training, parallel, train, val))
            cells, fits = compared(found, references[case.precision], case.precision)
            outcome = OK if fits else FAILED
        except (UserError, ConfigError, TimeoutError) as error:
            cells = f"{error} | | "
            outcome = REFUSED if isinstance(error, ConfigError) and needs_newer_torch(parallel) else FAILED
        seconds = time.monotonic() - start
        used = min(gpus, launch.count_processes(parallel))
        rows.append(f"| {case.name} | {used} | {cells} | {seconds:.0f} | {outcome} |")
        print(rows[-1], flush=True)
    return rows


def counted(rows: list[str]) -> str:
    """How many cases came to which end."""
    counts = {outcome: sum(row.endswith(f"| {outcome} |") for row in rows) for outcome in (OK, REFUSED, FAILED)}
    return f"{sum(counts.values())} cases: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}."


def layout(keys: Keys, determinism: str) -> ParallelConfig:
    """These degrees; the others are 1."""
    values: Keys = {"dp_replicate": 1, **keys}
    return ParallelConfig(**values, determinism=determinism)  # pyright: ignore[reportArgumentType]


def small_job(work: Path, name: str, training: PretrainConfig, parallel: ParallelConfig, train: Path, val: Path) -> Job:
    """A small training, checked as the stage checks it."""
    check_pretrain(training, MODEL, parallel)
    data = {"train": "train", "val": "val"}
    return Job(config=training, model=MODEL, parallel=parallel, train=train, val=val, data=data, scratch=work / name)


def run(job: Job) -> Keys:
    """Train in processes; losses, norms and the weights of the checkpoint that they wrote."""
    store.remove(job.scratch)
    with deadline(SECONDS):
        found = launch.launch(train_and_save, job.parallel, job)
    folder = step_folder(job.checkpoints, STEPS)
    index = checkpoint.read_index(folder).state_dict_metadata
    weights: Any = {name: torch.empty(entry.size) for name, entry in index.items() if name.startswith("model.")}  # pyright: ignore
    checkpoint.load(folder, weights, alone=True)
    return {**found, "weights": weights}


@contextlib.contextmanager
def deadline(seconds: int) -> Generator[None]:
    """TimeoutError when the block takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"no end after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def train_and_save(process: Process, job: Job) -> Keys:
    """One process of a case."""
    from trainer.loop import train_step

    training = prepare(process, job)
    with training.feed:
        reports = [train_step(training) for _ in range(STEPS)]
    checkpoint.save(job.checkpoints, training.step, training.tensors(), training.record())
    return {"losses": [report.loss for report in reports], "norms": [report.grad_norm for report in reports]}


def compared(found: Keys, reference: Keys, precision: str) -> tuple[str, bool]:
    """The three largest differences as cells, and whether all are within their limits."""
    relative = [
        max(abs(a - b) / abs(b) for a, b in zip(found[name], reference[name], strict=True))
        for name in ("losses", "norms")
    ]
    weights = max(float((found["weights"][name] - one).abs().max()) for name, one in reference["weights"].items())
    differences = (*relative, weights)
    fits = all(a <= limit for a, limit in zip(differences, LIMITS[precision], strict=True))
    return " | ".join(f"{difference:.1e}" for difference in differences), fits


def measure_speeds(work: Path, gpus: int) -> list[str]:
    """A row of the table for each speed that so many GPUs allow."""
    train, val = shards(work / "gpt2/train", 50_257, 200, 11_000, 1), shards(work / "gpt2/val", 50_257, 2, 2_100, 2)
    rows: list[str] = []
    for number, speed in enumerate(each for each in SPEEDS if each.gpus == gpus):
        layers, heads, width = SIZES[speed.size]
        model = ModelConfig(n_layer=layers, n_head=heads, n_embd=width, n_positions=1024)
        parallel = layout(speed.parallel, "fast")
        ranks = gpus // (parallel.pp * parallel.tp)
        training = PretrainConfig(
            steps=12,
            global_batch_size=speed.micro_batch_size * speed.passes * ranks,
            micro_batch_size=speed.micro_batch_size,
            warmup_steps=5,
            precision="bf16",
            compile=speed.compile,
        )
        data = {"train": "train", "val": "val"}
        scratch = work / f"speed-{number}"
        job = Job(config=training, model=model, parallel=parallel, train=train, val=val, data=data, scratch=scratch)
        words = ", ".join(f"{key} {value}" for key, value in speed.parallel.items()) or "one GPU"
        head = f"| {speed.size} | {gpus} | {words}{'' if speed.compile else ', eager'} "
        head += f"| {speed.micro_batch_size} x {speed.passes} | "
        try:
            with deadline(SECONDS):
                rows.append(head + launch.launch(time_steps, parallel, job))
        except (UserError, ConfigError, TimeoutError) as error:
            rows.append(f"{head}FAILED: {error} |")
        print(rows[-1], flush=True)
    return rows


def time_steps(process: Process, job: Job) -> str:
    """Cells of one process's view: all processes' tokens per second, share of the peak, memory."""
    from trainer.loop import train_step

    training = prepare(process, job)
    seconds: list[float] = []
    with training.feed:
        while not training.finished:
            start = time.monotonic()
            train_step(training)  # it reads the loss, so it waits for the device
            seconds.append(time.monotonic() - start)
    config, shape = job.config, training.model.shape
    rate = config.global_batch_size * config.sequence_length / statistics.median(seconds[5:])
    flops = 6 * shape.parameters + 12 * shape.n_layer * shape.n_embd * config.sequence_length
    share = rate * flops / PEAK_FLOPS / process.place.size
    return f"{rate:,.0f} | {share:.1%} | {torch.cuda.max_memory_allocated() / 2**30:.0f} |"


if __name__ == "__main__":
    main()
