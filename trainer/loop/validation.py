"""Evaluate a model: its loss over a token stream, or a classifier's outputs for the rows of a split.

Batches have a fixed order and are distributed over the data-parallel processes; their sums are put back in order before
they are added, so the number of processes does not change the result. With ZeRO processes wait for each other in every
pass, so all make equally many; a process with fewer batches repeats the last one and ignores the result.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipelines.errors import UserError
from pipelines.progress import track
from trainer.data.batch import Batch, Rounding, token_rows
from trainer.data.glue import GlueRows
from trainer.data.stream import TokenStream
from trainer.parallel.mesh import Mesh


@dataclass(frozen=True, slots=True)
class LanguageScore:
    """A language model's score on a stream."""

    loss: float
    """Mean cross entropy per token, in nats."""
    tokens: int
    """Tokens predicted."""

    @property
    def perplexity(self) -> float:
        """Return exp(loss)."""
        return math.exp(min(self.loss, 700.0))


Forward = Callable[[Batch], Tensor | None]
"""Returns a model's output for a batch; None in the other stages of a pipeline."""


@torch.no_grad()
def language_score(
    forward: Forward,
    device: torch.device,
    stream: TokenStream,
    sequence_length: int,
    batch_size: int,
    *,
    samples: int = 0,
    mesh: Mesh | None = None,
    document_mask: bool = False,
    one_shape: bool = False,
) -> LanguageScore:
    """Score a model on the first `samples` samples of the stream; `forward` returns the summed loss.

    With 0 samples, every token but the first is scored; a stream shorter than a sample is scored as a whole.
    `one_shape`: fill up the last batches, which have fewer rows or a shorter one, with what is ignored. Nothing is then
    compiled for their shapes, nor chosen by libraries of a GPU, and training has the same one.
    """
    if len(stream) < 2:
        raise UserError(f"{stream.folder}: has {len(stream)} tokens, nothing to predict; use more documents")
    whole = stream.samples(sequence_length)
    used = min(whole, samples) or whole
    windows = [(start, min(batch_size, used - start), sequence_length) for start in range(0, used, batch_size)]
    rest = len(stream) - 1 - whole * sequence_length
    if rest and (not samples or not whole):
        windows.append((whole, 1, rest))
    losses = torch.zeros(len(windows), dtype=torch.float64, device=device)
    for number, counts in _tracked(_share(len(windows), mesh), "validation", mesh):
        start, size, length = windows[number]
        first = start * sequence_length + np.arange(size) * length
        tokens = stream.windows(first, length + 1)
        stream.require_ids(tokens, first)
        starts = stream.document_starts(first, length + 1) if document_mask else None
        batch = token_rows(tokens, first, starts, masked=document_mask).to(device)
        if one_shape:
            batch = batch.padded(sequence_length).filled(batch_size)
        loss = forward(batch)
        if loss is not None and counts:
            losses[number] = loss
    _sum_over_processes(losses, mesh)
    tokens = sum(size * length for _, size, length in windows)
    loss = math.fsum(losses.tolist()) / tokens
    _require_number(loss, f"{stream.folder}: the loss")
    return LanguageScore(loss, tokens)


@torch.no_grad()
def classify(
    forward: Forward,
    num_labels: int,
    device: torch.device,
    rows: GlueRows,
    pad: int,
    batch_size: int,
    mesh: Mesh | None = None,
    rounding: Rounding | None = None,
) -> list[list[float]]:
    """Return a classifier's outputs (the logits that `forward` returns) for each row of the split, in order.

    `rounding`: of the batches, which then all have `batch_size` rows.
    """
    outputs = torch.zeros(len(rows), num_labels, dtype=torch.float64, device=device)
    for number, counts in _tracked(_share(-(-len(rows) // batch_size), mesh), f"scoring {rows.path.stem}", mesh):
        start = number * batch_size
        elements = list(range(start, min(start + batch_size, len(rows))))
        ids_BT, last_B, labels_B = rows.collate(elements, pad)
        batch = Batch(ids_BT, torch.tensor(elements), labels_B, last_B)
        logits_BC = forward((batch if rounding is None else rounding.rounded(batch, batch_size)).to(device))
        if logits_BC is not None and counts:
            outputs[start : start + len(elements)] = logits_BC[: len(elements)].double()
    _sum_over_processes(outputs, mesh)
    _require_number(float(outputs.sum()), f"{rows.path}: an output")
    return outputs.tolist()


def _share(batches: int, mesh: Mesh | None) -> list[tuple[int, bool]]:
    """Return the batches of this process, and whether each counts or is only repeated."""
    rank, ranks = (mesh.data_rank, mesh.data_ranks) if mesh is not None else (0, 1)
    return [(min(number, batches - 1), number < batches) for number in range(rank, batches + rank, ranks)]


def _tracked(batches: list[tuple[int, bool]], what: str, mesh: Mesh | None) -> Iterable[tuple[int, bool]]:
    """Return the batches; the first process shows how many are done."""
    shown = mesh is None or mesh.is_first
    return track(batches, what=what, total=len(batches), unit="batches") if shown else batches


def _sum_over_processes(values: Tensor, mesh: Mesh | None) -> None:
    """Give every process all values; each value is 0 in all processes but the one that measured it."""
    if mesh is not None:
        mesh.sum_over(mesh.sum_over_data(values), "pp")


def _require_number(value: float, what: str) -> None:
    if not math.isfinite(value):
        raise UserError(
            f"{what} is {value}, so the model's weights are broken: train it with a lower learning rate or a longer "
            "warm-up"
        )
