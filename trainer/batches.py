"""Token shards and GLUE rows -> batches, in a deterministic global order.

The place in a run is one integer, the number of samples consumed. A global batch is the samples at the next
places, whatever the number of processes; each process takes its slice. The order is a seeded permutation that is
computed place by place, so it needs no memory and resumes anywhere.

Shapes: B samples, T positions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from pipelines.errors import UserError
from pipelines.tokens import TokenMeta, TokenShard, open_tokens

Ids = np.ndarray[Any, np.dtype[np.int64]]
_ROUNDS = 6


@dataclass(slots=True)
class Batch:
    """Samples of one forward pass. Language model: targets (B, T). Classifier: last (B,) and labels (B,)."""

    ids: Tensor
    rows: Tensor
    """(B,) int64: each sample's place in the run, the key of its dropout."""
    targets: Tensor
    last: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """The same batch on `device`."""
        last = None if self.last is None else self.last.to(device)
        return Batch(self.ids.to(device), self.rows.to(device), self.targets.to(device), last)


class Batches(Protocol):
    """Where the training loop takes its batches from."""

    def places(self, position: int) -> Ids:
        """Places of the next global batch's samples, after `position` consumed ones."""
        ...

    def collate(self, places: Ids) -> Batch:
        """The samples at these places, as one batch."""
        ...

    def terms(self, places: Ids) -> int:
        """How many terms the loss of these samples has: the divisor of the mean."""
        ...

    def tokens(self, places: Ids) -> int:
        """How many tokens these samples have."""
        ...


def share(places: Ids, rank: int, ranks: int) -> Ids:
    """The slice of a global batch that data-parallel process `rank` of `ranks` works on."""
    return places[len(places) * rank // ranks : len(places) * (rank + 1) // ranks]


def micro_batches(batches: Batches, places: Ids, size: int) -> Iterator[Batch]:
    """A process's share in forward passes of `size` samples; 0: all at once."""
    step = size or max(1, len(places))
    for start in range(0, len(places), step):
        yield batches.collate(places[start : start + step])


class Permutation:
    """A seeded permutation of 0..size-1, computed element by element.

    A Feistel network over the next even power of two, walked until the value falls inside (cycle walking:
    Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): at most 4 rounds of it on average.
    """

    def __init__(self, size: int, *keys: int) -> None:
        self.size = size
        self._half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        seed = np.random.SeedSequence(keys).generate_state(_ROUNDS, np.uint64)
        self._keys: list[np.uint64] = list(seed)

    def __call__(self, places: Ids) -> Ids:
        """The elements at `places`, each in 0..size-1."""
        values = self._encrypt(places.astype(np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._encrypt(values[outside])
        return values.astype(np.int64)

    def _encrypt(self, values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        mask = (np.uint64(1) << self._half) - np.uint64(1)
        left, right = values >> self._half, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << self._half) | right


def _mix(x: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    # The finalizer of splitmix64 (Steele, Lea and Flood, 2014).
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def shuffled(places: Ids, size: int, seed: int) -> Ids:
    """The element at each place of an endless run of epochs, each a permutation of its own."""
    elements = np.empty_like(places)
    for epoch in np.unique(places // size).tolist():
        here = places // size == epoch
        elements[here] = Permutation(size, seed, epoch)(places[here] % size)
    return elements


class TokenStream:
    """All token shards of a folder as one sequence, mapped into memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards: list[TokenShard] = open_tokens(folder)
        self.meta: TokenMeta = self.shards[0].meta
        self._ends = np.cumsum([len(shard.tokens) for shard in self.shards])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, length: int) -> Ids:
        """Tokens start..start+length (at least one), across shards."""
        pieces: list[Ids] = []
        index = int(np.searchsorted(self._ends, start, side="right"))
        while length:
            shard = self.shards[index].tokens
            begin = start - (int(self._ends[index]) - len(shard))
            pieces.append(shard[begin : begin + length].astype(np.int64))
            start, length, index = start + len(pieces[-1]), length - len(pieces[-1]), index + 1
        return np.concatenate(pieces)

    def samples(self, sequence_length: int) -> int:
        """Whole samples in the stream: sample i predicts tokens i*length+1 .. (i+1)*length."""
        return max(0, (len(self) - 1) // sequence_length)

    def sample(self, places: Sequence[int], sequence_length: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T) of these samples, cut from the stream across document boundaries."""
        rows = np.stack([self.read(place * sequence_length, sequence_length + 1) for place in places])
        rows_BT = torch.from_numpy(rows)
        return rows_BT[:, :-1].contiguous(), rows_BT[:, 1:].contiguous()


class PretrainBatches:
    """Samples of the token stream, shuffled anew in each epoch."""

    def __init__(self, stream: TokenStream, sequence_length: int, batch_size: int, seed: int) -> None:
        self.stream = stream
        self.sequence_length = sequence_length
        self.batch_size = batch_size
        self.seed = seed
        self.samples = stream.samples(sequence_length)
        if not self.samples:
            raise UserError(
                f"{stream.folder}: {len(stream)} tokens are fewer than one sample of {sequence_length + 1}: "
                "use more documents or a shorter pretrain.sequence_length"
            )

    def places(self, position: int) -> Ids:
        """Always a whole batch: an epoch may end inside it."""
        return np.arange(position, position + self.batch_size, dtype=np.int64)

    def collate(self, places: Ids) -> Batch:
        """Inputs and targets (B, T)."""
        elements = shuffled(places, self.samples, self.seed)
        ids, targets = self.stream.sample(elements.tolist(), self.sequence_length)
        return Batch(ids, torch.from_numpy(places), targets)

    def terms(self, places: Ids) -> int:
        """Each token is predicted."""
        return len(places) * self.sequence_length

    def tokens(self, places: Ids) -> int:
        """Tokens read."""
        return len(places) * self.sequence_length


class GlueRows:
    """One split of a tokenized GLUE task: `glue_tokenize`'s Arrow file."""

    def __init__(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; run glue_tokenize first") from None
        except pa.ArrowInvalid as error:
            raise UserError(f"{path}: not a readable Arrow file ({error}); run glue_tokenize again") from None
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        missing = {"input_ids", "label", "index"} - set(table.column_names)
        missing |= {"tokenizer_sha256", "vocab_size", "end_of_text", "num_labels"} - set(metadata)
        if missing:
            raise UserError(f"{path}: lacks {', '.join(sorted(missing))}; run glue_tokenize again")
        self.path = path
        self.meta = TokenMeta(metadata["tokenizer_sha256"], int(metadata["vocab_size"]), int(metadata["end_of_text"]))
        self.num_labels = int(metadata["num_labels"])
        ids = table["input_ids"].combine_chunks()
        self.tokens: Ids = ids.values.to_numpy().astype(np.int64)
        self.offsets: Ids = ids.offsets.to_numpy().astype(np.int64)
        self.lengths: Ids = np.diff(self.offsets)
        self.labels: np.ndarray[Any, Any] = table["label"].to_numpy()
        self.indexes: Ids = table["index"].to_numpy()

    def __len__(self) -> int:
        return len(self.labels)

    def check(self, n_positions: int) -> None:
        """Raise UserError for rows that the model cannot read, or labels that it cannot learn."""
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
        if self.num_labels > 1 and not (self.labels.min() >= 0 and self.labels.max() < self.num_labels):
            raise UserError(
                f"{self.path}: labels from {self.labels.min()} to {self.labels.max()}, expected 0 to "
                f"{self.num_labels - 1}; a split without labels cannot be trained or scored on"
            )

    def collate(self, elements: Sequence[int], pad: int) -> tuple[Tensor, Tensor, Tensor]:
        """Token ids (B, T) padded on the right to the longest, place of the last real one (B,), labels (B,)."""
        lengths = self.lengths[elements]
        ids = np.full((len(elements), int(lengths.max())), pad, dtype=np.int64)
        for row, element in enumerate(elements):
            ids[row, : lengths[row]] = self.tokens[self.offsets[element] : self.offsets[element + 1]]
        labels = torch.from_numpy(self.labels[elements])
        return torch.from_numpy(ids), torch.from_numpy(lengths - 1), labels


class GlueBatches:
    """Rows of a GLUE split, shuffled anew in each epoch; an epoch's last, smaller batch is kept."""

    def __init__(self, rows: GlueRows, batch_size: int, pad: int, seed: int) -> None:
        self.glue = rows
        self.batch_size = batch_size
        self.pad = pad
        self.seed = seed

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch, the last one included."""
        return -(-len(self.glue) // self.batch_size)

    def places(self, position: int) -> Ids:
        """At most a batch, never across the end of an epoch."""
        end = min(position + self.batch_size, (position // len(self.glue) + 1) * len(self.glue))
        return np.arange(position, end, dtype=np.int64)

    def collate(self, places: Ids) -> Batch:
        """Ids (B, T), last (B,), labels (B,)."""
        ids, last, labels = self.glue.collate(self._elements(places), self.pad)
        return Batch(ids, torch.from_numpy(places), labels, last)

    def terms(self, places: Ids) -> int:
        """Each row has one label."""
        return len(places)

    def tokens(self, places: Ids) -> int:
        """Real tokens, padding not counted."""
        return int(self.glue.lengths[self._elements(places)].sum())

    def _elements(self, places: Ids) -> list[int]:
        return shuffled(places, len(self.glue), self.seed).tolist()
