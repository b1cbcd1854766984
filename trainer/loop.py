"""The one training loop: pretraining and fine-tuning are two uses of it.

A step: the global batch's micro batches forward and backward, gradients summed over processes once, clipped,
one update. Losses are sums divided by the terms of the whole global batch, so neither micro batches nor processes
change their mean.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines.errors import UserError
from trainer import checkpoint
from trainer.batches import Batch, Batches, micro_batches, share
from trainer.config import FinetuneConfig, ParallelConfig, PretrainConfig
from trainer.hooks import Hook
from trainer.model import GPT2, initialise
from trainer.optimizer import Recipe, build_optimizer, clip, learning_rate, update
from trainer.parallel import parallelize
from trainer.parallel.mesh import Mesh
from trainer.parallel.zero import Gradients
from trainer.precision import set_precision
from trainer.process import Process, StopFlag, Stopped
from trainer.records import checkpoints, read_record, remove_leftovers, require_same_model

logger = logging.getLogger(__name__)

Objective = Callable[[Any, Batch], Tensor]
"""(model, batch) -> the loss summed over the batch's terms."""


@dataclass(slots=True)
class StepReport:
    """What one step did."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    stop: bool
    """Whether some process was asked to stop: the same in all of them."""
    val_loss: float | None = None


@dataclass(slots=True, kw_only=True)
class Training:
    """A run between two steps: all that is saved, and what the steps need."""

    model: GPT2
    gradients: Gradients
    optimizer: torch.optim.AdamW
    recipe: Recipe
    batches: Batches
    objective: Objective
    mesh: Mesh
    stop: StopFlag
    micro_batch_size: int
    checkpoint_every: int
    identity: dict[str, Any]
    """What the run is: model, tokenizer, data, section; goes into each checkpoint's record."""
    step: int = 0
    position: int = 0
    """Samples consumed: the place of the next one in the data."""
    tokens: int = 0
    optimizer_steps: int = 0

    @property
    def finished(self) -> bool:
        """Whether the last step is done."""
        return self.step >= self.recipe.steps

    def saves_now(self, report: StepReport) -> bool:
        """Whether a checkpoint belongs after this step."""
        return report.stop or self.finished or self.step % self.checkpoint_every == 0

    def tensors(self) -> dict[str, Tensor]:
        """The checkpoint's tensors, as views of the live ones."""
        return checkpoint.model_tensors(self.model) | checkpoint.optimizer_tensors(self.model, self.optimizer)

    def record(self) -> dict[str, Any]:
        """The checkpoint's JSON. No random state is in it: order and dropout follow from seed and position."""
        counters = ("step", "position", "tokens", "optimizer_steps")
        return {**self.identity, **{name: getattr(self, name) for name in counters}}

    def restore(self, folder: Path) -> dict[str, Any]:
        """Take weights, optimizer state and counters from a checkpoint of the same model; returns its record."""
        record = read_record(folder)
        require_same_model(folder, record, self.identity["model"])
        checkpoint.load(folder, self.tensors())
        self.step, self.position = record["step"], record["position"]
        self.tokens, self.optimizer_steps = record["tokens"], record["optimizer_steps"]
        checkpoint.set_optimizer_steps(self.optimizer, self.optimizer_steps)
        return record

    def resume(self, root: Path) -> bool:
        """Go on from the newest of the run's own checkpoints, if there is one."""
        if self.mesh.is_first:
            remove_leftovers(root)
        self.mesh.barrier()
        own = checkpoints(root)
        if not own:
            return False
        self.restore(list(own.values())[-1])
        if self.mesh.is_first:
            logger.info("going on from step %d of %d", self.step, self.recipe.steps)
        return True


def assemble(
    process: Process,
    build: Callable[[], GPT2],
    recipe: Recipe,
    batches: Batches,
    objective: Objective,
    identity: dict[str, Any],
    *,
    config: PretrainConfig | FinetuneConfig,
    parallel: ParallelConfig,
    compile_blocks: bool = False,
) -> Training:
    """Build, parallelize and initialise a model, and put everything about its training together."""
    mesh = Mesh(parallel, process.device)
    model, gradients = parallelize(build, mesh, parallel, compile_blocks=compile_blocks)
    initialise(model, config.seed)
    set_precision(model, config.precision, process.device)
    model.transformer.dropout_seed = config.seed
    return Training(
        model=model,
        gradients=gradients,
        optimizer=build_optimizer(model, recipe),
        recipe=recipe,
        batches=batches,
        objective=objective,
        mesh=mesh,
        stop=process.stop,
        micro_batch_size=config.micro_batch_size,
        checkpoint_every=config.checkpoint_every,
        identity={"model": model.shape.record(), **identity},
    )


def train(training: Training, hooks: Sequence[Hook]) -> None:
    """All steps that are left. Raises Stopped after the step in which a stop was asked for."""
    stopped = False
    try:
        for hook in hooks:
            hook.before_training(training)
        while not training.finished and not stopped:
            report = train_step(training)
            for hook in hooks:
                hook.after_step(training, report)
            stopped = report.stop
    finally:
        # Also after an error: a bar that stays would hide the terminal's cursor.
        for hook in hooks:
            hook.after_training(training)
    if stopped and not training.finished:
        raise Stopped(f"after step {training.step} of {training.recipe.steps}")


def train_step(training: Training) -> StepReport:
    """One optimizer step on the next global batch."""
    mesh, batches = training.mesh, training.batches
    places = batches.places(training.position)
    mine = share(places, mesh.data_rank, mesh.data_ranks)
    training.model.train()
    training.gradients.zero()
    # The mean loss, and how many processes were asked to stop.
    totals = torch.zeros(2, dtype=torch.float64, device=mesh.device)
    for batch in micro_batches(batches, mine, training.micro_batch_size):
        loss = training.objective(training.model, batch.to(mesh.device)) / batches.terms(places)
        loss.backward()
        totals[0] += loss.detach()
    totals[1] = float(training.stop.requested)
    training.gradients.reduce()
    mesh.sum_over_data(totals)
    norm = clip(training.model.parameters(), training.recipe.clip_norm)
    lr = learning_rate(training.recipe, training.step)
    update(training.optimizer, lr)
    training.step += 1
    training.optimizer_steps += 1
    training.position += len(places)
    training.tokens += batches.tokens(places)
    mean_loss, stop = totals.tolist()
    report = StepReport(training.step, mean_loss, lr, float(norm), stop > 0)
    for name, value in (("loss", report.loss), ("gradient norm", report.grad_norm)):
        if not math.isfinite(value):
            raise UserError(
                f"the {name} of step {report.step} is {value}: lower the learning rate, or lengthen the warm-up"
            )
    return report
