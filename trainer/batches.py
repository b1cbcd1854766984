"""Prints the documents in the global batch of a step of pretraining.

    python -m trainer.batches --step 1200 runs/gpt2/pretrain data/web/tokenize/train --documents data/web/split/train

One line per document: sample, token shard, row, document id, tokens within the document, URL (with --documents).
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pipelines import exits
from pipelines.arguments import Parser
from pipelines.config import Count, check
from pipelines.errors import ConfigError, UserError
from pipelines.helptext import called
from pipelines.manifest import content_hash
from pipelines.terminal import print_error, print_line
from trainer.config import PretrainConfig
from trainer.data.order import Ids
from trainer.processes.temporary import own_folder
from trainer.weights.records import RECORD, newest_checkpoint, read_record

if TYPE_CHECKING:
    from trainer.data.batches import PretrainBatches


def name_step(run: Path, train: Path, step: int, index: Path, documents: Path | None) -> Iterator[str]:
    """Yield a line for each document in the batch of `step`. `index`: a folder for the index of packed rows."""
    from trainer.data.batches import PretrainBatches  # imports torch, for which --help need not wait
    from trainer.data.lineage import documents_of

    record = read_record(run if (run / RECORD).exists() else newest_checkpoint(run))
    config = _config(record, run)
    folders = [train, *(Path(folder) for folder in config.mixture)]
    digests = [content_hash(folder) for folder in folders]
    for folder, digest, expected in zip(folders, digests, _trained_on(record), strict=True):
        if digest != expected:
            raise UserError(f"{folder}: {run} was not trained on it; name the token folder of that training")
    batches = PretrainBatches.of(config, folders, digests, index)
    in_batch = list(documents_of(batches, _sample_ids(record, batches, step, run)))
    urls = _urls(documents, {each.doc_id for each in in_batch}) if documents else {}
    for each in in_batch:
        yield f"{each} {urls.get(each.doc_id, '(no such document)')}" if documents else str(each)


def _config(record: dict[str, Any], run: Path) -> PretrainConfig:
    """Return the section in the record; parameters that it leaves out did not shape the run."""
    if "pretrain" not in record or "data" not in record:
        raise UserError(f"{run}: not the record of a pretraining; name a folder that `trainer.pretrain` published")
    return check(PretrainConfig, record["pretrain"], "pretrain", str(run / RECORD))


def _trained_on(record: dict[str, Any]) -> Sequence[str]:
    return [record["data"]["train"], *record["data"].get("mixture", [])]


def _sample_ids(record: dict[str, Any], batches: "PretrainBatches", step: int, run: Path) -> Ids:
    """Return the ids of the step's samples, counted back from the record's position."""
    end = record["position"] + (step - record["step"]) * batches.batch_size
    first = record["step"] - record["position"] // batches.batch_size + 1
    last = record["pretrain"]["steps"]
    if not first <= step <= last:
        raise UserError(f"step {step}: {run} had steps {first} to {last} on these tokens; name one of them")
    return np.arange(end - batches.batch_size, end, dtype=np.int64)


def _urls(documents: Path, ids: set[bytes]) -> dict[bytes, str]:
    """Return the URLs, by document id, of the documents in the folder."""
    import pyarrow.dataset as ds

    files = [str(file) for file in sorted(documents.glob("part-*.parquet"))]
    if not files:
        raise UserError(
            f"{documents}: has no document shards (part-*.parquet); name the folder of documents that were tokenized"
        )
    column = ds.field("doc_id")
    wanted = column.isin(pa.array(sorted(ids), pa.binary(16)))
    table = ds.dataset(files, format="parquet").to_table(columns=["doc_id", "url"], filter=wanted)
    return dict(zip(table["doc_id"].to_pylist(), table["url"].to_pylist(), strict=True))


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    parser = Parser(prog=called("trainer.batches"), description=__doc__)
    parser.add_argument("run", type=Path, help="a folder that pretrain published, or one of its step-* folders")
    parser.add_argument("train", type=Path, help="the token folder it was trained on")
    parser.add_argument("--step", type=int, required=True, help="number of the step, from 1")
    parser.add_argument(
        "--documents", type=Path, help="the folder of documents that were tokenized, to show their URLs"
    )
    parser.hints = {"--step": Count}
    try:
        call = parser.parse_args(arguments)
        exits.unwind_on_signals()
        with tempfile.TemporaryDirectory(dir=own_folder()) as folder:
            for line in name_step(call.run, call.train, call.step, Path(folder), call.documents):
                print_line(line)
    except UserError as error:
        print_error(error)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    exits.run(lambda: main(sys.argv[1:]))
