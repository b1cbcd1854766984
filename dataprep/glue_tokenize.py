"""Stage `glue_tokenize`: one GLUE task as token rows, one Arrow IPC file per split.

GLUE tables (of `glue_download`) + tokenizer -> SPLIT.arrow with `input_ids` (list<int32>, not padded),
`label` (int64; float64 for stsb), `index`, and the text columns. Schema metadata: tokenizer_sha256,
vocab_size, end_of_text, task, num_labels. A pair is what transformers makes of it for GPT-2: the ids of
both texts in a row with nothing between. Special-token strings in a text are text.

Run: python -m dataprep.glue_tokenize mrpc glue/ tokenizer/ mrpc/ --max-length 128
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dataprep.glue.tasks import TASKS, GlueTask, find_task
from pipelines.command import Output, Part, Source
from pipelines.config import Count
from pipelines.documents import read_batches
from pipelines.errors import UserError, did_you_mean
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

if TYPE_CHECKING:
    from dataprep.text.bpe import TextEncoder

VERSION = 1
SHAPED_BY = ("tokenizers", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTokenizeConfig:
    """How a GLUE row becomes tokens."""

    max_length: Count = 128
    """Most tokens of a row. Of a pair, the longer text is cut first, token by token (`longest_first`)."""


def glue_tokenize(
    config: GlueTokenizeConfig, run: StageRun, task: str, glue: Source, tokenizer: Source, output: Output
) -> dict[str, Any]:
    """Tokenize every split of one task; the stats say how many rows were cut."""
    chosen = find_task(task)
    parts = [Part(f"{chosen.name}-{file.stem}", (file,)) for file in split_files(glue.path, chosen)]
    run.map(tokenize_split, parts, chosen.name, tokenizer.path, config, into=output)
    return {"task": chosen.name, "num_labels": chosen.num_labels, "max_length": config.max_length}


def split_files(glue: Path, task: GlueTask) -> list[Path]:
    """The tables of `task` in a folder of `glue_download`, in order of split; UserError when there are none."""
    files = [glue / task.name / f"{split}.parquet" for split in task.published]
    found = [file for file in files if file.exists()]
    if not found:
        tasks = [path.name for path in glue.iterdir() if path.is_dir() and path.name in TASKS] if glue.is_dir() else []
        raise UserError(
            f"{glue}: has no task {task.name}; add it to glue_download.tasks and run glue_download."
            f"{did_you_mean(task.name, tasks)}"
        )
    return found


def tokenize_split(part: Part, folder: Path, task_name: str, tokenizer: Path, config: GlueTokenizeConfig) -> Counts:
    """One split: a record batch of tokens for every batch of its table."""
    from dataprep.text.bpe import TextEncoder

    task = TASKS[task_name]
    encoder = TextEncoder.load(tokenizer)
    encoder.tokenizer.enable_truncation(config.max_length, strategy="longest_first")
    schema = token_schema(task, encoder)
    counts = Counts(totals={"tokens": 0, "truncated": 0})
    with pa.ipc.new_file(str(folder / f"{part.file.stem}.arrow"), schema) as writer:
        for batch in read_batches(part.file, [*task.texts, "label", "index"]):
            texts = [batch.column(name).to_pylist() for name in task.texts]
            input_ids = encode_rows(encoder, texts, counts)
            columns = [input_ids, *(batch.column(name) for name in ("label", "index", *task.texts))]
            arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return counts


def token_schema(task: GlueTask, encoder: "TextEncoder") -> pa.Schema:
    """Columns of a split of tokens, and what they were made with."""
    fields = [
        pa.field("input_ids", pa.list_(pa.int32())),
        pa.field("label", pa.int64() if task.labels else pa.float64()),
        pa.field("index", pa.int64()),
        *(pa.field(name, pa.string()) for name in task.texts),
    ]
    made_with = {**encoder.meta.to_schema(), "task": task.name, "num_labels": str(task.num_labels)}
    return pa.schema(fields, metadata=made_with)


def encode_rows(encoder: "TextEncoder", texts: list[list[str]], counts: Counts) -> pa.Array:
    """`texts[c][i]`, text column c of row i, as one list of ids per row; counts rows, tokens and cut rows."""
    rows: Any = texts[0] if len(texts) == 1 else list(zip(*texts, strict=True))
    encodings = encoder.tokenizer.encode_batch(rows, add_special_tokens=False)
    counts.rows_in += len(encodings)
    counts.rows_out += len(encodings)
    counts.totals["tokens"] += sum(len(encoding) for encoding in encodings)
    counts.totals["truncated"] += sum(bool(encoding.overflowing) for encoding in encodings)
    return pa.array([encoding.ids for encoding in encodings], pa.list_(pa.int32()))


if __name__ == "__main__":
    stage_main("dataprep.glue_tokenize")
