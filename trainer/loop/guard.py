"""Guard the loss: stop training if it is not finite, warn of spikes, and name the process and the documents."""

import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from pipelines import store
from pipelines.errors import UserError
from trainer.data.lineage import name_samples
from trainer.data.order import Ids, local_slice
from trainer.loop.training import Hook, StepReport, Training
from trainer.model import HEAD, TIED
from trainer.parallel.local import local, sharded_axes
from trainer.parallel.mesh import DATA_AXES

logger = logging.getLogger(__name__)

SHOWN = 4
"""Number of documents or weights named in a message; a file lists all documents."""
REPLICATING_AXES = (*DATA_AXES, "tp")
"""Axes along which processes hold the same weight, unless it is sharded there."""
_FACTOR = 1_000_003
"""Of the rows in a checksum: larger than any number of columns."""


@dataclass(frozen=True, slots=True)
class LocalDiagnosis:
    """One process's findings about a batch whose loss or gradient is not finite."""

    data_rank: int
    step_loss: float
    loss: float
    """Of the process's own share, recomputed."""
    broken: Sequence[str]
    """Parameters whose gradient is not finite before gradients are summed over processes."""


def not_finite(training: Training, report: StepReport, recompute: Callable[[], Tensor]) -> UserError:
    """Return the error for a step whose loss or gradient norm is not finite.

    `recompute` repeats the step's passes from the same weights: the present gradients are sums over processes, and do
    not show which process broke them. (ZeRO sums them inside the passes, so there only the loss may show it.) Every
    process calls this.
    """
    loss = float(training.mesh.sum_over(recompute(), "pp")) * training.mesh.data_ranks
    broken = [
        weight
        for weight in training.model.weights
        if (gradient := training.model.gradients.of(weight)) is not None and not bool(gradient.isfinite().all())
    ]
    own = LocalDiagnosis(training.mesh.data_rank, report.loss, loss, sorted(broken))
    diagnoses = [LocalDiagnosis(*each) for each in training.mesh.gather(astuple(own))]
    # Processes that share a batch have the same loss, unless the arithmetic of one is broken.
    losses = [each.step_loss for each in diagnoses if not math.isfinite(each.step_loss)]
    name, value = ("loss", losses[0]) if losses else ("gradient norm", report.grad_norm)
    text = f"the {name} of step {report.step} is {value}: lower the learning rate, or lengthen the warm-up"
    return UserError(f"{text}; {_origin(training, report, diagnoses)}")


def too_many_outliers(training: Training, report: StepReport) -> UserError:
    """Return the error for the last of too many steps in a row that were left out. Every process calls this."""
    return UserError(
        f"the last {training.outliers.in_a_row} steps, until step {report.step}, were left out, since loss or gradient "
        "norm stood out from those before (skip_sigma): lower the learning rate, lengthen the warm-up, or raise "
        f"skip_sigma; the last step began with {_documents(training, report, 0)}"
    )


def _origin(training: Training, report: StepReport, diagnoses: Sequence[LocalDiagnosis]) -> str:
    """Describe the first process, parameter and documents with a value that is not finite."""
    ranks = [rank for rank, each in enumerate(diagnoses) if not math.isfinite(each.loss)]
    ranks = ranks or [rank for rank, each in enumerate(diagnoses) if each.broken]
    if not ranks:
        return "recomputed it is finite, so the cause is the machine, or a race on it, and not a sample"
    first = diagnoses[ranks[0]]
    broken = first.broken or next((each.broken for each in diagnoses if each.broken), ())
    more = f" and of {len(broken) - 1} more" if len(broken) > 1 else ""
    gradient = f", in the gradient of {broken[0]}{more}" if broken else ""
    return f"process {ranks[0]} saw it first{gradient}, in {_documents(training, report, first.data_rank)}"


def _documents(training: Training, report: StepReport, data_rank: int) -> str:
    """Name the first documents of a process's share of the step; write all documents of the step to a file."""
    mesh, batches, sample_ids = training.mesh, training.batches, report.sample_ids
    share = local_slice(sample_ids, data_rank, mesh.data_ranks)
    names = list(dict.fromkeys(each.name for each in name_samples(batches, share)))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    text = ", ".join(names[:SHOWN]) + more
    if training.watch is None:
        return text
    file = training.watch / f"step-{report.step:08d}.txt"
    if mesh.is_first:
        with store.create(file) as out:
            out.write("".join(f"{line}\n" for line in _lines(training, sample_ids)).encode())
    return f"{text} ({file} has the whole batch)"


def _lines(training: Training, sample_ids: Ids) -> Sequence[str]:
    ranks = training.mesh.data_ranks
    return [
        f"{'' if ranks == 1 else f'share {rank}: '}{line}"
        for rank in range(ranks)
        for line in name_samples(training.batches, local_slice(sample_ids, rank, ranks))
    ]


class Replicas(Hook):
    """Ends training if processes that should hold the same weights do not, to the bit.

    They start equal and get the same updates, as long as each machine computes the same from the same numbers. They are
    compared every `every` steps (0: never) and before each checkpoint, which would otherwise mix them; so this hook
    comes before the one that saves.
    """

    def __init__(self, every: int) -> None:
        self.every = every

    def after_step(self, training: Training, report: StepReport) -> None:
        """Compare if it is due. Raises UserError with the names of weights that differ."""
        if not self.every or (report.step % self.every and not training.saves_now(report)):
            return
        mesh = training.mesh
        digests = {name: _digest(weight).to(mesh.device) for name, weight in training.model.masters.items()}
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, weight in training.model.masters.items():
            held = tuple(axis for axis in REPLICATING_AXES if axis not in sharded_axes(weight))
            groups.setdefault(held, []).append(name)
        differing: list[str] = []
        for axes, names in sorted(groups.items()):
            values = torch.stack([digests[name] for name in names])
            found = mesh.differs(values.clone(), values, *axes).tolist()
            differing += [name for name, differs in zip(names, found, strict=True) if differs]
        # The embedding and its copy in the head, each in a process of the pipeline.
        tied = [digests[name] for name in (TIED, HEAD) if name in digests]
        limits = torch.iinfo(torch.int64)
        largest = torch.stack([*tied, torch.full((), limits.min, device=mesh.device)]).max()
        smallest = torch.stack([*tied, torch.full((), limits.max, device=mesh.device)]).min()
        differing += [HEAD] if mesh.differs(largest, smallest, "pp") and tied else []
        # All processes raise: those that saw nothing would wait for the others.
        if differing := sorted({name for names in mesh.gather(differing) for name in names}):
            more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
            raise UserError(
                f"after step {report.step}, processes that share weights hold different ones: "
                f"{', '.join(differing[:SHOWN])}{more}. A machine computes wrongly, or some processes run other code: "
                "check that, and go on from the last checkpoint"
            )


def _digest(weight: Tensor) -> Tensor:
    """Return a checksum of a weight's bits, which any single change changes, and rows or columns in another order."""
    bits = local(weight.detach()).contiguous().view(torch.int32)
    table = bits.flatten(1) if bits.ndim > 1 else bits[:, None]
    rows, columns = table.sum(1, dtype=torch.int64), table.sum(0, dtype=torch.int64)
    # The factor of each number is odd: its change by less than 2^64 cannot become 0 in 64 bits.
    by_row = rows * (torch.arange(len(rows), device=bits.device) * (2 * _FACTOR))
    return by_row.sum() + (columns * (torch.arange(len(columns), device=bits.device) * 2 + 1)).sum()


class Spikes(Hook):
    """Warns of a loss that is more than `sigma` standard deviations above the mean of the last `window` ones.

    This is llm.c's outlier detector (`llmc/outlier_detector.h`), which skips such steps, as `skip_sigma` does.
    """

    def __init__(self, sigma: float, window: int) -> None:
        self.sigma = sigma
        self._losses: deque[float] = deque(maxlen=window)

    def after_step(self, training: Training, report: StepReport) -> None:
        """Check the loss once the window is full; all processes have the same loss, so all of them warn or none."""
        losses = self._losses
        if len(losses) == losses.maxlen:
            mean, spread = statistics.fmean(losses), statistics.pstdev(losses)
            if spread and report.loss > mean + self.sigma * spread:
                self._warn(training, report, (report.loss - mean) / spread)
        if math.isfinite(report.loss):  # with skip_sigma a step that is not goes by
            losses.append(report.loss)

    def _warn(self, training: Training, report: StepReport, height: float) -> None:
        mesh = training.mesh
        gradients = training.model.gradients
        norms = {name: gradients.norm_of(name) for name in gradients.weights}
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
