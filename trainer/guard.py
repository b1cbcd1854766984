"""Watches the loss: ends training when it is no number, warns of a spike; says where, and what was in the batch."""

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from pipelines import store
from pipelines.errors import UserError
from trainer.hooks import Hook
from trainer.loader.order import Ids, share
from trainer.shards import local

if TYPE_CHECKING:
    from trainer.loop import StepReport, Training

logger = logging.getLogger(__name__)

SHOWN = 4
"""Documents named in a message; a file has them all."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What one process saw of a batch."""

    data_rank: int
    step_loss: float
    loss: float
    """Of its own share, computed again."""
    broken: Sequence[str]
    """Parameters whose gradient is not finite, before gradients are added up over processes."""


def not_finite(training: "Training", report: "StepReport", again: Callable[[], Tensor]) -> UserError:
    """The error for a step whose loss or gradient norm is no number.

    `again` makes the step's passes once more, from the same weights: the gradients at hand are sums over processes,
    and do not tell who spoilt them. (ZeRO adds them up inside the passes: there the loss alone may tell.) Every
    process calls this.
    """
    loss = float(again()) * training.mesh.data_ranks
    broken = [
        weight
        for weight, parameter in training.model.weights.items()
        if parameter.grad is not None and not bool(local(parameter.grad).isfinite().all())
    ]
    sights = training.mesh.gather(Sight(training.mesh.data_rank, report.loss, loss, sorted(broken)))
    # Processes that share a batch have the same loss, unless one of them cannot reckon.
    losses = [sight.step_loss for sight in sights if not math.isfinite(sight.step_loss)]
    name, value = ("loss", losses[0]) if losses else ("gradient norm", report.grad_norm)
    text = f"the {name} of step {report.step} is {value}: lower the learning rate, or lengthen the warm-up"
    return UserError(f"{text}; {_first_sight(training, report, sights)}")


def _first_sight(training: "Training", report: "StepReport", sights: Sequence[Sight]) -> str:
    ranks = [rank for rank, sight in enumerate(sights) if not math.isfinite(sight.loss)]
    ranks = ranks or [rank for rank, sight in enumerate(sights) if sight.broken]
    if not ranks:
        return "computed again it is finite, so no sample but the machine, or a race on it, is to blame"
    sight = sights[ranks[0]]
    broken = sight.broken or next((each.broken for each in sights if each.broken), ())
    more = f" and of {len(broken) - 1} more" if len(broken) > 1 else ""
    gradient = f", in the gradient of {broken[0]}{more}" if broken else ""
    return f"process {ranks[0]} saw it first{gradient}, in {_documents(training, report, sight.data_rank)}"


def _documents(training: "Training", report: "StepReport", data_rank: int) -> str:
    """The first documents of a process's share of the step; all of the step's go to a file."""
    mesh, batches, places = training.mesh, training.batches, report.places
    found = list(dict.fromkeys(batches.names(share(places, data_rank, mesh.data_ranks))))
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    text = ", ".join(found[:SHOWN]) + more
    if training.watch is None:
        return text
    file = training.watch / f"step-{report.step:08d}.txt"
    if mesh.is_first:
        with store.create(file) as out:
            out.write("".join(f"{line}\n" for line in _lines(training, places)).encode())
    return f"{text} ({file} has the whole batch)"


def _lines(training: "Training", places: Ids) -> Sequence[str]:
    ranks = training.mesh.data_ranks
    return [
        f"{'' if ranks == 1 else f'share {rank}: '}{line}"
        for rank in range(ranks)
        for line in training.batches.describe(share(places, rank, ranks))
    ]


class Spikes(Hook):
    """Warns of a loss that is more than `sigma` standard deviations above the mean of the last `window` ones.

    llm.c's outlier detector (`llmc/outlier_detector.h`), which skips such steps; here nothing changes.
    """

    def __init__(self, sigma: float, window: int) -> None:
        self.sigma = sigma
        self._losses: deque[float] = deque(maxlen=window)

    def after_step(self, training: "Training", report: "StepReport") -> None:
        """Look, once the window is full; the loss is the same number in all processes, so all look or none."""
        losses = self._losses
        if len(losses) == losses.maxlen:
            mean, spread = statistics.fmean(losses), statistics.pstdev(losses)
            if spread and report.loss > mean + self.sigma * spread:
                self._warn(training, report, (report.loss - mean) / spread)
        losses.append(report.loss)

    def _warn(self, training: "Training", report: "StepReport", height: float) -> None:
        mesh = training.mesh
        norms = {
            name: float(local(weight.grad).norm())
            for name, weight in training.model.weights.items()
            if weight.grad is not None
        }
        steepest = max(norms, key=lambda name: norms[name], default="")
        seen = mesh.gather((report.own_loss, mesh.data_rank, norms.get(steepest, 0.0), steepest))
        rank = max(range(len(seen)), key=lambda rank: (seen[rank][0], -rank))
        largest = max(seen, key=lambda each: each[2])[3]
        documents = _documents(training, report, seen[rank][1])
        if mesh.is_first:
            logger.warning(
                "loss spike: step %d has %.4f, %.1f standard deviations above the last %d steps; highest in process "
                "%d (%.4f), largest gradient in %s; in %s",
                *(report.step, report.loss, height, len(self._losses), rank, seen[rank][0], largest, documents),
            )
