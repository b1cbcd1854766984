"""GLUE items to look for in documents: every text of every row of some splits, and their index.

Reads the folder of glue_download: TASK/SPLIT.parquet with `index`, `label` and text columns of any name.
The index is a folder of NumPy tables (`dataprep.decontamination.ngrams`) and items.parquet, whose row number is the
item.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.decontamination.ngrams import KeyTable, Windows
from dataprep.dedup.shingles import Words, find_words
from dataprep.text.folding import fold_case, raw_texts
from pipelines.command import Part
from pipelines.documents import REJECTED, read_batches
from pipelines.errors import ConfigError, UserError, did_you_mean
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

ITEM_SCHEMA = pa.schema(
    [
        pa.field("task", pa.string()),
        pa.field("split", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("field", pa.string()),
        pa.field("words", pa.string()),
    ]
)
"""One text of one row; `words` are its words, folded, with single spaces between them."""


def find_splits(folder: Path, tasks: Sequence[str], splits: Sequence[str]) -> list[Path]:
    """The files of the wanted tasks (none: all) and splits, in order of name.

    `validation` stands for `validation_matched` and the like too. Raises ConfigError for a task or split
    that is not there.
    """
    files = [file for file in sorted(folder.glob("*/*.parquet")) if file.parent.name != REJECTED]
    if not files:
        raise UserError(f"{folder}: holds no TASK/SPLIT.parquet; give the output of glue_download")
    present = sorted({file.parent.name for file in files})
    for task in tasks:
        if task not in present:
            raise ConfigError(f"decontaminate.tasks: {folder} has no task {task!r}.{did_you_mean(task, present)}")
    chosen = [file for file in files if not tasks or file.parent.name in tasks]
    for split in splits:
        if not any(_is_split(file, split) for file in chosen):
            names = {file.stem for file in chosen}
            raise ConfigError(f"decontaminate.splits: {folder} has no split {split!r}.{did_you_mean(split, names)}")
    return [file for file in chosen if any(_is_split(file, split) for split in splits)]


def _is_split(file: Path, split: str) -> bool:
    return file.stem == split or file.stem.startswith(f"{split}_")


def build_index(part: Part, folder: Path, windows: Windows) -> Counts:
    """The index of all texts in `part.files`, one file per split."""
    counts = Counts()
    keys: dict[int, list[Array]] = {}
    first_item = 0
    with pq.ParquetWriter(str(folder / "items.parquet"), ITEM_SCHEMA, compression="zstd") as writer:
        for file in part.files:
            for batch in read_batches(file):
                for field in text_columns(batch.schema):
                    words = find_words(fold_case(raw_texts(batch.column(field).cast(pa.string()))))
                    for length, found in windows.item_keys(words, first_item).items():
                        keys.setdefault(length, []).append(found)
                    writer.write_table(_item_table(file, batch, field, words))
                    first_item += batch.num_rows
    for length in sorted(keys):
        table = KeyTable.build(np.concatenate(keys[length]))
        table.save(folder, length)
        counts.total(f"keys_{windows.kind(length)}", len(table.keys))
    counts.total("items", first_item)
    return counts


def text_columns(schema: pa.Schema) -> list[str]:
    """The columns that hold text, whatever the task calls them."""
    return [
        field.name
        for field in schema
        if field.name != "label" and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
    ]


def _item_table(file: Path, batch: pa.RecordBatch, field: str, words: Words) -> pa.Table:
    spans = zip(words.first[:-1].tolist(), words.first[1:].tolist(), strict=True)
    rows = batch.num_rows
    columns = {
        "task": [file.parent.name] * rows,
        "split": [file.stem] * rows,
        "index": batch.column("index"),
        "field": [field] * rows,
        "words": [words.text(start, stop) for start, stop in spans],
    }
    return pa.table(columns, schema=ITEM_SCHEMA)
