"""GLUE items to look for in documents: every text column of some splits.

Reads the folder of glue_download: TASK/SPLIT.parquet with `index`, `label` and text columns of any name.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from pipelines.documents import REJECTED, open_parquet, read_batches
from pipelines.errors import ConfigError, UserError, did_you_mean

INDEX = "index"
DUPLICATES = "duplicates"
"""The folder of glue_download's pairs of rows that are the same or nearly so."""


def find_splits(folder: Path, tasks: Sequence[str], splits: Sequence[str]) -> list[Path]:
    """The files of the wanted tasks (none: all) and splits, in order of name.

    `validation` stands for `validation_matched` and the like too. Raises ConfigError for a task or split
    that is not there.
    """
    files = [file for file in sorted(folder.glob("*/*.parquet")) if file.parent.name not in (REJECTED, DUPLICATES)]
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


def read_split(file: Path) -> Iterator[tuple[list[int], dict[str, pa.Array]]]:
    """The rows of one split, some at a time: their `index`, and their texts by column."""
    with open_parquet(file) as opened:
        schema = opened.schema_arrow
    fields = text_columns(schema)
    if INDEX not in schema.names or not fields:
        raise UserError(f"{file}: no split of a task: expected {INDEX!r} and columns of text, found {schema.names}")
    for batch in read_batches(file, [INDEX, *fields]):
        yield batch.column(INDEX).to_pylist(), {field: batch.column(field).cast(pa.string()) for field in fields}


def text_columns(schema: pa.Schema) -> list[str]:
    """The columns that hold text, whatever the task calls them."""
    return [
        field.name
        for field in schema
        if field.name != "label" and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
    ]
