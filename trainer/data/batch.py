"""The inputs of a forward pass, and the narrow form in which language-model samples are moved to the device.

Shapes: B samples, T positions.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.data.order import Array, Ids
from trainer.loss import IGNORED

ROOM = 4
"""Documents per sample that there is always room for: more than the mean of long rows, so that one number does."""


@dataclass(slots=True)
class Batch:
    """Samples of one forward pass. Language model: targets (B, T). Classifier: last (B,) and labels (B,)."""

    ids: Tensor
    rows: Tensor
    """(B,) int64: each sample's id, the key of its dropout."""
    targets: Tensor
    last: Tensor | None = None
    starts: Tensor | None = None
    """(B, T) int64: where in the sample each token's document begins; if set, attention stays inside documents."""
    documents: Array | None = None
    """(B,), in the host's memory: how many documents each sample has; with starts, None: not known."""

    def inputs(self, rows: int = 0) -> dict[str, Any]:
        """Return the model's arguments besides the ids, for the loss.

        `rows`: samples of each forward pass, if the batch is cut for it; 0: all.
        """
        if self.last is not None:
            return {"last_B": self.last, "rows_B": self.rows, "labels_B": self.targets}
        loss = {"targets_BT": self.targets, "rows_B": self.rows}
        return loss if self.starts is None else {**loss, "starts_BT": self.starts, "room": self.room(rows)}

    def room(self, rows: int = 0) -> int:
        """Return how many documents to make room for in each forward pass of `rows` samples (0: all); 0: not known.

        A power of two per sample, since blocks are compiled for each number.
        """
        if self.documents is None:
            return 0
        size = rows or len(self.documents)
        most = np.add.reduceat(self.documents, np.arange(0, len(self.documents), size)).max()
        return size * max(ROOM, 1 << (-(-int(most) // size) - 1).bit_length())

    def tensors(self) -> list[Tensor]:
        """Return the tensors that the batch has, always in the same order."""
        values = (self.ids, self.rows, self.targets, self.last, self.starts)
        return [value for value in values if value is not None]

    def cloned(self) -> "Batch":
        """Return a copy in memory of its own."""
        return _each(self, torch.clone)

    def padded(self, multiple: int, most: int | None = None) -> "Batch":
        """Return the batch padded on the right with ignored positions, to a multiple of `multiple`.

        `most`: as many positions are enough, and the batch has no more.
        """
        length = self.ids.shape[1]
        more = -length % multiple
        if most is not None:
            more = min(more, most - length)
        if not more:
            return self
        ids = F.pad(self.ids, (0, more))
        targets = F.pad(self.targets, (0, more), value=IGNORED) if self.last is None else self.targets
        starts = None if self.starts is None else F.pad(self.starts, (0, more))
        return dataclasses.replace(self, ids=ids, targets=targets, starts=starts)

    def filled(self, rows: int) -> "Batch":
        """Return the batch filled up with ignored rows, to `rows` rows."""
        more = rows - len(self.ids)
        if not more:
            return self
        wide = (0, 0, 0, more)
        documents = None if self.documents is None else np.pad(self.documents, (0, more), constant_values=1)
        return Batch(
            F.pad(self.ids, wide),
            F.pad(self.rows, (0, more)),
            F.pad(self.targets, wide if self.targets.ndim > 1 else (0, more), value=IGNORED),
            None if self.last is None else F.pad(self.last, (0, more)),
            None if self.starts is None else F.pad(self.starts, wide),
            documents,
        )

    def ignored(self) -> "Batch":
        """Return the batch with all targets ignored."""
        return dataclasses.replace(self, targets=torch.full_like(self.targets, IGNORED))

    def pinned(self) -> "Batch":
        """Return the batch in pinned memory, which a GPU reads directly."""
        return _each(self, lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on `device`."""
        return _each(self, lambda tensor: tensor.to(device, non_blocking=True))


@dataclass(frozen=True, slots=True)
class Rounding:
    """What makes the shapes of a classifier's batches few, as a GPU needs them: each has a graph of its own."""

    positions: int
    """Batches are padded to a multiple of this."""
    most: int
    """The model's positions: no batch is padded beyond."""

    def rounded(self, batch: Batch, rows: int = 0) -> Batch:
        """Return the batch padded, and filled up to `rows` rows; 0: with its own."""
        return batch.padded(self.positions, self.most).filled(rows or len(batch.ids))


@dataclass(slots=True)
class TokenRows:
    """Language-model samples before they are moved: 2 bytes per token, widened on the device."""

    tokens: Tensor
    """(B, T + 1) uint16, or int32 for a large vocabulary."""
    rows: Tensor
    """(B,) int64: each sample's id."""
    pieces: Tensor | None = None
    """(B, T + 1) int16 or int32: where in the sample each token's piece begins, and each token of padding by itself;
    the first token of a piece is no target. None: all tokens are targets."""
    starts: Tensor | None = None
    """(B, T), the same type: the same, with the padding as one piece; if set, attention stays inside the pieces."""
    documents: Array | None = None
    """(B,): how many different starts each sample has."""

    def pinned(self) -> "TokenRows":
        """Return the samples in pinned memory, which a GPU reads directly."""
        return _each(self, lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> Batch:
        """Return inputs and targets on `device`."""
        moved = _each(self, lambda tensor: tensor.to(device, non_blocking=True))
        tokens = moved.tokens.long()
        ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if moved.pieces is not None:
            targets.masked_fill_(moved.pieces[:, 1:] != moved.pieces[:, :-1], IGNORED)
        starts = None if moved.starts is None else moved.starts.long()
        return Batch(ids, moved.rows, targets, starts=starts, documents=moved.documents)


def token_rows(
    tokens: Array, sample_ids: Ids, starts: Array | None, *, masked: bool = False, crossing: bool = True
) -> TokenRows:
    """Wrap gathered rows as tensors in the same memory; ids stay far below 2^31, so uint32 can pass as int32.

    `starts`: (B, T + 1), where in the sample each token's piece begins; each token of padding is a piece. `masked`:
    whether attention stays inside the pieces. `crossing`: whether the last token of a piece predicts the first of the
    next; such rows have no padding.
    """
    ids = torch.from_numpy(tokens if tokens.dtype == np.uint16 else tokens.view(np.int32))
    rows = TokenRows(ids, torch.from_numpy(sample_ids))
    if starts is not None and not crossing:
        rows.pieces = torch.from_numpy(starts)
    if starts is not None and masked:
        inside = starts[:, :-1] if crossing else _with_padding_as_one(starts)
        rows.starts = torch.from_numpy(np.ascontiguousarray(inside))
        rows.documents = (inside == np.arange(inside.shape[1])).sum(1)
    return rows


def _with_padding_as_one(starts: Array) -> Array:
    """Return the starts (B, T) of all inputs; kernels take one sequence faster than one for each token."""
    columns = np.arange(starts.shape[1], dtype=starts.dtype)
    begins = starts == columns
    # A piece has two tokens or more, so two beginnings in a row are padding, which goes on to the end.
    padding = begins[:, :-1] & begins[:, 1:]
    return np.where(padding, (~padding).sum(1, keepdims=True).astype(starts.dtype), starts[:, :-1])


class Batches(Protocol):
    """The source of the training loop's batches."""

    def sample_ids(self, position: int) -> Ids:
        """Return the ids of the next global batch's samples, after `position` consumed ones."""
        ...

    def collate(self, sample_ids: Ids) -> Batch | TokenRows:
        """Return these samples, in the host's memory."""
        ...

    @property
    def samples(self) -> int:
        """Return the number of samples in an epoch."""
        ...

    def terms(self, sample_ids: Ids) -> int:
        """Return the number of terms in the loss of these samples, the divisor of the mean."""
        ...

    def tokens(self, sample_ids: Ids) -> int:
        """Return the number of tokens in these samples."""
        ...


def _each(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a batch with `change` applied to all its tensors."""
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    changed = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
    return dataclasses.replace(batch, **changed)
