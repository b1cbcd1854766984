"""Layouts of the trainer on real GPUs: each trains the model of one GPU, and how fast some are.

    python -m benchmarks.layouts WORKDIR [--speed] [--exact] [--blocks] [--no-parity] [--nanogpt MODEL.PY]
        [--only WORD...] [--skip WORD...]

Needs nothing but the packages of `trainer/` (no DVC, no network). Each case is five steps of a small GPT-2 through the
trainer's own launcher, in processes of its own: losses, gradient norms and the weights of a checkpoint are compared
with those of one GPU in the same precision; of a classifier that is fine-tuned, its outputs for other rows in place of
weights. `--speed` then times GPT-2 in bf16 with compiled blocks. `--exact`
trains each of those twice with `determinism: exact`: what that costs, and whether both runs end with the same bits.
`--blocks` compares blocks with fp64 (`benchmarks/blocks.py`).
On fewer than four GPUs a degree of 4 is 2.
"""

import argparse
import contextlib
import dataclasses
import signal
import statistics
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks import blocks
from benchmarks.gpu import shards
from benchmarks.nanogpt import NanoGPT, one_batch
from pipelines import store
from pipelines.errors import ConfigError, UserError
from trainer import finetune
from trainer.checks import check_finetune, check_pretrain, needs_newer_torch
from trainer.config import FinetuneConfig, ModelConfig, ParallelConfig, Precision, PretrainConfig
from trainer.plan import Layout, Plan, plan_finetuning, plan_pretraining
from trainer.pretrain import PretrainJob, prepare
from trainer.processes import launch
from trainer.processes.process import Process
from trainer.weights import checkpoint
from trainer.weights.base_model import BaseModel
from trainer.weights.index import read_index
from trainer.weights.records import step_folder

STEPS = 5
TIMED_STEPS = 12
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
TUNING = FinetuneConfig(
    steps=STEPS,
    epochs=0,
    global_batch_size=16,
    micro_batch_size=2,
    lr=1e-3,
    warmup_share=0.0,
    warmup_steps=2,
    epsilon=1e-6,
    clip_norm=0.5,
    precision="fp32",
    checkpoint_every=STEPS,
)
CLASSES, TOKENS = 3, 512
VOCABULARY = 50_257
"""Of GPT-2."""
LIMITS = {
    "fp32": (2e-6, 1e-5, 2e-5),
    "bf16": (2e-3, 3e-2, 5e-3),
    "fp16": (5e-4, 1e-2, 2e-3),
    "fp8": (2e-3, 3e-2, 5e-3),
    "muon": (2e-4, 1e-3, 5e-3),
}
"""Of losses and gradient norms, relative; of weights, absolute. Muon's iteration rounds to bf16 on GPUs: on a CPU that
makes of one process with other micro batches one that is 5e-5, 3e-4 and 2e-3 off, in fp32. fp8 has bf16's: all cases
have the same micro batches, so the same scales, and differ by what ZeRO rounds to bf16."""
OUTPUTS = {"fp32": 2e-5, "bf16": 3e-2, "fp16": 4e-3}
"""Of a classifier's outputs, absolute, which are numbers around 1."""
PEAK_FLOPS = 989e12
"""H100 and H200, dense bf16 (NVIDIA's data sheet)."""

OK, REFUSED, SMALL, FAILED = "ok", "refused on this torch", "too few GPUs", "FAILED"
"""What becomes of a case. Refused: a schedule that the trainer takes with a newer torch only."""

SHAPING = ("precision", "optimizer", "document_mask", "lr")
"""Keys of a case with which one GPU, too, computes something else."""
Keys = dict[str, Any]
Compute = Callable[[Path, Keys, ParallelConfig], Keys]
MUON: Keys = {"optimizer": "muon"}
COMPILED: Keys = {"precision": "bf16", "compile": True}
INTERLEAVED: Keys = {"pp": 2, "chunks": 2, "schedule": "interleaved_1f1b"}
INPUTS: Keys = {"activation_checkpointing": "full", "offload_activations": 1.0}
ZERO_BUBBLE: Keys = {**INTERLEAVED, "schedule": "interleaved_zero_bubble"}


@dataclass(frozen=True, slots=True)
class Case:
    """A layout by name, and what of the training differs from `TRAINING`."""

    name: str
    parallel: Keys
    training: Keys = dataclasses.field(default_factory=dict[str, Any])

    @property
    def reference(self) -> Keys:
        """What of the training the reference has, too, with which it is compared."""
        return {"precision": "fp32", **{key: self.training[key] for key in SHAPING if key in self.training}}

    @property
    def limits(self) -> str:
        """The name of its limits: with Muon it is in fp32."""
        return self.reference.get("optimizer", self.reference["precision"])


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
    fp32("ZeRO 3, all offloaded, inputs too", zero=3, dp_shard=4, offload="all", **INPUTS),
    fp32("pipeline 2 x data 2, inputs offloaded", pp=2, dp_replicate=2, **INPUTS),
    fp32("tensor 4, inputs offloaded", tp=4, **INPUTS),
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
    fp32("pipeline 2 x data 2, interleaved zero bubble", **ZERO_BUBBLE, dp_replicate=2),
    fp32("pipeline 4, ZBV", pp=4, chunks=2, schedule="zbv"),
    fp32("pipeline 2 x data 2, DualPipeV", pp=2, chunks=2, schedule="dualpipev", dp_replicate=2),
    fp32("pipeline 2 x tensor 2", pp=2, tp=2),
    fp32("pipeline 2 x tensor 2, ZBV", pp=2, chunks=2, schedule="zbv", tp=2),
    fp32("pipeline 2 x ZeRO 1", pp=2, zero=1, dp_shard=2),
    fp32("pipeline 2 x ZeRO 2", pp=2, zero=2, dp_shard=2),
    fp32("pipeline 2 x ZeRO 3, interleaved 1F1B", **INTERLEAVED, zero=3, dp_shard=2),
    Case("Muon, data parallel", {"dp_replicate": 4}, MUON),
    Case("Muon, ZeRO 3", {"zero": 3, "dp_shard": 4}, MUON),
    Case("Muon, ZeRO 3, all offloaded", {"zero": 3, "dp_shard": 4, "offload": "all"}, MUON),
    Case("Muon, optimizer offloaded", {"dp_replicate": 2, "offload": "optimizer"}, MUON),
    Case("Muon, tensor 4", {"tp": 4}, MUON),
    Case("Muon, tensor 2 x ZeRO 2", {"tp": 2, "zero": 2, "dp_shard": 2}, MUON),
    Case("Muon, pipeline 2 x ZeRO 1", {"pp": 2, "zero": 1, "dp_shard": 2}, MUON),
    # The reference is exact: on Hopper, cuDNN's attention both ways against that of trainer/attention.py.
    Case("fast kernels, bf16", {"determinism": "fast"}, {"precision": "bf16"}),
    Case("fast kernels, fp16", {"determinism": "fast"}, {"precision": "fp16"}),
    Case("plain, bf16", {"kernels": "plain"}, {"precision": "bf16"}),
    Case("plain, fp16", {"kernels": "plain"}, {"precision": "fp16"}),
    Case("plain, inside documents, bf16", {"kernels": "plain"}, {"precision": "bf16", "document_mask": True}),
    Case("fast kernels, fp8", {"determinism": "fast"}, {"precision": "fp8"}),
    Case("selective recomputation, fp8", {"activation_checkpointing": "selective"}, {"precision": "fp8"}),
    Case("data parallel, fp8", {"dp_replicate": 4}, {"precision": "fp8"}),
    Case("ZeRO 2, fp8", {"zero": 2, "dp_shard": 4}, {"precision": "fp8"}),
    Case("ZeRO 3, fp8", {"zero": 3, "dp_shard": 4}, {"precision": "fp8"}),
    Case("pipeline 4, fp8", {"pp": 4}, {"precision": "fp8"}),
    Case("full recomputation, bf16, compiled", {"activation_checkpointing": "full"}, COMPILED),
    Case("selective recomputation, bf16, compiled", {"activation_checkpointing": "selective"}, COMPILED),
    Case("ZeRO 2, bf16", {"zero": 2, "dp_shard": 4}, {"precision": "bf16"}),
    Case("pipeline 2 x tensor 2, bf16", {"pp": 2, "tp": 2}, {"precision": "bf16"}),
    Case("ZeRO 3, bf16, compiled", {"zero": 3, "dp_shard": 4}, COMPILED),
    Case("tensor 4, bf16, compiled", {"tp": 4}, COMPILED),
    Case("tensor 4, full recomputation, bf16, compiled", {"tp": 4, "activation_checkpointing": "full"}, COMPILED),
    Case("tensor 4 without sequence parallelism, bf16, compiled", {"tp": 4, "sequence_parallel": False}, COMPILED),
    Case("pipeline 4, bf16, compiled", {"pp": 4}, COMPILED),
    Case("tensor 2 x ZeRO 2, bf16, compiled", {"tp": 2, "zero": 2, "dp_shard": 2}, COMPILED),
    Case("pipeline 2 x tensor 2, bf16, compiled", {"pp": 2, "tp": 2}, COMPILED),
    Case("pipeline 2 x ZeRO 1, fp16", {"pp": 2, "zero": 1, "dp_shard": 2}, {"precision": "fp16"}),
    Case("ZeRO 3, fp16", {"zero": 3, "dp_shard": 4}, {"precision": "fp16"}),
    Case("tensor 4, fp16", {"tp": 4}, {"precision": "fp16"}),
]  # fmt: skip
TUNED = [
    fp32("fine-tuning, data parallel", dp_replicate=4),
    fp32("fine-tuning, ZeRO 1, optimizer offloaded", zero=1, dp_shard=4, offload="optimizer"),
    fp32("fine-tuning, ZeRO 2", zero=2, dp_shard=4),
    fp32("fine-tuning, ZeRO 3, all offloaded", zero=3, dp_shard=4, offload="all"),
    fp32("fine-tuning, tensor 4", tp=4),
    Case("fine-tuning, tensor 4, bf16", {"tp": 4}, {"precision": "bf16"}),
    fp32("fine-tuning, pipeline 4, 1F1B", pp=4),
    fp32("fine-tuning, pipeline 2 x tensor 2", pp=2, tp=2),
    fp32("fine-tuning, pipeline 2 x ZeRO 3, interleaved 1F1B", **INTERLEAVED, zero=3, dp_shard=2),
    # Other kernels round elsewhere, and Adam's first steps of a high rate blow that up: with 1e-3 outputs end 0.1 apart
    # where all gradients of the first step are within 1 % of those in fp32.
    Case("fine-tuning, plain, bf16", {"kernels": "plain"}, {"precision": "bf16", "lr": 1e-4}),
    Case("fine-tuning, ZeRO 2, bf16", {"zero": 2, "dp_shard": 4}, {"precision": "bf16"}),
    Case("fine-tuning, ZeRO 3, fp16", {"zero": 3, "dp_shard": 4}, {"precision": "fp16"}),
]  # fmt: skip
SIZES = {
    "30M": (6, 6, 384),
    "124M": (12, 12, 768),
    "355M": (24, 16, 1024),
    "774M": (36, 20, 1280),
    "1.4B": (48, 24, 1536),
    "1.5B": (48, 25, 1600),
    "1.5B, 32 heads": (48, 32, 1600),
    "2.7B": (32, 32, 2560),
    "6.7B": (32, 32, 4096),
    "13B": (40, 40, 5120),
}
"""Layers, heads and width; the published 1.5B has 25 heads, which 2 and 4 do not divide. 24 heads have 64 values each,
where 32 have 50, which no fused attention takes without padding."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A size of GPT-2, a layout, and samples per forward pass and process, so many times a step."""

    size: str
    micro_batch_size: int
    passes: int
    parallel: Keys = dataclasses.field(default_factory=dict[str, Any])
    compile: bool = True
    precision: Precision = "bf16"
    length: int = 1024
    """Tokens per sample."""
    nanogpt: bool = False
    """Whether nanoGPT is timed, not this trainer: on one GPU, or with DDP."""

    @property
    def gpus(self) -> int:
        """GPUs that the layout takes."""
        return processes(layout(self.parallel, "fast"))

    @property
    def name(self) -> str:
        """Size and layout in words."""
        words = [f"{key} {value}" for key, value in self.parallel.items()] or ["one GPU"]
        words += ["nanoGPT"] if self.nanogpt else [] if self.compile else ["eager"]
        words += [] if self.precision == "bf16" else [self.precision]
        return ", ".join([self.size, *words, *([] if self.length == 1024 else [f"{self.length} tokens"])])

    @property
    def model(self) -> ModelConfig:
        """The model of that size."""
        layers, heads, width = SIZES[self.size]
        return ModelConfig(n_layer=layers, n_head=heads, n_embd=width, n_positions=self.length)

    def training(self, steps: int) -> PretrainConfig:
        """Section `pretrain` for so many steps."""
        parallel = layout(self.parallel, "fast")
        ranks = parallel.dp_replicate * parallel.dp_shard
        return PretrainConfig(
            steps=steps,
            sequence_length=self.length,
            global_batch_size=self.micro_batch_size * self.passes * ranks,
            micro_batch_size=self.micro_batch_size,
            warmup_steps=5,
            precision=self.precision,
            compile=self.compile,
        )


RECOMPUTED: Keys = {"activation_checkpointing": "full"}
ON_HOST: Keys = {**RECOMPUTED, "offload": "optimizer"}
SPEEDS = [
    Speed("124M", 64, 8, nanogpt=True),
    Speed("124M", 64, 8, compile=False),
    Speed("124M", 64, 8),
    Speed("124M", 64, 8, compile=False, precision="fp8"),
    Speed("124M", 64, 4),
    Speed("1.5B", 16, 4, nanogpt=True),
    Speed("1.5B", 16, 4),
    Speed("1.5B", 32, 2),
    Speed("1.5B", 16, 4, RECOMPUTED, compile=False),
    Speed("1.5B", 16, 4, RECOMPUTED),
    Speed("1.5B", 32, 2, ON_HOST),
    Speed("1.4B", 16, 4),
    Speed("124M", 64, 2, {"dp_replicate": 2}, nanogpt=True),
    Speed("124M", 64, 4, {"dp_replicate": 2}),
    Speed("1.5B", 16, 8, {"zero": 1, "dp_shard": 2}),
    Speed("1.5B", 16, 8, {"zero": 3, "dp_shard": 2}),
    Speed("1.5B", 16, 16, {"pp": 2}),
    Speed("1.4B", 32, 8, {"tp": 2}),
    Speed("124M", 64, 1, {"dp_replicate": 4}, nanogpt=True),
    Speed("124M", 64, 1, {"dp_replicate": 4}),
    Speed("124M", 64, 2, {"dp_replicate": 4}),
    Speed("1.5B", 16, 4, {"zero": 1, "dp_shard": 4}),
    Speed("1.5B", 32, 2, {"zero": 1, "dp_shard": 4}),
    Speed("1.5B", 16, 4, {"zero": 3, "dp_shard": 4}),
    Speed("1.5B", 32, 2, {"zero": 3, "dp_shard": 4}),
    Speed("1.5B", 32, 2, {"zero": 1, "dp_shard": 4, **ON_HOST}),
    Speed("1.5B", 16, 16, {"pp": 4}),
    Speed("1.5B", 16, 16, {"pp": 4, "chunks": 2, "schedule": "interleaved_1f1b"}),
    Speed("1.5B", 8, 32, {"pp": 4}),
    Speed("1.4B", 64, 4, {"tp": 4}),
    Speed("1.4B", 128, 2, {"tp": 4}),
    Speed("1.4B", 32, 4, {"tp": 2, "dp_replicate": 2}),
    Speed("1.4B", 64, 2, {"tp": 2, "dp_replicate": 2}),
    Speed("1.4B", 16, 16, {"pp": 2, "tp": 2}),
    Speed("1.4B", 32, 8, {"pp": 2, "tp": 2}),
    Speed("1.4B", 32, 8, {"pp": 2, "tp": 2, "chunks": 2, "schedule": "interleaved_1f1b"}),
]
"""Two and four GPUs have 256 samples a step; rows that differ only in the micro batch are one layout."""


def main() -> None:
    """Run everything that the machine's GPUs allow; exit status 1 when a case failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.layouts", description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--speed", action="store_true", help="time GPT-2 too")
    parser.add_argument("--exact", action="store_true", help="price of determinism: exact, and whether it holds")
    parser.add_argument("--blocks", action="store_true", help="errors of blocks beside fp64")
    parser.add_argument("--nanogpt", type=Path, help="model.py of github.com/karpathy/nanoGPT, to time it too")
    parser.add_argument("--no-parity", action="store_true", help="compare no layouts")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="rows whose name has one of these")
    parser.add_argument("--skip", nargs="+", default=[], metavar="WORD", help="but none of these")
    given = parser.parse_args()
    if not (gpus := torch.cuda.device_count()):
        raise SystemExit("torch sees no GPU on this machine; on CPUs make matrix compares layouts")

    def wanted(name: str) -> bool:
        return any(word in name for word in given.only) and not any(word in name for word in given.skip)

    cases, tuned_cases = ([each for each in group if wanted(each.name)] for group in (CASES, TUNED))
    speeds = [each for each in SPEEDS if each.gpus <= gpus and wanted(each.name)]
    speeds = [each for each in speeds if not each.nanogpt or (given.nanogpt and given.speed)]
    if given.no_parity:
        cases, tuned_cases = [], []
    if not (given.speed or given.exact):
        speeds = []
    sizes = [each for each in blocks.SIZES if given.blocks and wanted(each.name)]
    if not (cases or tuned_cases or speeds or sizes):
        parser.error(
            "no row is left: --only and --skip take words of the rows' names, --no-parity wants --speed, --exact or "
            "--blocks"
        )
    title = f"{gpus} x {torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}"
    print(title, flush=True)
    rows: list[str] = []
    if cases or tuned_cases:
        rows += [
            "| case | GPUs | losses | norms | weights, outputs | seconds | |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        rows += check_parity(given.work, gpus, cases, pretrained)
        rows += check_parity(given.work, gpus, tuned_cases, tuned)
        rows += ["", counted(rows)]
    if sizes:
        rows += ["", *blocks.HEAD, *blocks.rows(sizes, torch.device("cuda"))]
    if speeds and given.exact:
        rows += ["", "| size | GPUs | layout | fast: tokens/s | exact: tokens/s | price | two runs | |"]
        rows += [
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *measure_exact(given.work, [each for each in speeds if not each.nanogpt]),
        ]
    if speeds and given.speed:
        rows += ["", "| size | GPUs | layout | micro batch x passes | tokens/s | of as many x one GPU | MFU | GiB |"]
        rows += [
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *measure_speeds(given.work, speeds, given.nanogpt),
        ]
    table = "\n".join([title, "", *rows])
    given.work.mkdir(parents=True, exist_ok=True)
    (given.work / "table.md").write_text(table + "\n")
    print(f"\n{table}")
    if any(FAILED in row for row in rows if row.startswith("|")):
        raise SystemExit(1)


def check_parity(work: Path, gpus: int, cases: list[Case], compute: Compute) -> list[str]:
    """A row of the table for each case."""
    references: dict[frozenset[tuple[str, Any]], Keys] = {}
    rows: list[str] = []
    for case in cases:
        parallel = layout(fitted(case.parallel, gpus), "exact")
        start = time.monotonic()
        try:
            key = frozenset(case.reference.items())
            if key not in references:
                references[key] = compute(work, case.reference, layout({}, "exact"))
            found = compute(work, case.training, parallel)
            cells, fits = compared(found, references[key], case.limits)
            outcome = OK if fits else FAILED
        except (UserError, ConfigError, TimeoutError) as error:
            cells = f"{error} | | "
            expected = REFUSED if needs_newer_torch(parallel) else SMALL if processes(parallel) > gpus else FAILED
            outcome = expected if isinstance(error, ConfigError) else FAILED
        seconds = time.monotonic() - start
        rows.append(f"| {case.name} | {processes(parallel)} | {cells} | {seconds:.0f} | {outcome} |")
        print(rows[-1], flush=True)
    return rows


def fitted(keys: Keys, gpus: int) -> Keys:
    """The same kind of layout for fewer than four GPUs."""
    return {name: gpus if value == 4 and gpus < 4 else value for name, value in keys.items()}


def processes(parallel: ParallelConfig) -> int:
    """GPUs that the layout takes."""
    return parallel.pp * parallel.dp_replicate * parallel.dp_shard * parallel.tp


def counted(rows: list[str]) -> str:
    """How many cases came to which end."""
    counts = {outcome: sum(row.endswith(f"| {outcome} |") for row in rows) for outcome in (OK, REFUSED, SMALL, FAILED)}
    return f"{sum(counts.values())} cases: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}."


def layout(keys: Keys, determinism: str) -> ParallelConfig:
    """These degrees; the others are 1."""
    values: Keys = {"dp_replicate": 1, "determinism": determinism, **keys}
    return ParallelConfig(**values)


def planned(config: PretrainConfig | FinetuneConfig, layout: Layout) -> Plan:
    """What a case resolves to: all of them are given in steps."""
    return Plan(steps=config.steps, warmup_steps=config.warmup_steps, layout=layout)


def pretrain_job(
    training: PretrainConfig, model: ModelConfig, parallel: ParallelConfig, train: Path, val: Path, scratch: Path
) -> PretrainJob:
    """Return the job of a case, which every process of it gets."""
    return PretrainJob(
        config=training,
        model=model,
        parallel=parallel,
        plan=planned(training, plan_pretraining(training, parallel, launch.count_processes(parallel))),
        train=train,
        val=val,
        data={"train": "train", "val": "val"},
        scratch=scratch,
    )


def pretrained(work: Path, changes: Keys, parallel: ParallelConfig) -> Keys:
    """Train in processes; losses, norms and the weights of the checkpoint that they wrote."""
    training = dataclasses.replace(TRAINING, **changes)
    check_pretrain(training, MODEL, parallel)
    train, val = shards(work / "small/train", TOKENS, 200, 600, 1), shards(work / "small/val", TOKENS, 20, 600, 2)
    scratch = work / "case"
    store.remove(scratch)
    job = pretrain_job(training, MODEL, parallel, train, val, scratch)
    with deadline(SECONDS):
        found = launch.launch(train_and_save, parallel, job)
    folder = step_folder(job.checkpoints, STEPS)
    index = read_index(folder).state_dict_metadata
    weights: Any = {name: torch.empty(entry.size) for name, entry in index.items() if name.startswith("model.")}  # pyright: ignore
    checkpoint.load(folder, weights)
    return {**found, "weights": weights}


def tuned(work: Path, changes: Keys, parallel: ParallelConfig) -> Keys:
    """Fine-tune a classifier in processes, without dropout; losses, norms and its outputs for the validation rows."""
    off = {"dropout": 0.0, "attention_dropout": 0.0}
    config = dataclasses.replace(TUNING, **off, **changes)
    check_finetune(config, parallel, MODEL.n_layer, MODEL.n_head, n_embd=MODEL.n_embd)
    base, glue = base_model(work / "base"), glue_rows(work / "glue")
    job = finetune.FinetuneJob(
        config=config,
        parallel=parallel,
        plan=planned(config, plan_finetuning(config, parallel, launch.count_processes(parallel))),
        task="rows",
        base=base,
        glue=glue,
        splits=(glue / "validation.arrow",),
        scratch=work / "tuned",
    )
    store.remove(job.scratch)
    with deadline(SECONDS):
        found = launch.launch(tune_and_predict, parallel, job)
    return {**found, "weights": {"outputs": torch.tensor(found["outputs"])}}


def base_model(folder: Path) -> BaseModel:
    """A Hugging Face folder with seeded weights; nothing here asks for its tokenizer."""
    from trainer.model import Architecture, LanguageModel, initial_weight
    from trainer.weights import huggingface

    if not folder.exists():
        shape = Architecture.of(MODEL, TOKENS)
        with torch.device("meta"):
            sizes = {name: weight.shape for name, weight in LanguageModel(shape).named_parameters()}
        weights = {name: initial_weight(name, shape, size, seed=3) for name, size in sizes.items()}
        huggingface.save_folder(folder, shape, weights, {})
    return BaseModel(folder=folder, tokenizer=folder)


def glue_rows(folder: Path) -> Path:
    """Rows of many lengths whose class follows from their first token."""
    draws = np.random.default_rng(5)
    metadata = {"tokenizer_sha256": "0" * 64, "vocab_size": TOKENS, "end_of_text": TOKENS - 1, "num_labels": CLASSES}
    for split, size in (("train", 203), ("validation", 61)):
        ids = [draws.integers(TOKENS - 1, size=draws.integers(5, 100)).tolist() for _ in range(size)]
        columns = {"input_ids": pa.array(ids, pa.list_(pa.int32())), "label": [row[0] % CLASSES for row in ids]}
        table = pa.table({**columns, "index": list(range(size))})
        table = table.replace_schema_metadata({name: str(value) for name, value in metadata.items()})
        folder.mkdir(parents=True, exist_ok=True)
        with pa.ipc.new_file(str(folder / f"{split}.arrow"), table.schema) as writer:
            writer.write_table(table)
    return folder


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


def train_and_save(process: Process, job: PretrainJob) -> Keys:
    """One process of a case."""
    from trainer.loop.loop import train_step

    training = prepare(process, job)
    with training.feed:
        reports = [train_step(training) for _ in range(STEPS)]
    checkpoint.save(job.checkpoints, training.step, training.tensors(), training.record())
    return {"losses": [report.loss for report in reports], "norms": [report.grad_norm for report in reports]}


def tune_and_predict(process: Process, job: finetune.FinetuneJob) -> Keys:
    """One process of a case of fine-tuning."""
    from trainer.data.glue import GlueRows
    from trainer.loop.loop import train_step
    from trainer.parallel.mesh import Mesh

    rows = GlueRows(job.glue / "train.arrow")
    training = finetune.prepare(process, Mesh(job.parallel, process.device), job, rows)
    with training.feed:
        reports = [train_step(training) for _ in range(STEPS)]
    outputs = finetune.predict_split(training, job.splits[0], rows)["logits"]
    figures = {"losses": [report.loss for report in reports], "norms": [report.grad_norm for report in reports]}
    return {**figures, "outputs": outputs}


def compared(found: Keys, reference: Keys, limits_of: str) -> tuple[str, bool]:
    """The three largest differences as cells, and whether all are within their limits."""
    relative = [
        max(abs(a - b) / abs(b) for a, b in zip(found[name], reference[name], strict=True))
        for name in ("losses", "norms")
    ]
    weights = max(float((found["weights"][name] - one).abs().max()) for name, one in reference["weights"].items())
    differences = (*relative, weights)
    limits = (*LIMITS[limits_of][:2], OUTPUTS[limits_of] if "outputs" in found else LIMITS[limits_of][2])
    fits = all(a <= limit for a, limit in zip(differences, limits, strict=True))
    return " | ".join(f"{difference:.1e}" for difference in differences), fits


@dataclass(frozen=True, slots=True)
class Timed:
    """What one run of a speed's row gave."""

    tokens_per_second: float
    share: float
    """Of the peak: model FLOPs utilisation."""
    gibibytes: float
    """Largest allocation of the first process."""
    digest: int
    """Of all bits of weights and optimizer states at the end."""

    @classmethod
    def of(cls, seconds: list[float], config: PretrainConfig, shape: Any, gpus: int, digest: int) -> "Timed":
        """From the seconds of the steps; the first ones warm up."""
        rate = config.global_batch_size * config.sequence_length / statistics.median(seconds[5:])
        flops = 6 * shape.parameters + 12 * shape.n_layer * shape.n_embd * config.sequence_length
        memory = torch.cuda.max_memory_allocated() / 2**30
        return cls(rate, rate * flops / PEAK_FLOPS / gpus, memory, digest)


def measure_speeds(work: Path, speeds: list[Speed], nanogpt: Path | None = None) -> list[str]:
    """A row of the table for each of them; `nanogpt`: its model.py, if a row asks for it."""
    alone: dict[tuple[Any, ...], float] = {}

    def cells(speed: Speed) -> str:
        run = timed(work, speed, "fast", nanogpt)
        kept = {key: value for key, value in speed.parallel.items() if key in ON_HOST}
        kind = speed.size, speed.precision, speed.nanogpt, *kept.items()
        if speed.gpus == 1:
            alone[kind] = max(run.tokens_per_second, alone.get(kind, 0.0))
        one = alone.get(kind)
        ratio = f"{run.tokens_per_second / (one * speed.gpus):.1%}" if one and speed.gpus > 1 else ""
        size = f"{speed.micro_batch_size} x {speed.passes}"
        return f"{size} | {run.tokens_per_second:,.0f} | {ratio} | {run.share:.1%} | {run.gibibytes:.0f} |"

    return [row(speed, cells) for speed in speeds]


def measure_exact(work: Path, speeds: list[Speed]) -> list[str]:
    """A row for each of them: with fast kernels, then twice with deterministic ones."""

    def cells(speed: Speed) -> str:
        fast, exact, again = (timed(work, speed, determinism) for determinism in ("fast", "exact", "exact"))
        rates = [run.tokens_per_second for run in (fast, exact)]
        same = exact.digest == again.digest
        outcome = f"the same bits | {OK}" if same else f"other bits | {FAILED}"
        return f"{rates[0]:,.0f} | {rates[1]:,.0f} | {1 - rates[1] / rates[0]:+.1%} | {outcome} |"

    return [row(speed, cells) for speed in speeds]


def row(speed: Speed, cells: Callable[[Speed], str]) -> str:
    """The row of a speed, printed at once; a layout that cannot run says why."""
    head = f"| {speed.size} | {speed.gpus} | {speed.name.removeprefix(f'{speed.size}, ')} | "
    try:
        line = head + cells(speed)
    except (UserError, ConfigError, TimeoutError) as error:
        line = f"{head}FAILED: {error} |"
    print(line, flush=True)
    return line


def timed(work: Path, speed: Speed, determinism: str, nanogpt: Path | None = None) -> Timed:
    """Train GPT-2 of that size for a few steps. `nanogpt`: its model.py, for a row that times it."""
    train, val = (
        shards(work / "gpt2/train", VOCABULARY, 200, 11_000, 1),
        shards(work / "gpt2/val", VOCABULARY, 2, 2_100, 2),
    )
    model, parallel, training = speed.model, layout(speed.parallel, determinism), speed.training(TIMED_STEPS)
    check_pretrain(training, model, parallel)
    job = pretrain_job(training, model, parallel, train, val, work / "speed")
    with deadline(SECONDS):
        if speed.nanogpt:
            return launch.launch(time_nanogpt, parallel, job, nanogpt)
        return launch.launch(time_steps, parallel, job)


def time_nanogpt(process: Process, job: PretrainJob, file: Path) -> Timed:
    """One process of a run of nanoGPT."""
    from trainer.loop.optimizer import OptimizerConfig, learning_rate
    from trainer.model import Architecture

    config, ranks = job.config, process.rank.size
    passes = config.global_batch_size // (config.micro_batch_size * ranks)
    rates = OptimizerConfig.of(config, config.steps, config.warmup_steps)
    rival = NanoGPT(file, job.model, config, process.device, config.seed + process.rank.number)
    batches = one_batch(config.micro_batch_size, config.sequence_length, passes, process.device)
    seconds, _, _ = rival.train(batches, passes, lambda step: learning_rate(rates, step))
    return Timed.of(seconds, config, Architecture.of(job.model, VOCABULARY), ranks, digest=0)


def time_steps(process: Process, job: PretrainJob) -> Timed:
    """One process of a run that is timed."""
    from trainer.loop.loop import train_step

    training = prepare(process, job)
    seconds: list[float] = []
    with training.feed:
        while not training.finished:
            start = time.monotonic()
            train_step(training)  # it reads the loss, so it waits for the device
            seconds.append(time.monotonic() - start)
    bits = digest(training.tensors(), process.device)
    return Timed.of(seconds, job.config, training.model.shape, process.rank.size, bits)


def digest(tensors: dict[str, torch.Tensor], device: torch.device) -> int:
    """A sum over the bits of this process's parts of all tensors, each weighted by its place, added over processes."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    for number, name in enumerate(sorted(tensors), start=1):
        local: Any = getattr(tensors[name], "to_local", lambda name=name: tensors[name])()
        bits = local.detach().contiguous().view(torch.uint8).flatten().to(device)
        for start in range(0, bits.numel(), 1 << 26):
            part = bits[start : start + (1 << 26)].to(torch.int64)
            places = torch.arange(start, start + part.numel(), device=device)
            total += ((part + 1) * (places * 2 + 1) * (2 * number + 1)).sum()
    if torch.distributed.is_initialized():
        total *= 2 * torch.distributed.get_rank() + 1
        torch.distributed.all_reduce(total)
    return int(total)


if __name__ == "__main__":
    main()
