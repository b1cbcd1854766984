"""The one training loop: pretraining and fine-tuning are two uses of it.

A step: the global batch's micro batches forward and backward, gradients summed over processes once, clipped,
one update. Losses are sums divided by the terms of the whole global batch, so neither micro batches nor processes
change their mean.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer import checkpoint, guard
from trainer.config import FinetuneConfig, ParallelConfig, PretrainConfig
from trainer.hooks import Hook
from trainer.loader.batch import Batches
from trainer.loader.feed import Feed
from trainer.loader.order import Ids
from trainer.model import GPT2, Architecture, Stage
from trainer.optimizer import AdamW, Recipe, clip, learning_rate
from trainer.parallel import Parallel, parallelize
from trainer.parallel.mesh import Mesh
from trainer.precision import LossScale, compute_dtype
from trainer.process import Process, StopFlag, Stopped
from trainer.records import DamagedError, checkpoints, read_record, remove_leftovers, require_same_model, set_aside
from trainer.timing import Phases

logger = logging.getLogger(__name__)


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
    places: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    """The samples of all processes, by their places in the run."""
    own_loss: float = math.nan
    """The mean of this process's share of them."""


@dataclass(slots=True, kw_only=True)
class Training:
    """A run between two steps: all that is saved, and what the steps need."""

    model: Parallel[Any]
    optimizer: AdamW
    loss_scale: LossScale
    recipe: Recipe
    batches: Batches
    feed: Feed
    mesh: Mesh
    stop: StopFlag
    micro_batch_size: int
    checkpoint_every: int
    phases: Phases
    identity: dict[str, Any]
    """What the run is: model, tokenizer, data, section; goes into each checkpoint's record."""
    step: int = 0
    position: int = 0
    """Samples consumed: the place of the next one in the data."""
    tokens: int = 0
    watch: Path | None = None
    """Folder for what is only looked at; None: nowhere."""

    @property
    def finished(self) -> bool:
        """Whether the last step is done."""
        return self.step >= self.recipe.steps

    def saves_now(self, report: StepReport) -> bool:
        """Whether a checkpoint belongs after this step."""
        return report.stop or self.finished or self.step % self.checkpoint_every == 0

    def tensors(self) -> dict[str, Tensor]:
        """The checkpoint's tensors, as views of the live ones."""
        weights, vocab_size = self.model.weights, self.model.shape.vocab_size
        moments = checkpoint.optimizer_tensors(weights, self.optimizer.moments, vocab_size)
        return checkpoint.model_tensors(weights, vocab_size) | moments

    def record(self) -> dict[str, Any]:
        """The checkpoint's JSON. No random state is in it: order and dropout follow from seed and position."""
        counters = {name: getattr(self, name) for name in ("step", "position", "tokens")}
        scale = {"loss_scale": self.loss_scale.record()} if self.loss_scale.dynamic else {}
        return {**self.identity, **counters, "optimizer_steps": self.optimizer.steps, **scale}

    def restore(self, folder: Path) -> dict[str, Any]:
        """Take weights, optimizer state and counters from a checkpoint of the same model; returns its record.

        Raises DamagedError, in every process, before anything is taken from one that is not as it was written.
        """
        checkpoint.require_whole(folder)
        record = self.mesh.from_first(lambda: read_record(folder))
        require_same_model(folder, record, self.identity["model"])
        tensors = self.tensors()
        checkpoint.load(folder, tensors)
        checkpoint.give_embedding(tensors, self.model.weights, self.optimizer.moments)
        self.step, self.position, self.tokens = record["step"], record["position"], record["tokens"]
        self.optimizer.steps = record["optimizer_steps"]
        if self.loss_scale.dynamic and "loss_scale" in record:
            self.loss_scale.restore(record["loss_scale"])
        return record

    def resume(self, root: Path) -> bool:
        """Go on from the newest of the run's own checkpoints that is not damaged, if there is one."""

        def look() -> list[Path]:
            remove_leftovers(root)
            return list(checkpoints(root).values())

        for folder in reversed(self.mesh.from_first(look)):
            try:
                self.restore(folder)
            except DamagedError as damage:
                if self.mesh.is_first:
                    aside = set_aside(folder)
                    logger.warning("%s; the checkpoint is kept as %s, not used", damage.problem, aside.name)
                continue
            if self.mesh.is_first:
                logger.info("going on from step %d of %d", self.step, self.recipe.steps)
            return True
        return False


def assemble(
    process: Process,
    mesh: Mesh,
    build: Callable[[Stage | None], GPT2],
    shape: Architecture,
    recipe: Recipe,
    batches: Batches,
    identity: dict[str, Any],
    *,
    config: PretrainConfig | FinetuneConfig,
    parallel: ParallelConfig,
    micro_batch_size: int,
    compile_blocks: bool = False,
) -> Training:
    """Build, parallelize and initialise a model, and put everything about its training together."""
    size = micro_batch_size
    dtype = compute_dtype(config.precision, process.device)
    model = parallelize(build, shape, mesh, parallel, compute_dtype=dtype, compile_blocks=compile_blocks)
    model.initialise(config.seed)
    for part in model.parts:
        part.transformer.dropout_seed = config.seed
    return Training(
        model=model,
        optimizer=AdamW(model.weights, recipe, on_host=parallel.offload == "optimizer"),
        loss_scale=LossScale(config.loss_scale, config.precision),
        recipe=recipe,
        batches=batches,
        # A pipeline's schedule cuts the micro batches itself.
        feed=Feed(batches, mesh.data_rank, mesh.data_ranks, size if mesh.pp == 1 else 0, mesh.device),
        mesh=mesh,
        stop=process.stop,
        micro_batch_size=size,
        checkpoint_every=config.checkpoint_every,
        phases=Phases(mesh.device),
        identity={"model": shape.record(), **identity},
    )


def train(training: Training, hooks: Sequence[Hook]) -> None:
    """All steps that are left. Raises Stopped after the step in which a stop was asked for."""
    stopped = False
    with contextlib.ExitStack() as endings:
        # Each of them, also after an error: a bar that stays would hide the terminal's cursor.
        for hook in reversed(hooks):
            endings.callback(hook.after_training, training)
        for hook in hooks:
            hook.before_training(training)
        with training.feed:
            while not training.finished and not stopped:
                report = train_step(training)
                for hook in hooks:
                    training.phases.begin(hook.phase)
                    hook.after_step(training, report)
                stopped = report.stop
    if stopped and not training.finished:
        raise Stopped(f"after step {training.step} of {training.recipe.steps}")


def train_step(training: Training) -> StepReport:
    """One optimizer step on the next global batch; UserError where its loss or gradients are no numbers."""
    mesh, model, batches, phases = training.mesh, training.model, training.batches, training.phases
    phases.start_step()
    phases.begin("forward_backward")
    places = batches.places(training.position)
    scale = training.loss_scale.value
    loss = _forward_backward(training, places)
    # The mean loss, and how many processes were asked to stop.
    stop = mesh.sum_over(torch.full_like(loss, training.stop.requested, dtype=torch.float64), "pp", "tp")
    own, totals = loss.double(), torch.stack((loss.double(), stop))
    phases.begin("reduce_clip")
    model.gradients.reduce()
    mesh.sum_over_data(totals)
    norm = float(clip(model.gradients, mesh, training.recipe.clip_norm, scale))
    mean_loss, stop, own_loss = torch.cat((totals, own[None])).tolist()
    lr = learning_rate(training.recipe, training.step)
    report = StepReport(training.step + 1, mean_loss, lr, norm, stop > 0, None, places, own_loss * mesh.data_ranks)
    used = training.loss_scale.update(finite=math.isfinite(norm))
    finite = math.isfinite(mean_loss) and math.isfinite(norm)
    if not finite and (used or scale == training.loss_scale.config.minimum):
        raise guard.not_finite(training, report, lambda: _forward_backward(training, places))
    phases.begin("optimizer")
    if used:
        training.optimizer.update(lr)
    elif mesh.is_first:
        logger.warning(
            "step %d: gradients overflow in fp16, so its update is left out; loss scale %g",
            report.step,
            training.loss_scale.value,
        )
    training.step += 1
    training.position += len(places)
    training.tokens += batches.tokens(places)
    return report


def _forward_backward(training: Training, places: Ids) -> Tensor:
    """All passes of this process's share of the samples at these places; its part of their mean loss."""
    mesh, model = training.mesh, training.model
    model.train(mode=True)
    model.gradients.zero()
    share, size = -(-len(places) // mesh.data_ranks), training.micro_batch_size
    mine = training.phases.waiting(training.feed.step(training.position))
    scale = training.loss_scale.value
    passes = -(-share // size) if size else 1
    return model.forward_backward(mine, size, passes, scale / training.batches.terms(places)) / scale
