"""The training loop of both pretraining and fine-tuning.

A step runs the global batch's micro batches forward and backward, sums gradients over processes once, clips them and
updates the weights. Losses are sums divided by the terms of the whole global batch, so neither micro batches nor
processes change the mean.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.config import FinetuneConfig, ParallelConfig, PretrainConfig
from trainer.data.batch import Batches
from trainer.data.feed import Feed
from trainer.data.order import Ids
from trainer.loop import guard
from trainer.loop.optimizer import AdamW, OptimizerConfig, clip, learning_rate
from trainer.loop.precision import LossScale, compute_dtype
from trainer.loop.timing import Phases
from trainer.loop.training import Hook, StepReport, Training
from trainer.model import GPT2, Architecture, Stage
from trainer.parallel import parallelize
from trainer.parallel.mesh import Mesh
from trainer.plan import Plan
from trainer.processes.process import Process, Stopped

logger = logging.getLogger(__name__)


def assemble(
    process: Process,
    mesh: Mesh,
    build: Callable[[Stage | None], GPT2],
    shape: Architecture,
    batches: Batches,
    identity: dict[str, Any],
    *,
    config: PretrainConfig | FinetuneConfig,
    parallel: ParallelConfig,
    plan: Plan,
    compile_blocks: bool = False,
) -> Training:
    """Build, parallelize and initialise a model, and assemble its training."""
    size, optimizer_config = plan.layout.micro_batch_size, OptimizerConfig.of(config, plan.steps, plan.warmup_steps)
    dtype = compute_dtype(config.precision, process.device)
    model = parallelize(build, shape, mesh, parallel, compute_dtype=dtype, compile_blocks=compile_blocks)
    model.initialise(config.seed)
    for part in model.stages:
        part.transformer.dropout_seed = config.seed
    return Training(
        model=model,
        optimizer=AdamW(model.weights, optimizer_config, on_host=parallel.offload == "optimizer"),
        loss_scale=LossScale(config.loss_scale, config.precision),
        optimizer_config=optimizer_config,
        batches=batches,
        feed=Feed(batches, mesh.data_rank, mesh.data_ranks, model.pipeline.batch_size(size), mesh.device),
        mesh=mesh,
        stop=process.stop,
        micro_batch_size=size,
        checkpoint_every=config.checkpoint_every,
        phases=Phases(mesh.device),
        identity={"model": shape.record(), **identity},
    )


def train(training: Training, hooks: Sequence[Hook]) -> None:
    """Run all remaining steps. Raises Stopped after the step in which a stop was requested."""
    stopped = False
    with contextlib.ExitStack() as endings:
        # Every hook, also after an error: a progress bar left behind would hide the terminal's cursor.
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
        raise Stopped(f"after step {training.step} of {training.optimizer_config.steps}")


def train_step(training: Training) -> StepReport:
    """Run one optimizer step on the next global batch. Raises UserError if its loss or a gradient is not finite."""
    mesh, model, batches, phases = training.mesh, training.model, training.batches, training.phases
    phases.start_step()
    phases.begin("forward_backward")
    sample_ids = batches.sample_ids(training.position)
    scale = training.loss_scale.value
    loss = _forward_backward(training, sample_ids)
    # The mean loss, and the number of processes that were asked to stop.
    stop = mesh.sum_over(torch.full_like(loss, training.stop.requested, dtype=torch.float64), "pp", "tp")
    own, totals = loss.double(), torch.stack((loss.double(), stop))
    phases.begin("reduce_clip")
    model.gradients.reduce()
    mesh.sum_over_data(totals)
    norm = float(clip(model.gradients, mesh, training.optimizer_config.clip_norm, scale))
    mean_loss, stop, own_loss = torch.cat((totals, own[None])).tolist()
    lr = learning_rate(training.optimizer_config, training.step)
    report = StepReport(training.step + 1, mean_loss, lr, norm, stop > 0, None, sample_ids, own_loss * mesh.data_ranks)
    used = training.loss_scale.update(finite=math.isfinite(norm))
    finite = math.isfinite(mean_loss) and math.isfinite(norm)
    if not finite and (used or scale == training.loss_scale.config.minimum):
        raise guard.not_finite(training, report, lambda: _forward_backward(training, sample_ids))
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
    training.position += len(sample_ids)
    training.tokens += batches.tokens(sample_ids)
    return report


def _forward_backward(training: Training, sample_ids: Ids) -> Tensor:
    """Run all passes of this process's share of these samples; return its part of their mean loss."""
    mesh, model = training.mesh, training.model
    model.train(mode=True)
    model.gradients.zero()
    share = -(-len(sample_ids) // mesh.data_ranks)
    micro_batches = training.phases.waiting(training.feed.step(training.position))
    scale = training.loss_scale.value
    scaled = scale / training.batches.terms(sample_ids)
    return model.forward_backward(micro_batches, training.micro_batch_size, share, scaled) / scale
