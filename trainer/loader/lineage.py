"""Which documents were in the global batch of a step, to look at a loss spike."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.config import check
from pipelines.errors import UserError
from pipelines.manifest import content_hash
from trainer.batches import PretrainBatches
from trainer.config import PretrainConfig
from trainer.loader.order import Ids
from trainer.records import RECORD, newest_checkpoint, read_record


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """Tokens of one document in a sample."""

    place: int
    """The sample's place in the run."""
    shard: Path
    row: int
    doc_id: bytes
    first: int
    last: int
    """First and last token within the document."""

    def __str__(self) -> str:
        where = f"{self.shard.parent.name}/{self.shard.name} document {self.row}"
        return f"sample {self.place}: {where} {self.doc_id.hex()} tokens {self.first} to {self.last}"


def name_step(run: Path, train: Path, step: int, index: Path, documents: Path | None) -> Iterator[str]:
    """A line for each document in the batch of `step`. `index`: a folder for the index of packed rows."""
    record = read_record(run if (run / RECORD).exists() else newest_checkpoint(run))
    config = _config(record, run)
    folders = [train, *(Path(folder) for folder in config.mixture)]
    data = [content_hash(folder) for folder in folders]
    for folder, found, expected in zip(folders, data, _trained_on(record), strict=True):
        if found != expected:
            raise UserError(f"{folder}: not what {run} was trained on; give the token folder of that training")
    batches = PretrainBatches.of(config, folders, data, index)
    found = list(name_places(batches, _places(record, batches, step, run)))
    urls = _urls(documents, {each.doc_id for each in found}) if documents else {}
    for each in found:
        yield f"{each} {urls.get(each.doc_id, '(no such document)')}" if documents else str(each)


def name_places(batches: PretrainBatches, places: Ids) -> Iterator[Named]:
    """The documents in the samples at these places."""
    for place, corpus, element in zip(
        places.tolist(), *(each.tolist() for each in batches.mixture(places)), strict=True
    ):
        samples = batches.corpora[corpus]
        for start, length in samples.pieces(element):
            for shard, row, first, last in samples.stream.documents(start, length):
                yield Named(place, shard.path, row, shard.doc_ids[row], first, last)


def _config(record: dict[str, Any], run: Path) -> PretrainConfig:
    """The section as the record keeps it; what it leaves out did not shape the run."""
    if "pretrain" not in record or "data" not in record:
        raise UserError(f"{run}: no pretraining's record; give what `trainer.pretrain` published")
    return check(PretrainConfig, record["pretrain"], "pretrain", str(run / RECORD))


def _trained_on(record: dict[str, Any]) -> Sequence[str]:
    return [record["data"]["train"], *record["data"].get("mixture", [])]


def _places(record: dict[str, Any], batches: PretrainBatches, step: int, run: Path) -> Ids:
    """The places of the step's samples, counted back from the record's."""
    end = record["position"] + (step - record["step"]) * batches.batch_size
    first = record["step"] - record["position"] // batches.batch_size + 1
    last = record["pretrain"]["steps"]
    if not first <= step <= last:
        raise UserError(f"step {step}: {run} had steps {first} to {last} on these tokens; name one of them")
    return np.arange(end - batches.batch_size, end, dtype=np.int64)


def _urls(documents: Path, ids: set[bytes]) -> dict[bytes, str]:
    """Document id -> URL, of those that the folder holds."""
    import pyarrow.dataset as ds

    files = [str(file) for file in sorted(documents.glob("part-*.parquet"))]
    if not files:
        raise UserError(
            f"{documents}: holds no document shards (part-*.parquet); give the documents that were tokenized"
        )
    column = ds.field("doc_id")
    wanted = column.isin(pa.array(sorted(ids), pa.binary(16)))
    table = ds.dataset(files, format="parquet").to_table(columns=["doc_id", "url"], filter=wanted)
    return dict(zip(table["doc_id"].to_pylist(), table["url"].to_pylist(), strict=True))
