"""Measuring a model: the loss over a token stream, and a classifier's outputs for the rows of a split.

Batches have a fixed order and are dealt out over the data-parallel processes; their sums are put back in order
before they are added, so the number of processes does not change the result.
"""

import math
from dataclasses import dataclass

import torch

from pipelines.errors import UserError
from trainer.batches import GlueRows, TokenStream
from trainer.model import Classifier, LanguageModel
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


@torch.no_grad()
def language_score(
    model: LanguageModel,
    stream: TokenStream,
    sequence_length: int,
    batch_size: int,
    *,
    samples: int = 0,
    mesh: Mesh | None = None,
) -> LanguageScore:
    """Score `model` on the first `samples` samples of the stream; with 0, on each of its tokens but the first.

    A stream shorter than a sample is scored as a whole.
    """
    if len(stream) < 2:
        raise UserError(f"{stream.folder}: has {len(stream)} tokens, nothing to predict; use more documents")
    whole = stream.samples(sequence_length)
    used = min(whole, samples) or whole
    windows = [(start, min(batch_size, used - start), sequence_length) for start in range(0, used, batch_size)]
    rest = len(stream) - 1 - whole * sequence_length
    if rest and (not samples or not whole):
        windows.append((whole, 1, rest))
    device = next(model.parameters()).device
    losses = torch.zeros(len(windows), dtype=torch.float64, device=device)
    model.eval()
    for number, (start, size, length) in enumerate(windows):
        if mesh is None or number % mesh.data_ranks == mesh.data_rank:
            first = start * sequence_length
            rows = [stream.read(first + row * length, length + 1) for row in range(size)]
            rows_BT = torch.stack([torch.from_numpy(row) for row in rows]).to(device)
            losses[number] = model(rows_BT[:, :-1], rows_BT[:, 1:])
    if mesh is not None:
        mesh.sum_over_data(losses)
    tokens = sum(size * length for _, size, length in windows)
    loss = math.fsum(losses.tolist()) / tokens
    _require_number(loss, f"{stream.folder}: the loss")
    return LanguageScore(loss, tokens)


@torch.no_grad()
def classify(
    model: Classifier, rows: GlueRows, pad: int, batch_size: int, mesh: Mesh | None = None
) -> list[list[float]]:
    """The outputs (logits) for each row of the split, in order, each row once."""
    device = next(model.parameters()).device
    outputs = torch.zeros(len(rows), model.shape.num_labels, dtype=torch.float64, device=device)
    model.eval()
    for number, start in enumerate(range(0, len(rows), batch_size)):
        if mesh is None or number % mesh.data_ranks == mesh.data_rank:
            elements = list(range(start, min(start + batch_size, len(rows))))
            ids_BT, last_B, _ = rows.collate(elements, pad)
            outputs[start : start + len(elements)] = model(ids_BT.to(device), last_B.to(device)).double()
    if mesh is not None:
        mesh.sum_over_data(outputs)
    _require_number(float(outputs.sum()), f"{rows.path}: an output")
    return outputs.tolist()


def _require_number(value: float, what: str) -> None:
    if not math.isfinite(value):
        raise UserError(
            f"{what} is {value}, so the model's weights are broken: train it with a lower learning rate or a longer "
            "warm-up"
        )
