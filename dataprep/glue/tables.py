"""The published tables of GLUE tasks: which ones the output of glue_download has (TASK/SPLIT.parquet), and their rows.

A table has `index`, `label` and text columns of any name; the metadata of its schema describes its task.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from dataprep.glue.tasks import CUSTOM, TaskMeta, find_task
from pipelines.documents import REJECTED, open_parquet, read_batches
from pipelines.errors import ConfigError, UserError, did_you_mean

INDEX = "index"
DUPLICATES = "duplicates"
"""The folder of the pairs of rows that glue_download found to be equal or nearly equal."""


def task_tables(glue: Path, task: str) -> list[Path]:
    """Return the tables of `task` in the output of glue_download, in order of name; raise UserError if none."""
    folders = sorted(path for path in glue.iterdir() if path.is_dir()) if glue.is_dir() else []
    tasks = [path.name for path in folders if path.name not in (REJECTED, DUPLICATES)]
    if task not in (*tasks, CUSTOM):
        find_task(task)
    files = sorted((glue / task).glob("*.parquet")) if task in tasks else []
    if not files:
        raise UserError(
            f"{glue}: has no task {task}; add it to glue_download.tasks and run glue_download."
            f"{did_you_mean(task, tasks)}"
        )
    return files


def read_meta(table: Path) -> TaskMeta:
    """Return the task that a table belongs to; raise UserError if its schema does not name one."""
    try:
        with open_parquet(table) as opened:
            return TaskMeta.of_schema(opened.schema_arrow)
    except KeyError:
        raise UserError(f"{table}: does not say which task it belongs to; run glue_download again") from None


def find_splits(folder: Path, tasks: Sequence[str], splits: Sequence[str]) -> list[Path]:
    """Return the tables of the given tasks (none: all) and splits, in order of name.

    `validation` also means `validation_matched` and the like. Raises ConfigError for a missing task or split.
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
    """Yield the rows of one split in batches: their `index`, and their texts by column."""
    with open_parquet(file) as opened:
        schema = opened.schema_arrow
    fields = text_columns(schema)
    if INDEX not in schema.names or not fields:
        raise UserError(f"{file}: not a split of a task: expected {INDEX!r} and columns of text, found {schema.names}")
    for batch in read_batches(file, [INDEX, *fields]):
        yield batch.column(INDEX).to_pylist(), {field: batch.column(field).cast(pa.string()) for field in fields}


def text_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the text columns, which differ between tasks."""
    return [
        field.name
        for field in schema
        if field.name != "label" and (pa.types.is_string(field.type) or pa.types.is_large_string(field.type))
    ]
