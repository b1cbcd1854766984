"""The tables of a task: TASK/SPLIT.parquet, broken rows in rejected/TASK.parquet, and what is counted of them.

Totals by TASK/SPLIT: its rows; `label/NAME`, rows with that label; `empty_text`, pairs of which one text is empty;
`repairable` (`repaired`, if they are), rows that ftfy changes, and `repairable/FIX` by fix.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataprep.cleaning.repair import Repair
from dataprep.glue.task import HIDDEN_LABEL, GlueTask, RowError, Rows
from pipelines.documents import REJECTED, REJECTED_SCHEMA, TableWriter
from pipelines.errors import UserError
from pipelines.manifest import Counts


class TaskWriter:
    """The tables of one task; with `repair`, texts are written as ftfy repairs them, else only counted."""

    def __init__(self, folder: Path, task: GlueTask, *, repair: bool) -> None:
        self._counts = Counts()
        self._folder = folder
        self._task = task
        self._repair = Repair()
        self._replace = repair
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
                    table.write(self._counted(row, f"{self._task.name}/{split}"))
        if not table.rows:
            first = "".join(f"; the first: {problem}" for problem in self._broken[before : before + 1])
            raise UserError(f"{origin}: no row of {self._task.name}'s {split} split is good{first}")
        self._counts.rows_out += table.rows
        self._counts.total(f"{self._task.name}/{split}", table.rows)

    def _counted(self, row: dict[str, Any], place: str) -> Mapping[str, Any]:
        repaired = {name: self._repair.apply(row[name]) for name in self._task.texts}
        changes = {change for text in repaired.values() for change in text.changes}
        kind = "repaired" if self._replace else "repairable"
        for name in [kind, *(f"{kind}/{change}" for change in sorted(changes))] if changes else []:
            self._counts.total(f"{place}/{name}", 1)
        if not all(row[name].strip() for name in self._task.texts):
            self._counts.total(f"{place}/empty_text", 1)
        if self._task.labels and row["label"] != HIDDEN_LABEL:
            self._counts.total(f"{place}/label/{self._task.labels[row['label']]}", 1)
        return {**row, **{name: text.text for name, text in repaired.items()}} if self._replace else row

    def finish(self) -> Counts:
        """Write the broken rows down, if any; the counts of the task."""
        if self._broken:
            with TableWriter(self._folder / REJECTED / f"{self._task.name}.parquet", REJECTED_SCHEMA) as table:
                for problem in self._broken:
                    place, _, value = str(problem).partition(": ")
                    table.write({"doc_id": None, "url": place, "rule": problem.rule, "value": value})
        return self._counts
