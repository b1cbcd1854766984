"""Batches of a classifier from GLUE rows, in a deterministic global order.

Shapes: B samples, T positions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipelines.errors import UserError
from trainer.data.batch import Batch
from trainer.data.order import Ids, shuffled
from trainer.glue.table import HIDDEN_LABEL, GlueTable


class GlueRows:
    """One split of a tokenized GLUE task: all rows of an Arrow file, or `at_most` rows evenly spread over it."""

    def __init__(self, path: Path, at_most: int | None = None) -> None:
        split = GlueTable(path)
        table = split.table
        if at_most and at_most < len(table):
            table = table.take(np.arange(at_most) * len(table) // at_most)
        self.path = path
        self.meta = split.meta
        self.num_labels = split.num_labels
        self.label_names = split.label_names
        self.pad = split.pad
        ids = table["input_ids"].combine_chunks()
        self.tokens: Ids = ids.values.to_numpy().astype(np.int64)
        self.offsets: Ids = ids.offsets.to_numpy().astype(np.int64)
        self.lengths: Ids = np.diff(self.offsets)
        self.labels: np.ndarray[Any, Any] = table["label"].to_numpy()
        self.indexes: Ids = table["index"].to_numpy()

    def __len__(self) -> int:
        return len(self.labels)

    def check(self, n_positions: int, *, labelled: bool = True) -> None:
        """Raise UserError for rows that the model cannot read, or labels that it cannot learn.

        `labelled`: whether each row must have a label; a test split hides them (-1).
        """
        if not len(self):
            raise UserError(f"{self.path}: has no rows; run glue_tokenize on a task with data")
        if not self.lengths.min():
            row = int(self.lengths.argmin())
            raise UserError(f"{self.path}: row {row} has no tokens; run glue_tokenize again")
        if self.lengths.max() > n_positions:
            raise UserError(
                f"{self.path}: row {int(self.lengths.argmax())} has {self.lengths.max()} tokens but the model has "
                f"{n_positions} positions; tokenize with a shorter limit, or use a model with more positions"
            )
        highest = max(self.pad, self.meta.vocab_size - 1)
        if self.tokens.min() < 0 or self.tokens.max() > highest:
            row = (
                int(np.searchsorted(self.offsets, np.argmax((self.tokens < 0) | (self.tokens > highest)), "right")) - 1
            )
            raise UserError(
                f"{self.path}: row {row} has an id that is not from 0 to {highest}; run glue_tokenize again"
            )
        lowest = 0 if labelled else HIDDEN_LABEL
        if self.num_labels > 1 and not (self.labels.min() >= lowest and self.labels.max() < self.num_labels):
            raise UserError(
                f"{self.path}: labels from {self.labels.min()} to {self.labels.max()}, expected {lowest} to "
                f"{self.num_labels - 1}"
                + ("; a split without labels cannot be trained or scored on" if labelled else "")
            )

    def collate(self, elements: Sequence[int], pad: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return token ids (B, T) padded on the right, the position of the last real token (B,), and labels (B,)."""
        lengths = self.lengths[elements]
        ids = np.full((len(elements), int(lengths.max())), pad, dtype=np.int64)
        for row, element in enumerate(elements):
            ids[row, : lengths[row]] = self.tokens[self.offsets[element] : self.offsets[element + 1]]
        labels = torch.from_numpy(self.labels[elements])
        return torch.from_numpy(ids), torch.from_numpy(lengths - 1), labels


class GlueBatches:
    """Rows of a GLUE split, shuffled anew in each epoch; the last batch of an epoch may be smaller."""

    def __init__(self, rows: GlueRows, batch_size: int, pad: int, seed: int) -> None:
        self.glue = rows
        self.batch_size = batch_size
        self.pad = pad
        self.seed = seed

    @property
    def samples(self) -> int:
        """Return the number of rows of the split."""
        return len(self.glue)

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of batches in an epoch, including the last one."""
        return -(-len(self.glue) // self.batch_size)

    def sample_ids(self, position: int) -> Ids:
        """Return the ids of the next batch, which never crosses the end of an epoch."""
        end = min(position + self.batch_size, (position // len(self.glue) + 1) * len(self.glue))
        return np.arange(position, end, dtype=np.int64)

    def collate(self, sample_ids: Ids) -> Batch:
        """Return a batch with ids (B, T), last (B,) and labels (B,)."""
        ids, last, labels = self.glue.collate(self._elements(sample_ids), self.pad)
        return Batch(ids, torch.from_numpy(sample_ids), labels, last)

    def indexes(self, sample_ids: Ids) -> Ids:
        """Return the indexes of these samples' rows in the task's original file."""
        return self.glue.indexes[self._elements(sample_ids)]

    def terms(self, sample_ids: Ids) -> int:
        """Return the number of labels, one per row."""
        return len(sample_ids)

    def tokens(self, sample_ids: Ids) -> int:
        """Return the number of tokens without padding."""
        return int(self.glue.lengths[self._elements(sample_ids)].sum())

    def _elements(self, sample_ids: Ids) -> list[int]:
        return shuffled(sample_ids, len(self.glue), self.seed).tolist()
