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

    def inputs(self) -> dict[str, Tensor]:
        """Return the model's arguments besides the ids, for the loss."""
        if self.last is not None:
            return {"last_B": self.last, "rows_B": self.rows, "labels_B": self.targets}
        starts = {} if self.starts is None else {"starts_BT": self.starts}
        return {"targets_BT": self.targets, "rows_B": self.rows, **starts}

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
        return Batch(
            F.pad(self.ids, wide),
            F.pad(self.rows, (0, more)),
            F.pad(self.targets, wide if self.targets.ndim > 1 else (0, more), value=IGNORED),
            None if self.last is None else F.pad(self.last, (0, more)),
            None if self.starts is None else F.pad(self.starts, wide),
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
    starts: Tensor | None = None
    """(B, T + 1) int16 or int32: where in the sample each token's piece begins; padding is a separate piece."""
    masked: bool = False
    """Whether attention stays inside the pieces."""
    crossing: bool = True
    """Whether the last token of a piece predicts the first token of the next."""

    def pinned(self) -> "TokenRows":
        """Return the samples in pinned memory, which a GPU reads directly."""
        return _each(self, lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> Batch:
        """Return inputs and targets on `device`."""
        moved = _each(self, lambda tensor: tensor.to(device, non_blocking=True))
        tokens = moved.tokens.long()
        ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if moved.starts is not None and not moved.crossing:
            targets.masked_fill_(moved.starts[:, 1:] != moved.starts[:, :-1], IGNORED)
        starts = moved.starts[:, :-1].long() if moved.starts is not None and moved.masked else None
        return Batch(ids, moved.rows, targets, starts=starts)


def token_rows(
    tokens: Array, sample_ids: Ids, starts: Array | None, *, masked: bool = False, crossing: bool = True
) -> TokenRows:
    """Wrap gathered rows as tensors in the same memory; ids stay far below 2^31, so uint32 can pass as int32."""
    ids = torch.from_numpy(tokens if tokens.dtype == np.uint16 else tokens.view(np.int32))
    begins = None if starts is None else torch.from_numpy(starts)
    return TokenRows(ids, torch.from_numpy(sample_ids), begins, masked=masked, crossing=crossing)


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
