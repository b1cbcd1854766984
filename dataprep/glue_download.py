"""Stage `glue_download`: GLUE tasks, or one of your own, as tables with labels and splits; with the Hub's columns.

From a folder with the original TSV distribution, or from the Hub (`--source hub`, a pinned commit).
Out: TASK/SPLIT.parquet with the task's text columns, `label` (-1 where it is hidden) and `index` (the
row's number in its file, from 0); broken rows in rejected/TASK.parquet by file and line; rows that are the same
or nearly the same, in one split or in two, in duplicates/TASK.parquet. The stats say how many validation and
test rows have a duplicate in train, and how many rows ftfy would change.
Tasks: cola, sst2, mrpc, qqp, stsb, mnli, qnli, rte, wnli, ax; without any, those of the configuration.

The task `custom` is your own: train, validation and test files as JSONL, CSV, TSV or Parquet in the source folder.

Run: python -m dataprep.glue_download mrpc rte OUTPUT --source glue_data
     python -m dataprep.glue_download custom OUTPUT --source FOLDER --columns question answer --label relevant
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep.glue.custom import LabelKind, check_columns, custom_files, custom_task, read_custom
from dataprep.glue.duplicates import DuplicatesConfig, find_in_task, log_leaks
from dataprep.glue.hub import HUB_DATASET, read_hub
from dataprep.glue.task import GlueTask
from dataprep.glue.tasks import CUSTOM, TASKS, find_task
from dataprep.glue.tsv import read_splits, task_files
from dataprep.sources.hub_client import check_commit
from pipelines.command import Output, Part
from pipelines.config import StageSource
from pipelines.errors import ConfigError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 2
SHAPED_BY = ("ftfy", "numpy", "pyarrow", "xxhash")

HUB = "hub"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueDownloadConfig:
    """Which tasks, where they come from, and what is done to their texts."""

    tasks: tuple[str, ...] = ("mrpc",)
    """Tasks to take when the command names none."""
    source: StageSource = HUB
    """A folder with GLUE's TSV files, one folder per task (MRPC, CoLA, STS-B...), or with your own; or hub."""
    revision: str = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
    """Commit of the Hub's nyu-mll/glue, 40 hexadecimal digits: a branch could change under us."""
    columns: tuple[str, ...] = ()
    """Of the task custom: its text column, or its two in the order in which the model reads them."""
    label: str = "label"
    """Of the task custom: its label column. Class names, numbers or scores; a test file need not have it."""
    labels: tuple[str, ...] = ()
    """Of the task custom: the names of all classes, by id; none: the labels of its train file in order."""
    label_kind: LabelKind = "auto"
    """Of the task custom: classes, or a score to be predicted; auto: a score if all are numbers, some not whole."""
    repair: bool = False
    """Repair mojibake, entities, quotes and control characters with ftfy; else only count what it would change."""
    duplicates: DuplicatesConfig = field(default_factory=DuplicatesConfig)


def check_config(config: GlueDownloadConfig) -> None:
    """Refuse a revision that could change under us."""
    if config.source == HUB:
        check_commit("glue_download.revision", HUB_DATASET, config.revision)


def glue_download(config: GlueDownloadConfig, run: StageRun, tasks: tuple[str, ...], output: Output) -> dict[str, Any]:
    """Publish every split of every task, and its duplicates; the stats compare its rows with the published counts."""
    files, chosen = choose_tasks(tasks or config.tasks, config)
    parts = [Part(name, tuple(files[name])) for name in chosen]
    counts = run.map(take_task, parts, chosen, config, into=output)
    report_labels(chosen, counts)
    report_repairs(chosen, counts, repair=config.repair)
    return {
        **compare_with_published(list(chosen.values()), counts),
        "labels_missing_from_train": missing_labels(chosen, counts),
        "duplicates": find_duplicates_of(chosen, counts, config.duplicates, run, output),
    }


def choose_tasks(names: Sequence[str], config: GlueDownloadConfig) -> tuple[dict[str, list[Path]], dict[str, GlueTask]]:
    """The files (of the Hub none) and the descriptions of the tasks with these names, in GLUE's order."""
    for name in names:
        if name != CUSTOM:
            find_task(name)
    chosen = {name: task for name, task in TASKS.items() if name in names}
    source = Path(config.source)
    files = {name: [] if config.source == HUB else task_files(source, task) for name, task in chosen.items()}
    if CUSTOM in names:
        if config.source == HUB:
            raise ConfigError(f"glue_download.source: {CUSTOM} is read from files; name their folder with --source")
        check_columns(config.columns, config.label, config.labels)
        files[CUSTOM] = custom_files(source)
        chosen[CUSTOM] = custom_task(files[CUSTOM], config.columns, config.label, config.labels, config.label_kind)
    return files, chosen


def take_task(part: Part, folder: Path, tasks: Mapping[str, GlueTask], config: GlueDownloadConfig) -> Counts:
    """All splits of one task."""
    from dataprep.glue.writer import TaskWriter

    task = tasks[part.name]
    if config.source == HUB:
        splits = read_hub(task, config.revision)
    else:
        splits = read_custom(part.files, task) if task.name == CUSTOM else read_splits(part.files, task)
    writer = TaskWriter(folder, task, repair=config.repair)
    for split, origin, rows in splits:
        writer.write(split, rows, str(origin))
    return writer.finish()


def find_duplicates_of(
    tasks: Mapping[str, GlueTask], counts: Counts, config: DuplicatesConfig, run: StageRun, output: Output
) -> dict[str, Any]:
    """By task: its pairs, and how many rows of each split have a duplicate in each other and in itself."""
    found: dict[str, Any] = {}
    for name, task in tasks.items() if config.find else ():
        splits = [split for split in task.published if f"{name}/{split}" in counts.totals]
        tables = [output.folder / name / f"{split}.parquet" for split in splits]
        lent = [output.folder / task.trained_as / "train.parquet"] if task.trained_as in tasks else []
        found[name] = find_in_task(run, name, lent, tables, config, output)
        log_leaks(name, found[name], {split: counts.totals[f"{name}/{split}"] for split in splits})
    return found


def missing_labels(tasks: Mapping[str, GlueTask], counts: Counts) -> dict[str, list[str]]:
    """By task: the classes that no train row has, where any has none."""
    missing = {
        name: [label for label in task.labels if f"{name}/train/label/{label}" not in counts.totals]
        for name, task in tasks.items()
        if "train" in task.published
    }
    return {name: labels for name, labels in missing.items() if labels}


def report_labels(tasks: Mapping[str, GlueTask], counts: Counts) -> None:
    """A line for each task with a class that cannot be learned, and one for what custom's labels were taken for."""
    for name, labels in missing_labels(tasks, counts).items():
        logger.warning("glue_download: %s: no train row has the label %s", name, " or ".join(labels))
    if custom := tasks.get(CUSTOM):
        kind = f"{len(custom.labels)} classes: {', '.join(custom.labels)}" if custom.labels else "a score"
        logger.info("glue_download: %s: labels are %s", CUSTOM, kind)


def report_repairs(tasks: Mapping[str, GlueTask], counts: Counts, *, repair: bool) -> None:
    """A line for each task with rows that ftfy changed, or would change."""
    for name, task in tasks.items():
        places = [f"{name}/{split}" for split in task.published]
        rows, changed = (
            sum(counts.totals.get(f"{place}{kind}", 0) for place in places)
            for kind in ("", "/repaired" if repair else "/repairable")
        )
        if changed:
            verb = "changed" if repair else "would change (--repair)"
            logger.info("glue_download: %s: ftfy %s %s of %s rows", name, verb, f"{changed:,}", f"{rows:,}")


def compare_with_published(tasks: Sequence[GlueTask], counts: Counts) -> dict[str, Any]:
    """Rows per task and split beside the published ones; a line for each split that differs."""
    rows = {
        task.name: {
            split: {"rows": counts.totals.get(f"{task.name}/{split}", 0), **_published(published)}
            for split, published in task.published.items()
        }
        for task in tasks
    }
    differs = [
        f"{task}/{split}: {number['rows']:,} rows, GLUE publishes {number['published']:,}"
        for task, splits in rows.items()
        for split, number in splits.items()
        if number["rows"] != number.get("published", number["rows"])
    ]
    for line in differs:
        logger.info("glue_download: %s", line)
    return {"tasks": rows, "differs_from_published": differs}


def _published(rows: int | None) -> dict[str, int]:
    return {} if rows is None else {"published": rows}


if __name__ == "__main__":
    stage_main("dataprep.glue_download")
