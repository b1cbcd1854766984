"""The planner's predictions beside runs that it was not fitted to, on the GPUs of this machine.

    python -m benchmarks.planned WORKDIR [--only WORD...]
    python -m benchmarks.planned --published

Each case trains GPT-2 for twelve steps through the trainer's own launcher, in processes of its own, and takes the
median of the last seven. Layouts for more GPUs than there are stay out. WORKDIR/provenance.json then has the errors as
runs record them, for `python -m trainer.plan --learn`. Needs nothing but the packages of `trainer/`.

`--published` needs no GPU: it shows the speeds of other trainers, as their authors gave them, beside predictions for
ours.
"""

import argparse
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.layout_jobs import layout
from benchmarks.layout_speeds import TIMED_STEPS as STEPS
from benchmarks.layout_speeds import Speed, timed
from pipelines import store
from pipelines.errors import ConfigError, UserError
from trainer.config import ModelConfig, ParallelConfig, PretrainConfig
from trainer.plan.machines import GIB, GPUS, Machine, gpus_at_hand
from trainer.plan.prediction import GPT2_TOKENS, Prediction, Task, predict
from trainer.plan.search import name_of, search

FULL: dict[str, Any] = {"activation_checkpointing": "full"}
SELECTIVE: dict[str, Any] = {"activation_checkpointing": "selective"}
CASES = [
    Speed("30M", 64, 4),
    Speed("124M", 8, 8),
    Speed("124M", 128, 2),
    Speed("124M", 16, 4, SELECTIVE),
    Speed("124M", 32, 4, length=512),
    Speed("124M", 128, 2, length=256),
    Speed("124M", 16, 4, length=2048),
    Speed("124M", 16, 4, precision="fp32"),
    Speed("124M", 32, 4, precision="fp16"),
    Speed("355M", 16, 4),
    Speed("355M", 64, 2),
    Speed("355M", 32, 2, compile=False),
    Speed("355M", 32, 2, FULL),
    Speed("774M", 8, 4),
    Speed("774M", 32, 2),
    Speed("774M", 32, 2, SELECTIVE),
    Speed("774M", 16, 2, {"offload": "optimizer"}),
    Speed("1.5B", 8, 4),
    Speed("1.5B", 24, 2),
    Speed("1.5B", 32, 2, SELECTIVE),
    Speed("1.5B", 8, 2, length=2048),
    Speed("2.7B", 8, 2),
    Speed("2.7B", 16, 2, FULL),
    Speed("6.7B", 4, 2, FULL),
    Speed("355M", 32, 2, {"dp_replicate": 2}),
    Speed("774M", 16, 2, {"zero": 1, "dp_shard": 2}),
    Speed("774M", 16, 2, {"zero": 2, "dp_shard": 2}),
    Speed("2.7B", 8, 2, {"zero": 3, "dp_shard": 2}),
    Speed("774M", 16, 8, {"pp": 2}),
    Speed("2.7B", 4, 8, {"pp": 2}),
    Speed("774M", 16, 2, {"tp": 2}),
    Speed("2.7B", 16, 2, {"tp": 2}),
    Speed("774M", 8, 2, {"zero": 3, "dp_shard": 2, "offload": "all"}),
]  # fmt: skip
"""None of them is among the runs of tests/trainer/plan, to which the planner's constants were fitted."""


@dataclass(frozen=True, slots=True)
class Published:
    """A run of another trainer, as its authors describe it."""

    who: str
    model: tuple[int, int, int]
    """Layers, heads and width."""
    gpu: str
    gpus: int
    batch_tokens: int
    """Tokens of a step."""
    tokens_per_second: float
    """Of all GPUs."""
    length: int = 1024


PUBLISHED = [
    Published("nanoGPT's README: about 4 days for 600,000 steps", (12, 12, 768), "a100-40gb", 8, 491_520, 853e3),
    Published("llm.c, run_gpt2_124M.sh: 300 ms", (12, 12, 768), "a100-80gb", 8, 524_288, 524_288 / 0.300),
    Published("llm.c in modded-nanogpt's first record: 140 ms", (12, 12, 768), "h100", 8, 524_288, 524_288 / 0.140),
    Published("llm.c, run_gpt2_350M.sh: 820 ms", (24, 16, 1024), "a100-80gb", 8, 524_288, 524_288 / 0.820),
    Published("llm.c, run_gpt2_774M.sh: 1.7 s", (36, 20, 1280), "a100-80gb", 8, 524_288, 524_288 / 1.7),
    Published("llm.c, run_gpt2_1558M.sh: 2.80 s", (48, 25, 1600), "h100", 8, 1_048_576, 1_048_576 / 2.80),
    Published("flash-attention's training README, 125M", (12, 12, 768), "a100-80gb", 8, 524_288, 1310e3, 2048),
    Published("flash-attention's training README, 355M", (24, 16, 1024), "a100-80gb", 8, 524_288, 503e3, 2048),
    Published("flash-attention's training README, 760M", (24, 16, 1536), "a100-80gb", 8, 524_288, 245e3, 2048),
    Published("flash-attention's training README, 1.3B", (24, 16, 2048), "a100-80gb", 8, 524_288, 169e3, 2048),
    Published("flash-attention's training README, 2.7B", (32, 32, 2560), "a100-80gb", 8, 524_288, 85e3, 2048),
    # 138 TFLOP/s a GPU, recomputation counted: 96 B s l h^2 (1 + s / 6 h + V / 16 l h) of a step (arXiv 2104.04473).
    Published("Megatron-LM v2.5's README, 175B", (96, 96, 12288), "a100-80gb", 1024, 3_145_728, 98.5e3, 2048),
]  # fmt: skip
"""Speeds of GPT-2's architecture on A100s and H100s; other shapes (Llama) cannot be planned."""
NEAR_SECONDS, NEAR_BYTES = 0.2, 0.1
"""Relative errors of time and memory that count as near."""


def main() -> None:
    """Run every case that the machine's GPUs allow, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planned", description=__doc__)
    parser.add_argument("work", type=Path, nargs="?", default=Path("planned"))
    parser.add_argument("--published", action="store_true", help="other trainers' speeds beside predictions for ours")
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORD", help="cases whose name has one of these")
    given = parser.parse_args()
    if given.published:
        show_published()
        return
    here = gpus_at_hand()
    if here is None:
        raise SystemExit("no GPU of a kind that the planner knows is here")
    kind, gpus = here
    print(f"{gpus} x {torch.cuda.get_device_name()}, torch {torch.__version__}, Python {sys.version.split()[0]}\n")
    print("| case | GPUs | micro batch x passes | ms/step | planned | error | GiB | planned | error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    segments = [
        segment
        for case in CASES
        if case.gpus <= gpus and any(word in case.name for word in given.only)
        if (segment := compare(given.work, case, kind)) is not None
    ]
    store.write_json(given.work / "provenance.json", {"segments": segments})
    errors = [(each["planned"]["step_error"], each["planned"]["memory_error"]) for each in segments]
    seconds = sum(abs(time) <= NEAR_SECONDS for time, _ in errors)
    memory = sum(abs(space) <= NEAR_BYTES for _, space in errors)
    near = f"time within {NEAR_SECONDS:.0%} in {seconds}, memory within {NEAR_BYTES:.0%} in {memory}"
    print(f"\nOf {len(errors)} runs: {near}.")


def compare(work: Path, case: Speed, kind: str) -> dict[str, Any] | None:
    """Run a case, print its row, and return it as a run records it; None if it cannot run."""
    found = planned(case, kind)
    head = f"| {case.name} | {case.gpus} | {case.micro_batch_size} x {case.passes} | "
    try:
        run = timed(work, case, "fast")
    except (UserError, ConfigError, TimeoutError) as error:
        print(f"{head}FAILED: {error} |", flush=True)
        return None
    taken = found.task.tokens / run.tokens_per_second
    time, space = found.step / taken - 1, found.bytes / GIB / run.gibibytes - 1
    print(
        f"{head}{taken * 1e3:,.1f} | {found.step * 1e3:,.1f} | {time:+.0%} | "
        f"{run.gibibytes:.1f} | {found.bytes / GIB:.1f} | {space:+.0%} |",
        flush=True,
    )
    return {
        "device": torch.cuda.get_device_name(),
        "from_step": 0,
        "to_step": STEPS,
        "layout": {**asdict(found.parallel), "processes": case.gpus},
        "planned": {"step_error": time, "memory_error": space},
    }


def show_published() -> None:
    """Print what others published beside the best layout that is planned for their model and GPUs."""
    print("| published run | GPUs | tokens/s | planned for ours | ratio | layout |")
    print("| --- | --- | --- | --- | --- | --- |")
    for run in PUBLISHED:
        layers, heads, width = run.model
        model = ModelConfig(n_layer=layers, n_head=heads, n_embd=width, n_positions=run.length)
        config = PretrainConfig(
            sequence_length=run.length, global_batch_size=run.batch_tokens // run.length, precision="bf16", compile=True
        )
        task = Task(model=model, vocab_size=GPT2_TOKENS, config=config)
        best = search(task, Machine(gpu=GPUS[run.gpu], gpus=run.gpus), ParallelConfig()).fitting[0]
        ratio = best.tokens_per_second / run.tokens_per_second
        print(
            f"| {run.who} | {run.gpus} x {run.gpu} | {run.tokens_per_second:,.0f} | {best.tokens_per_second:,.0f} | "
            f"{ratio:.2f} | {name_of(best)} |"
        )


def planned(case: Speed, kind: str) -> Prediction:
    """Predict a case on GPUs of that kind."""
    task = Task(model=case.model, vocab_size=GPT2_TOKENS, config=case.training(STEPS))
    return predict(task, Machine(gpu=GPUS[kind], gpus=case.gpus), layout(case.parallel, "fast"), case.micro_batch_size)


if __name__ == "__main__":
    main()
