"""Plans: for each URL of a range of the list, in order, where its outcome lies or why it was never asked for.

Equal plans are read as equal outcomes: a place names its record by checksum.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dataprep.crawl.fetched import Outcome, Packed
from dataprep.crawl.record_log import Place, read_outcome, read_packed
from pipelines import store

_OPEN_LOGS = 64


@dataclass(frozen=True, slots=True)
class Answers:
    """A plan for each segment, and the folder of the logs whose records the plans name."""

    plans: list[Path]
    logs: Path


def plan_line(entry: Place | Outcome) -> bytes:
    """One line of a plan: where the outcome of a URL lies, or the outcome of one that was never fetched."""
    if isinstance(entry, Place):
        return json.dumps([entry.log, entry.offset, entry.checksum]).encode() + b"\n"
    return json.dumps([entry.url, entry.rule, entry.value]).encode() + b"\n"


def read_plan(plan: Path) -> Iterator[Place | Outcome]:
    """The entries of a plan, in order."""
    for line in store.read_lines(plan):
        first, second, third = json.loads(line)
        yield Place(first, second, third) if isinstance(second, int) else Outcome(url=first, rule=second, value=third)


class PlanReader:
    """Reads the outcomes that a plan names, in its order; keeps a few logs open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: OrderedDict[str, BinaryIO] = OrderedDict()

    def outcomes(self, plan: Path) -> Iterator[Outcome]:
        """The outcomes alone: their pages are not read."""
        for entry in read_plan(plan):
            yield read_outcome(self._log(entry), entry) if isinstance(entry, Place) else entry

    def packed(self, plan: Path) -> Iterator[Packed]:
        """The outcomes with their WARC members."""
        for entry in read_plan(plan):
            yield read_packed(self._log(entry), entry) if isinstance(entry, Place) else Packed(entry)

    def __enter__(self) -> "PlanReader":
        return self

    def __exit__(self, *trace: object) -> None:
        for log in self._logs.values():
            log.close()

    def _log(self, place: Place) -> BinaryIO:
        if place.log in self._logs:
            self._logs.move_to_end(place.log)
        else:
            self._logs[place.log] = (self._folder / place.log).open("rb")
            if len(self._logs) > _OPEN_LOGS:
                self._logs.popitem(last=False)[1].close()
        return self._logs[place.log]
