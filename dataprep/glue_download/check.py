"""`datasets` reads a share of the lines of GLUE's files beside our reader (`pipelines.oracle`).

The share: the first lines of each file and one in ONE_IN by their hash, of those that have all columns and are UTF-8
(ours rejects the others). They are copied to small files, which both read. Small runs are not checked: starting the
library takes longer than reading all of theirs.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import xxhash

from dataprep.glue.tasks import GlueTask, RowError
from dataprep.glue_download.datasets_child import ENVIRONMENT
from dataprep.glue_download.tsv import rows_of, split_sources
from pipelines import oracle, store
from pipelines.command import Part
from pipelines.manifest import Counts
from pipelines.utf import is_utf8, text_lines

LIBRARY = "datasets"
LEAST_BYTES = 128_000_000
"""Bytes of a run's files from which it is checked: its other work then takes twenty times as long as the check."""
FIRST = 200
ONE_IN = 200

logger = logging.getLogger(__name__)


def is_checked(files: Sequence[Path]) -> bool:
    """Return whether a run with these files is large enough."""
    return sum(file.stat().st_size for file in files) >= LEAST_BYTES


def check_by_datasets(part: Part, folder: Path, tasks: Mapping[str, tuple[GlueTask, int]]) -> Counts:
    """Compare the share of all files. `tasks`: of each its description, and how many of `part.files` are its own.

    Raises UserError for a row that the proven version reads in another way.
    """
    counts, samples = Counts(), list[Sample]()
    files = iter(part.files)
    for task, number in tasks.values():
        own = [next(files) for _ in range(number)]
        for split, file in split_sources(own, task):
            samples.append(Sample(task, split, file, folder / f"{len(samples):03d}.tsv"))
    theirs = _cells([sample.copy for sample in samples], folder / "cells.jsonl")
    for sample in samples:
        sample.compare(theirs, counts)
    for file in folder.iterdir():
        file.unlink()
    return counts


class Sample:
    """The share of one file, copied to a small one."""

    def __init__(self, task: GlueTask, split: str, file: Path, copy: Path) -> None:
        self.copy = copy
        self._task, self._split, self._file = task, split, file
        self._numbers = [1]
        lines = enumerate(text_lines(file), start=1)
        _, first = next(lines, (1, b""))
        self._lines = [first]
        width = self._lines[0].count(b"\t")
        for number, line in lines:
            taken = number <= FIRST or xxhash.xxh3_64_intdigest(line) % ONE_IN == 0
            if taken and line and line.count(b"\t") == width and is_utf8(line):
                self._numbers.append(number)
                self._lines.append(line)
        with store.create(copy, durable=False) as opened:
            opened.write(b"".join(line + b"\n" for line in self._lines))

    def compare(self, cells: Iterator[list[str]] | None, counts: Counts) -> None:
        """Compare our rows with those of the library's next cells; None: it could not read the files."""
        ours = self._rows(self._lines)
        texts = ("\t".join(row).encode() for row in cells or ())
        theirs = self._rows([line for _, line in zip(self._lines, texts, strict=False)])
        for position, row in enumerate(ours):
            equal = position < len(theirs) and theirs[position] == row
            number = self._numbers[position + len(self._numbers) - len(ours)]
            place = f"{self._file.parent.name}/{self._file.name}:{number}"
            oracle.compare(counts, LIBRARY, equal=equal, row=place, what=f"its row of {self._task.name}")

    def _rows(self, lines: Sequence[bytes]) -> list[object]:
        rows = rows_of(iter(enumerate(lines, start=1)), self._file, self._task, self._split) if lines else ()
        return [row.rule if isinstance(row, RowError) else row for row in rows]


def _cells(files: Sequence[Path], output: Path) -> Iterator[list[str]] | None:
    """Return the rows of all files as the library reads them; None if it fails."""
    command = [sys.executable, "-m", "dataprep.glue_download.datasets_child", str(output), *map(str, files)]
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, env={**os.environ, **ENVIRONMENT}
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        logger.warning("glue_download: datasets %s cannot read the rows: %s", oracle.installed(LIBRARY), last)
        return None
    return (json.loads(line) for line in store.read_lines(output))
