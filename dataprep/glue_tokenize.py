"""Stage `glue_tokenize`: one GLUE task as token rows, one Arrow IPC file per split.

GLUE tables (of `glue_download`) + tokenizer -> SPLIT.arrow with `input_ids` (list<int32>, not padded), `label` (int64;
float64 for a score), `index`, and the text columns; rows without a token go to rejected/SPLIT.parquet.
Schema metadata: tokenizer_sha256, vocab_size (of the tokenizer), end_of_text, task, num_labels, labels (the names of
the classes, as JSON), max_length, padding and pad_token_id. A pair becomes the ids of both texts with nothing between,
as in transformers for GPT-2. The names of special tokens in a text are ordinary text.

    python -m dataprep.glue_tokenize mrpc glue/ tokenizer/ mrpc/ --max-length 128
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from dataprep.glue.tables import read_meta, task_tables
from dataprep.glue.tasks import TaskMeta
from pipelines.columns import column
from pipelines.command import Limit, Output, Part, Source, StageSpec
from pipelines.config import Count
from pipelines.documents import REJECTED, REJECTED_SCHEMA, TableWriter, read_batches
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

if TYPE_CHECKING:
    from dataprep.text.tokenizers import TextEncoder

logger = logging.getLogger(__name__)

VERSION = 2
SHAPED_BY = ("tokenizers", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTokenizeConfig:
    """How a GLUE row becomes tokens."""

    max_length: Count = 128
    """Most tokens of a row. In a pair, the longer text is truncated first, token by token (`longest_first`)."""
    padding: Literal["added", "end_of_text"] = "added"
    """The token that pads a batch. added: a new one after the tokenizer's last, for which the embedding grows by a
    row; end_of_text: the existing one, which leaves the embedding unchanged."""


def glue_tokenize(
    config: GlueTokenizeConfig, run: StageRun, task: str, glue: Source, tokenizer: Source, output: Output
) -> dict[str, Any]:
    """Tokenize every split of one task; the stats count the truncated rows."""
    files = task_tables(glue.path, task)
    meta = read_meta(files[0])
    parts = [Part(f"{task}-{file.stem}", (file,)) for file in files]
    counts = run.map(tokenize_split, parts, meta, tokenizer.path, config, into=output)
    if cut := counts.totals.get("truncated", 0):
        logger.info("%s: %d of %d rows were cut to %d tokens", task, cut, counts.rows_in, config.max_length)
    return {"task": task, "num_labels": meta.num_labels, "max_length": config.max_length, "padding": config.padding}


def tokenize_split(part: Part, folder: Path, task: TaskMeta, tokenizer: Path, config: GlueTokenizeConfig) -> Counts:
    """Tokenize one split into a record batch for each batch of its table; reject rows without a token."""
    from dataprep.text.tokenizers import TextEncoder

    split = part.file.stem
    encoder = TextEncoder.load(tokenizer)
    encoder.tokenizer.enable_truncation(config.max_length, strategy="longest_first")
    schema = token_schema(task, encoder, config)
    counts = Counts(totals={"tokens": 0, "truncated": 0, f"{split}/tokens": 0, f"{split}/truncated": 0})
    rejected = TableWriter(folder / REJECTED / f"{split}.parquet", REJECTED_SCHEMA, optional=True)
    with pa.ipc.new_file(str(folder / f"{split}.arrow"), schema) as writer, rejected:
        for batch in read_batches(part.file, [*task.texts, "label", "index"]):
            texts = [batch.column(name).to_pylist() for name in task.texts]
            input_ids = encode_rows(encoder, texts, split, counts)
            for row, index in enumerate(batch.column("index").to_pylist()):
                if not input_ids[row]:
                    identity = {"doc_id": None, "url": f"{task.name}/{split}:{index}", "rule": "no_tokens"}
                    rejected.write({**identity, "value": " | ".join(text[row] for text in texts)})
                    counts.reject("no_tokens")
            columns = [column(input_ids, pa.list_(pa.int32())), *batch.select(schema.names[1:]).columns]
            arrays = [each.cast(field.type) for each, field in zip(columns, schema, strict=True)]
            writer.write_batch(kept_rows(pa.record_batch(arrays, schema=schema), input_ids))
    counts.rows_out = counts.rows_in - sum(counts.rejected.values())
    return counts


def kept_rows(batch: pa.RecordBatch, input_ids: list[list[int]]) -> pa.RecordBatch:
    """Return the rows with tokens; usually the batch itself."""
    return batch if all(input_ids) else batch.filter(column([bool(ids) for ids in input_ids], pa.bool_()))


def token_schema(task: TaskMeta, encoder: "TextEncoder", config: GlueTokenizeConfig) -> pa.Schema:
    """Return the columns of a tokenized split, with the settings in the metadata."""
    fields = [
        pa.field("input_ids", pa.list_(pa.int32())),
        pa.field("label", pa.int64() if task.labels else pa.float64()),
        pa.field("index", pa.int64()),
        *(pa.field(name, pa.string()) for name in task.texts),
    ]
    added = config.padding == "added"
    settings = {
        **encoder.meta.to_schema(),
        "task": task.name,
        "num_labels": str(task.num_labels),
        "labels": json.dumps(task.labels),
        "max_length": str(config.max_length),
        "padding": config.padding,
        "pad_token_id": str(encoder.meta.vocab_size if added else encoder.meta.end_of_text),
    }
    return pa.schema(fields, metadata=settings)


def encode_rows(encoder: "TextEncoder", texts: list[list[str]], split: str, counts: Counts) -> list[list[int]]:
    """Return one list of ids per row of `texts[column][row]`; count rows, tokens and truncated rows."""
    rows: Any = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
    encodings = encoder.tokenizer.encode_batch(rows, add_special_tokens=False)
    counts.rows_in += len(encodings)
    for prefix in ("", f"{split}/"):
        counts.total(f"{prefix}tokens", sum(len(encoding) for encoding in encodings))
        counts.total(f"{prefix}truncated", sum(bool(encoding.overflowing) for encoding in encodings))
    return [encoding.ids for encoding in encodings]


STAGE = StageSpec.of(
    glue_tokenize,
    VERSION,
    SHAPED_BY,
    sources={
        "task": "its name, such as mrpc",
        "glue": "the output of glue_download",
        "tokenizer": "a tokenizer's folder, or its file: the output of tokenizer, or what a model on the Hub has",
    },
    limit=Limit("rows of each split", "glue"),
)

if __name__ == "__main__":
    stage_main("dataprep.glue_tokenize")
