"""What a recipe takes on a few machines, and what came of its model elsewhere: lines that `pipelines use` prints."""

from collections.abc import Iterator, Mapping
from typing import Any

from trainer.config import ParallelConfig
from trainer.plan.machines import GPUS, Machine
from trainer.plan.prediction import Task
from trainer.plan.search import name_of, search

MACHINES = (("rtx4090", 1), ("h100", 1), ("a100-80gb", 8), ("h100", 8))
"""Kind and number of the GPUs of which a recipe says what it takes."""


def describe_recipe(recipe: Mapping[str, Any], task: Task, base: ParallelConfig) -> Iterator[str]:
    """Yield the lines about a recipe: its size, its time, memory and price with the best layout, published losses."""
    tokens = task.all_tokens
    length = f"{tokens // task.tokens:,} steps of {task.tokens:,} tokens, {tokens / 1e6:,.0f} M in all"
    length = length if tokens else f"{task.config.epochs:g} epochs"
    yield (
        f"recipe {recipe['name']}: {task.parameters / 1e6:,.0f} M parameters, {length}; each checkpoint "
        f"{12 * task.parameters / 1e6:,.0f} MB"
    )
    if tokens and base.device != "cpu":
        for kind, number in MACHINES:
            yield f"  {f'{number} x {kind}':14} {_needs(task, Machine(gpu=GPUS[kind], gpus=number), base, tokens)}"
        yield "  layout: python -m trainer.plan --write on the machine with the GPUs, or with --gpus 8 --gpu h100 here"
    for who, loss in recipe["losses"].items():
        yield f"  validation loss {loss:.2f}: {who}"
    if recipe["losses"]:
        yield "  (losses compare on the same text, with GPT-2's tokenizer)"


def _needs(task: Task, machine: Machine, base: ParallelConfig, tokens: float) -> str:
    found = search(task, machine, base).fitting
    if not found:
        return "does not fit"
    hours = tokens / found[0].tokens_per_second / 3600
    price = f"${hours * machine.gpus * machine.gpu.price:,.0f}" if machine.gpu.price else ""
    return f"{hours:>8,.1f} h {price:>8} {found[0].bytes / 1e9:>5,.0f} GB a GPU, {name_of(found[0])}"
