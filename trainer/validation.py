"""Measuring a model: the loss over a token stream, and a classifier's outputs for the rows of a split.

Batches have a fixed order and are dealt out over the data-parallel processes; their sums are put back in order
before they are added, so the number of processes does not change the result. Every process makes as many passes,
since with ZeRO the others wait for it in each; where it has fewer batches, the last one again for nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipelines.errors import UserError
from trainer.loader.batch import Batch, token_rows
from trainer.loader.glue import GlueRows
from trainer.loader.stream import TokenStream
from trainer.parallel.mesh import Mesh


@dataclass(frozen=True, slots=True)
class LanguageScore:
    """How well a language model predicts a stream."""

    loss: float
    """Mean cross entropy per token, in nats."""
    tokens: int
    """Tokens predicted."""

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700.0))


Forward = Callable[[Batch], Tensor | None]
"""A model's output for a batch; None in processes that have none, which are other stages of a pipeline."""


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
) -> LanguageScore:
    """Score a model, `forward` to its summed loss, on the first `samples` samples of the stream.

    With 0, on each of its tokens but the first; a stream shorter than a sample is scored as a whole.
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
    for number, counts in _share(len(windows), mesh):
        start, size, length = windows[number]
        first = start * sequence_length + np.arange(size) * length
        tokens = stream.windows(first, length + 1)
        stream.require_ids(tokens, first)
        starts = stream.document_starts(first, length + 1) if document_mask else None
        batch = token_rows(tokens, first, starts, masked=document_mask).to(device)
        loss = forward(batch)
        if loss is not None and counts:
            losses[number] = loss
    _put_together(losses, mesh)
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
) -> list[list[float]]:
    """A classifier's outputs (logits), to which `forward` leads, for each row of the split, in order, each row once."""
    outputs = torch.zeros(len(rows), num_labels, dtype=torch.float64, device=device)
    for number, counts in _share(-(-len(rows) // batch_size), mesh):
        start = number * batch_size
        elements = list(range(start, min(start + batch_size, len(rows))))
        ids_BT, last_B, labels_B = rows.collate(elements, pad)
        logits_BC = forward(Batch(ids_BT, torch.tensor(elements), labels_B, last_B).to(device))
        if logits_BC is not None and counts:
            outputs[start : start + len(elements)] = logits_BC.double()
    _put_together(outputs, mesh)
    _require_number(float(outputs.sum()), f"{rows.path}: an output")
    return outputs.tolist()


def _share(batches: int, mesh: Mesh | None) -> list[tuple[int, bool]]:
    """Which batches this process takes, and whether each counts here."""
    rank, ranks = (mesh.data_rank, mesh.data_ranks) if mesh is not None else (0, 1)
    return [(min(number, batches - 1), number < batches) for number in range(rank, batches + rank, ranks)]


def _put_together(values: Tensor, mesh: Mesh | None) -> None:
    """What each process has measured, for all; the others have 0 there."""
    if mesh is not None:
        mesh.sum_over(mesh.sum_over_data(values), "pp")


def _require_number(value: float, what: str) -> None:
    if not math.isfinite(value):
        raise UserError(
            f"{what} is {value}, so the model's weights are broken: train it with a lower learning rate or a longer "
            "warm-up"
        )
