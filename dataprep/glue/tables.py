"""The published tables of a task, TASK/SPLIT.parquet: which there are, and what they say of their task."""

from pathlib import Path

from dataprep.glue.items import DUPLICATES
from dataprep.glue.task import TaskMeta
from dataprep.glue.tasks import CUSTOM, find_task
from pipelines.documents import REJECTED, open_parquet
from pipelines.errors import UserError, did_you_mean


def task_tables(glue: Path, task: str) -> list[Path]:
    """The tables of `task` in a folder of glue_download, in order of name; UserError when there are none."""
    places = sorted(path for path in glue.iterdir() if path.is_dir()) if glue.is_dir() else []
    tasks = [path.name for path in places if path.name not in (REJECTED, DUPLICATES)]
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
    """The task that a table is of; UserError when it does not say."""
    try:
        with open_parquet(table) as opened:
            return TaskMeta.of_schema(opened.schema_arrow)
    except KeyError:
        raise UserError(f"{table}: does not say of which task it is; run glue_download again") from None
