"""The samples of one corpus, by index: cut from the stream, or packed from pieces of documents.

A sample is a row of T + 1 tokens: T inputs, each with its successor as target.

Shapes: B samples, T positions.
"""

from pathlib import Path
from typing import Protocol

import numpy as np

from pipelines.errors import UserError
from trainer.config import PretrainConfig
from trainer.data.order import Array, Ids, ragged
from trainer.data.packing import PieceIndex, open_index
from trainer.data.stream import TokenStream, column_type, spread


class Samples(Protocol):
    """Rows of a corpus."""

    stream: TokenStream
    crossing: bool
    """Whether the last token of a document predicts the first of the next."""

    def __len__(self) -> int: ...

    def rows(self, elements: Ids) -> tuple[Array, Array | None]:
        """Return tokens (B, T + 1), and the column where each token's piece begins if that matters."""
        ...

    def terms(self, elements: Ids) -> int:
        """Return the number of targets in these samples."""
        ...

    def pieces(self, element: int) -> list[tuple[int, int]]:
        """Return (start, length) in the stream of each piece of a sample."""
        ...

    def with_tokens(self, start: int, length: int) -> Ids:
        """Return the samples that have one of these tokens of the stream, in order."""
        ...


class StreamSamples:
    """Sample i is tokens i*T .. (i+1)*T of the stream, across documents: every token is predicted."""

    crossing = True

    def __init__(self, stream: TokenStream, sequence_length: int, *, document_mask: bool = False) -> None:
        self.stream = stream
        self.sequence_length = sequence_length
        self.document_mask = document_mask
        self._samples = stream.samples(sequence_length)
        if not self._samples:
            raise UserError(
                f"{stream.folder}: {len(stream)} tokens are fewer than one sample of {sequence_length + 1}: "
                "use more documents or a shorter pretrain.sequence_length"
            )

    def __len__(self) -> int:
        return self._samples

    def rows(self, elements: Ids) -> tuple[Array, Array | None]:
        """Return rows of the stream; with a document mask also where documents begin."""
        starts, length = elements * self.sequence_length, self.sequence_length + 1
        tokens = self.stream.windows(starts, length)
        self.stream.require_ids(tokens, starts)
        return tokens, self.stream.document_starts(starts, length) if self.document_mask else None

    def terms(self, elements: Ids) -> int:
        """Return the number of targets: every token is predicted."""
        return len(elements) * self.sequence_length

    def pieces(self, element: int) -> list[tuple[int, int]]:
        """Return one run of the stream."""
        return [(element * self.sequence_length, self.sequence_length + 1)]

    def with_tokens(self, start: int, length: int) -> Ids:
        """Return the samples with one of these tokens; a sample begins with the last token of the one before."""
        first, last = (start - 1) // self.sequence_length, (start + length - 1) // self.sequence_length
        return np.arange(max(first, 0), min(last + 1, len(self)), dtype=np.int64)


class PackedSamples:
    """Rows of one or more pieces, padded on the right with end-of-text; no target crosses the end of a piece."""

    crossing = False

    def __init__(self, stream: TokenStream, index: PieceIndex, sequence_length: int) -> None:
        self.stream = stream
        self.index = index
        self.columns = np.arange(sequence_length + 1, dtype=column_type(sequence_length + 1))

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, elements: Ids) -> tuple[Array, Array | None]:
        """Return rows whose padding is a separate piece in each column: it is no target, and sees only itself."""
        first, counts = self._spans(elements)
        which = ragged(first, counts)
        starts, lengths = np.asarray(self.index.starts[which]), self.index.lengths[which].astype(np.int64)
        rows = np.repeat(np.arange(len(elements)), counts)
        filled = np.bincount(rows, lengths, len(elements)).astype(np.int64)
        if self.index.rows is None:
            tokens = self.stream.windows(starts, len(self.columns))
            marks = np.zeros(tokens.shape, self.columns.dtype)
        else:
            before = np.cumsum(lengths) - lengths
            begins = before - np.repeat(before[np.cumsum(counts) - counts], counts)
            tokens = np.empty((len(elements), len(self.columns)), self.stream.meta.dtype)
            offsets = rows * len(self.columns) + begins
            self.stream.fill(tokens.reshape(-1), offsets, starts, lengths)
            marks = spread(offsets, *tokens.shape)
        padding = self.columns >= filled[:, None]
        tokens[padding] = self.stream.meta.end_of_text
        self.stream.require_ids(tokens, starts[np.cumsum(counts) - counts])
        return tokens, np.where(padding, self.columns, marks)

    def terms(self, elements: Ids) -> int:
        """Return the number of targets: every token of a piece but its first."""
        which = ragged(*self._spans(elements))
        return int(self.index.lengths[which].sum()) - len(which)

    def pieces(self, element: int) -> list[tuple[int, int]]:
        """Return the pieces of the row."""
        which = ragged(*self._spans(np.array([element])))
        return list(zip(self.index.starts[which].tolist(), self.index.lengths[which].tolist(), strict=True))

    def with_tokens(self, start: int, length: int) -> Ids:
        """Return the rows that have a piece with one of these tokens."""
        starts = np.asarray(self.index.starts)
        pieces = np.flatnonzero((starts < start + length) & (starts + self.index.lengths > start))
        return pieces if self.index.rows is None else np.unique(self.index.rows.searchsorted(pieces, side="right") - 1)

    def _spans(self, elements: Ids) -> tuple[Ids, Ids]:
        """Return the first piece of each row, and the number of its pieces."""
        if self.index.rows is None:
            return elements, np.ones_like(elements)
        first = np.asarray(self.index.rows[elements])
        return first, self.index.rows[elements + 1] - first


def open_samples(stream: TokenStream, config: PretrainConfig, data: str, index_root: Path) -> Samples:
    """Build the samples that a section asks for. `data`: the folder's digest; `index_root`: folder of the indexes."""
    if config.packing == "stream":
        return StreamSamples(stream, config.sequence_length, document_mask=config.document_mask)
    bestfit = config.packing == "bestfit"
    index = open_index(index_root, stream, data, config.sequence_length, bestfit=bestfit, drop_tail=config.drop_tail)
    return PackedSamples(stream, index, config.sequence_length)
