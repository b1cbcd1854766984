"""The training loop of both pretraining and fine-tuning.

A step runs the global batch's micro batches forward and backward, sums gradients over processes once, clips them and
updates the weights. Losses are sums divided by the terms of the whole global batch, so neither micro batches nor
processes change the mean.
"""

import contextlib
import importlib.util
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
from trainer.loop.precision import LossScale, compute_dtype, resolve
from trainer.loop.timing import Phases
from trainer.loop.training import Hook, StepReport, Training
from trainer.model import GPT2, Architecture, Stage
from trainer.parallel import parallelize
from trainer.parallel.mesh import Mesh
from trainer.parallel.zero import squared_norm
from trainer.plan import Plan
from trainer.processes.process import Process, Stopped

logger = logging.getLogger(__name__)

OLDEST_COMPILED = (7, 0)
"""Compute capability of the oldest GPUs that Triton makes code for."""


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
) -> Training:
    """Build, parallelize and initialise a model, and assemble its training."""
    size, optimizer_config = plan.layout.micro_batch_size, OptimizerConfig.of(config, plan.steps, plan.warmup_steps)
    precision = resolve(config.precision, process.device)
    dtype, compiled = compute_dtype(precision, process.device), compiles(process, config, parallel)
    model = parallelize(build, shape, mesh, parallel, compute_dtype=dtype, compile_blocks=compiled)
    model.initialise(config.seed)
    for part in model.stages:
        part.transformer.dropout_seed = config.seed
    return Training(
        model=model,
        optimizer=AdamW(model.weights, optimizer_config, on_host=parallel.offload == "optimizer"),
        loss_scale=LossScale(config.loss_scale, precision),
        optimizer_config=optimizer_config,
        batches=batches,
        feed=Feed(
            batches,
            mesh.data_rank,
            mesh.data_ranks,
            model.pipeline.batch_size(size),
            mesh.device,
            rounding=model.rounding,
        ),
        mesh=mesh,
        stop=process.stop,
        micro_batch_size=size,
        checkpoint_every=config.checkpoint_every,
        phases=Phases(mesh.device),
        identity={"model": shape.record(), **identity},
    )


def compiles(process: Process, config: PretrainConfig | FinetuneConfig, parallel: ParallelConfig) -> bool:
    """Return whether blocks and loss are compiled; where torch cannot, train without, and say so once."""
    if not config.compile:
        return False
    reason = ""
    if process.device.type == "cpu" and parallel.tp > 1 and parallel.activation_checkpointing == "full":
        # torch 2.13 fails on a graph that holds both the mesh of a DTensor and the state of a random operator.
        reason = "on CPUs, torch cannot compile tensor parallelism with full activation checkpointing"
    elif process.device.type == "cuda" and importlib.util.find_spec("triton") is None:
        reason = "Triton is not installed"
    elif process.device.type == "cuda" and torch.cuda.get_device_capability(process.device) < OLDEST_COMPILED:
        reason = f"{torch.cuda.get_device_name(process.device)} is too old for Triton"
    if reason and process.rank.number == 0:
        section = "pretrain" if isinstance(config, PretrainConfig) else "finetune"
        logger.warning("%s.compile: %s; training goes on without it, more slowly", section, reason)
    return not reason


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
    own = _forward_backward(training, sample_ids).double()
    phases.begin("reduce_clip")
    model.gradients.reduce()
    # One exchange for the mean loss, which all processes of a tp group have, the number of processes that were asked to
    # stop, and the squared norm.
    stop = torch.full_like(own, training.stop.requested)
    totals = mesh.sum_over_all(torch.stack((own / mesh.tp, stop, squared_norm(model.gradients, mesh))))
    # MKL's root of an fp32 number ends in what the processor's estimate of a reciprocal was, and those differ.
    norm = (totals[2].sqrt() / scale).float()
    clip(model.gradients, norm, training.optimizer_config.clip_norm, scale)
    figures = Figures(torch.stack((totals[0], totals[1], norm.double(), own)))
    lr = learning_rate(training.optimizer_config, training.step)
    phases.begin("optimizer")
    # Before the host reads the figures, so that the device has work meanwhile; it leaves the update out by itself.
    updates_first = training.optimizer.device == mesh.device
    if updates_first:
        training.optimizer.update(lr, (~(totals[0].isfinite() & norm.isfinite())).float())
    tokens = batches.tokens(sample_ids)  # here, too, the device has work meanwhile
    mean_loss, stop, grad_norm, own_loss = figures.read()
    report = StepReport(
        training.step + 1, mean_loss, lr, grad_norm, stop > 0, None, sample_ids, own_loss * mesh.data_ranks
    )
    finite = math.isfinite(mean_loss) and math.isfinite(grad_norm)
    used = training.loss_scale.update(finite=finite)
    if not finite and (used or scale == training.loss_scale.config.minimum):
        raise guard.not_finite(training, report, lambda: _forward_backward(training, sample_ids))
    if used:
        if not updates_first:
            training.optimizer.update(lr)
        training.optimizer.steps += 1
    elif mesh.is_first:
        logger.warning(
            "step %d: gradients overflow in fp16, so its update is left out; loss scale %g",
            report.step,
            training.loss_scale.value,
        )
    training.step += 1
    training.position += len(sample_ids)
    training.tokens += tokens
    return report


class Figures:
    """Numbers on the device that the host reads without waiting for work that the device got after them."""

    def __init__(self, values: Tensor) -> None:
        """Begin to copy `values` to the host."""
        self._values = values
        if values.is_cuda:
            self._values = torch.empty_like(values, device="cpu", pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def read(self) -> list[float]:
        """Return them once they are there."""
        if self._values.is_pinned():
            self._copied.synchronize()
        return self._values.tolist()


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
