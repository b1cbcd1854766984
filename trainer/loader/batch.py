"""What a forward pass gets, and the narrow form in which language-model samples travel to the device.

Shapes: B samples, T positions.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.loader.order import Array, Ids
from trainer.loss import IGNORED


@dataclass(slots=True)
class Batch:
    """Samples of one forward pass. Language model: targets (B, T). Classifier: last (B,) and labels (B,)."""

    ids: Tensor
    rows: Tensor
    """(B,) int64: each sample's place in the run, the key of its dropout."""
    targets: Tensor
    last: Tensor | None = None
    starts: Tensor | None = None
    """(B, T) int64: where in the sample each token's document begins; given, attention stays inside documents."""

    def inputs(self) -> dict[str, Tensor]:
        """What the model takes beside the ids, to give the loss."""
        if self.last is not None:
            return {"last_B": self.last, "rows_B": self.rows, "labels_B": self.targets}
        starts = {} if self.starts is None else {"starts_BT": self.starts}
        return {"targets_BT": self.targets, "rows_B": self.rows, **starts}

    def padded(self, multiple: int) -> "Batch":
        """The same batch with positions at the end that count for nothing, up to a multiple."""
        more = -self.ids.shape[1] % multiple
        if not more:
            return self
        ids = F.pad(self.ids, (0, more))
        targets = F.pad(self.targets, (0, more), value=IGNORED) if self.last is None else self.targets
        starts = None if self.starts is None else F.pad(self.starts, (0, more))
        return dataclasses.replace(self, ids=ids, targets=targets, starts=starts)

    def filled(self, rows: int) -> "Batch":
        """The same batch with rows at the end that count for nothing, so that it has `rows`."""
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
        """A batch of this shape that counts for nothing."""
        return dataclasses.replace(self, targets=torch.full_like(self.targets, IGNORED))

    def pinned(self) -> "Batch":
        """The same batch in memory that a GPU reads by itself."""
        return _each(self, lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`."""
        return _each(self, lambda tensor: tensor.to(device, non_blocking=True))


@dataclass(slots=True)
class TokenRows:
    """Language-model samples before they are moved: 2 bytes per token, and widened on the device."""

    tokens: Tensor
    """(B, T + 1) uint16, or int32 for a large vocabulary."""
    rows: Tensor
    """(B,) int64: each sample's place in the run."""
    starts: Tensor | None = None
    """(B, T + 1) int16 or int32: where in the sample each token's piece begins; padding is a piece of its own."""
    masked: bool = False
    """Whether attention stays inside the pieces."""
    crossing: bool = True
    """Whether the last token of a piece predicts the first one of the next."""

    def pinned(self) -> "TokenRows":
        """The same samples in memory that a GPU reads by itself."""
        return _each(self, lambda tensor: tensor.pin_memory())

    def to(self, device: torch.device) -> Batch:
        """Inputs and targets on `device`."""
        here = _each(self, lambda tensor: tensor.to(device, non_blocking=True))
        tokens = here.tokens.long()
        ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if here.starts is not None and not here.crossing:
            targets.masked_fill_(here.starts[:, 1:] != here.starts[:, :-1], IGNORED)
        starts = here.starts[:, :-1].long() if here.starts is not None and here.masked else None
        return Batch(ids, here.rows, targets, starts=starts)


def token_rows(
    tokens: Array, places: Ids, starts: Array | None, *, masked: bool = False, crossing: bool = True
) -> TokenRows:
    """Gathered rows as tensors in the same memory; ids stay far below 2^31, so uint32 passes as int32."""
    ids = torch.from_numpy(tokens if tokens.dtype == np.uint16 else tokens.view(np.int32))
    begins = None if starts is None else torch.from_numpy(starts)
    return TokenRows(ids, torch.from_numpy(places), begins, masked=masked, crossing=crossing)


class Batches(Protocol):
    """Where the training loop takes its batches from."""

    def places(self, position: int) -> Ids:
        """Places of the next global batch's samples, after `position` consumed ones."""
        ...

    def collate(self, places: Ids) -> Batch | TokenRows:
        """The samples at these places, in the host's memory."""
        ...

    @property
    def samples(self) -> int:
        """How many samples make an epoch."""
        ...

    def names(self, places: Ids) -> Iterable[str]:
        """What the samples at these places were made of, one short name each."""
        ...

    def describe(self, places: Ids) -> Iterable[str]:
        """The same at length: a line each."""
        ...

    def terms(self, places: Ids) -> int:
        """How many terms the loss of these samples has: the divisor of the mean."""
        ...

    def tokens(self, places: Ids) -> int:
        """How many tokens these samples have."""
        ...


def _each(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a batch with all its tensors changed."""
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    changed = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
    return dataclasses.replace(batch, **changed)
