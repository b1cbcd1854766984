"""Where samples come from: the documents in pretraining, the rows of a task in fine-tuning."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.data.batch import Batches
from trainer.data.batches import PretrainBatches
from trainer.data.glue import GlueBatches
from trainer.data.order import Ids


@dataclass(frozen=True, slots=True)
class DocumentTokens:
    """Tokens of one document in a sample."""

    sample_id: int
    shard: Path
    row: int
    doc_id: bytes
    first: int
    last: int
    """First and last token within the document."""

    @property
    def name(self) -> str:
        """The document's id in words."""
        return f"document {self.doc_id.hex()}"

    def __str__(self) -> str:
        where = f"{self.shard.parent.name}/{self.shard.name} document {self.row}"
        return f"sample {self.sample_id}: {where} {self.doc_id.hex()} tokens {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A sample of fine-tuning: a row of a GLUE task."""

    sample_id: int
    index: int
    """The row's index in the task's own file."""

    @property
    def name(self) -> str:
        """The row's index in words."""
        return f"row {self.index}"

    def __str__(self) -> str:
        return f"sample {self.sample_id}: {self.name}"


def name_samples(batches: Batches, sample_ids: Ids) -> Sequence[DocumentTokens | TaskRow]:
    """Return the sources of samples: documents in pretraining, rows of a task in fine-tuning."""
    if isinstance(batches, PretrainBatches):
        return list(documents_of(batches, sample_ids))
    assert isinstance(batches, GlueBatches), type(batches)
    indexes = batches.indexes(sample_ids)
    return [TaskRow(sample_id, index) for sample_id, index in zip(sample_ids.tolist(), indexes.tolist(), strict=True)]


def documents_of(batches: PretrainBatches, sample_ids: Ids) -> Iterator[DocumentTokens]:
    """Yield the documents in these samples."""
    for sample_id, corpus, element in zip(
        sample_ids.tolist(), *(each.tolist() for each in batches.mixture(sample_ids)), strict=True
    ):
        samples = batches.corpora[corpus]
        for start, length in samples.pieces(element):
            for shard, row, first, last in samples.stream.documents(start, length):
                yield DocumentTokens(sample_id, shard.path, row, shard.doc_ids[row], first, last)
