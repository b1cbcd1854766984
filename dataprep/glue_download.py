"""Stage `glue_download`: GLUE tasks as tables with the Hub's columns, labels and splits.

From a folder with the original TSV distribution, or from the Hub (`--source hub`, a pinned commit).
Out: TASK/SPLIT.parquet with the task's text columns, `label` (-1 where it is hidden) and `index` (the
row's number in its file, from 0); broken rows in rejected/TASK.parquet by file and line.
Tasks: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, ax; without any, those of the configuration.

Run: python -m dataprep.glue_download mrpc rte OUTPUT --source glue_data
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep.glue.tasks import TASKS, GlueTask, RowError, find_task
from dataprep.glue.tsv import Rows, read_splits, task_files
from dataprep.sources.hub_client import check_commit
from pipelines.command import Output, Part
from pipelines.config import StageSource
from pipelines.documents import REJECTED, REJECTED_SCHEMA, TableWriter
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("pyarrow",)

HUB = "hub"
HUB_DATASET = "nyu-mll/glue"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueDownloadConfig:
    """Which tasks, and where they come from."""

    tasks: tuple[str, ...] = ("mrpc",)
    """Tasks to take when the command names none."""
    source: StageSource = HUB
    """A folder with GLUE's TSV files, one folder per task (MRPC, CoLA, STS-B...); or hub."""
    revision: str = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
    """Commit of the Hub's nyu-mll/glue, 40 hexadecimal digits: a branch could change under us."""


def glue_download(config: GlueDownloadConfig, run: StageRun, tasks: tuple[str, ...], output: Output) -> dict[str, Any]:
    """Publish every split of every task; the stats compare its rows with the published counts."""
    chosen = {find_task(name).name for name in tasks or config.tasks}
    ordered = [task for task in TASKS.values() if task.name in chosen]
    if config.source == HUB:
        check_commit("glue_download.revision", HUB_DATASET, config.revision)
        parts = [Part(task.name, ()) for task in ordered]
        counts = run.map(take_from_hub, parts, config.revision, into=output)
    else:
        parts = [Part(task.name, tuple(task_files(Path(config.source), task))) for task in ordered]
        counts = run.map(take_from_files, parts, into=output)
    return compare_with_published(ordered, counts)


def take_from_files(part: Part, folder: Path) -> Counts:
    """One task from its TSV files."""
    writer = TaskWriter(folder, TASKS[part.name])
    for split, file, rows in read_splits(part.files, TASKS[part.name]):
        writer.write(split, rows, str(file))
    return writer.finish()


def take_from_hub(part: Part, folder: Path, revision: str) -> Counts:
    """One task from the Hub's dataset at a commit; its names are ours."""
    import datasets
    from datasets.exceptions import DatasetsError

    task = TASKS[part.name]
    try:
        splits: Any = datasets.load_dataset(HUB_DATASET, task.name, revision=revision)
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"{HUB_DATASET} at {revision}: cannot load {task.name} ({' '.join(str(error).split())}); "
            "check the network, or give a folder of TSV files with --source"
        ) from None
    writer = TaskWriter(folder, task)
    for split in task.published:
        if split not in splits:
            raise UserError(f"{HUB_DATASET} at {revision}: {task.name} has no {split} split; check the revision")
        writer.write(split, hub_rows(splits[split], task, split), f"{HUB_DATASET} at {revision}")
    return writer.finish()


def hub_rows(rows: Any, task: GlueTask, split: str) -> Rows:
    """The Hub's rows with our columns; a row without any text is broken here too."""
    for number, row in enumerate(rows):
        example = {name: row[name] for name in task.texts}
        if any(text.strip() for text in example.values()):
            yield {**example, "label": row["label"], "index": row["idx"]}
        else:
            yield RowError("empty_text", f"{task.name}/{split}:{number}: its texts are empty")


class TaskWriter:
    """The tables of one task: its splits, and its broken rows."""

    def __init__(self, folder: Path, task: GlueTask) -> None:
        self._counts = Counts()
        self._folder = folder
        self._task = task
        self._broken: list[RowError] = []

    def write(self, split: str, rows: Rows, origin: str) -> None:
        """Write one split. Raises UserError, with the first broken row, when no row is good."""
        path = self._folder / self._task.name / f"{split}.parquet"
        before = len(self._broken)
        with TableWriter(path, self._task.schema) as table:
            for row in rows:
                self._counts.rows_in += 1
                if isinstance(row, RowError):
                    self._counts.reject(row.rule)
                    self._broken.append(row)
                else:
                    table.write(row)
        if not table.rows:
            first = "".join(f"; the first: {problem}" for problem in self._broken[before : before + 1])
            raise UserError(f"{origin}: no row of {self._task.name}'s {split} split is good{first}")
        self._counts.rows_out += table.rows
        self._counts.total(f"{self._task.name}/{split}", table.rows)

    def finish(self) -> Counts:
        """Write the broken rows down, if any; the counts of the task."""
        if self._broken:
            with TableWriter(self._folder / REJECTED / f"{self._task.name}.parquet", REJECTED_SCHEMA) as table:
                for problem in self._broken:
                    place, _, value = str(problem).partition(": ")
                    table.write({"doc_id": None, "url": place, "rule": problem.rule, "value": value})
        return self._counts


def compare_with_published(tasks: Sequence[GlueTask], counts: Counts) -> dict[str, Any]:
    """Rows per task and split beside the published ones; a line for each split that differs."""
    rows = {
        task.name: {
            split: {"rows": counts.totals.get(f"{task.name}/{split}", 0), "published": published}
            for split, published in task.published.items()
        }
        for task in tasks
    }
    differs = [
        f"{task}/{split}: {number['rows']:,} rows, GLUE publishes {number['published']:,}"
        for task, splits in rows.items()
        for split, number in splits.items()
        if number["rows"] != number["published"]
    ]
    for line in differs:
        logger.info("glue_download: %s", line)
    return {"tasks": rows, "differs_from_published": differs}


if __name__ == "__main__":
    stage_main("dataprep.glue_download")
