"""Hostile files: seeded damage of small good files, each given to the stage that reads it.

Each input is read in a fork of this process, over an output that is already there. Whatever is read: exit status 0, 1
or 2, at most one line of error, bounded time and memory, and the old output stays unless the new one is whole.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.hostile_files import good_files
from benchmarks.faults.mutations import mutated
from benchmarks.faults.running import MODULES, End, Running, preload
from benchmarks.faults.table import Row
from pipelines import store
from pipelines.errors import UserError
from pipelines.manifest import load_checked

SECONDS, MEGABYTES = 60.0, 2000.0
"""What one small file may cost on a busy machine, with the libraries of the trainer in memory."""


@dataclass(frozen=True)
class Subject:
    """A kind of file: a good folder, which of its files is damaged, and the command that reads it."""

    kind: str
    good: Path
    file: str
    command: Callable[[Path, Path], list[str]]
    """(damaged folder, output) -> words after the interpreter."""


def hostile_files(campaign: Campaign) -> Row:
    """Damaged files of every kind of source, in turn."""
    row = Row("hostile files")
    subjects = [Subject(*each) for each in good_files(campaign)]
    prepare(campaign, subjects, row)
    for number in range(campaign.inputs):
        if campaign.late:
            break
        subject = subjects[number % len(subjects)]
        try_one(campaign, subject, number, row)
        if number % 50 == 49:
            campaign.say(f"hostile files: {number + 1} of {campaign.inputs}, {len(row.problems)} problems")
    return row


def prepare(campaign: Campaign, subjects: Sequence[Subject], row: Row) -> None:
    """Read each good file once, and import here what that has imported."""
    folder, names = campaign.work / "hostile", campaign.work / "modules"
    for subject in subjects:
        store.remove(folder)
        folder.mkdir(parents=True)
        words = subject.command(subject.good, folder / "out")
        end = Running(words, folder, {MODULES: str(names)}, forked=True).end()
        if end.status:
            row.wrong.append(f"{subject.kind}, undamaged: {end.name}: {end.last_lines}")
        else:
            preload(names)


def try_one(campaign: Campaign, subject: Subject, number: int, row: Row) -> None:
    """Damage the file of a subject, and run its command on it."""
    folder, row.runs = campaign.work / "hostile", row.runs + 1
    store.remove(folder)
    shutil.copytree(subject.good, folder / "in", symlinks=True)
    chance = campaign.chance(f"files/{number}")
    file = folder / "in" / subject.file
    data, done = mutated(file.read_bytes(), chance)
    file.write_bytes(data)
    old = old_output(folder / "out")
    end, megabytes, seconds = read(subject.command(folder / "in", folder / "out"), folder)
    what = f"{subject.kind} {number} ({done})"
    row.outcomes[end.name] += 1
    if end.has_traceback():
        row.tracebacks.append(f"{what}: {end.last_lines}")
    if end.status not in (0, 1, 2):
        row.wrong.append(f"{what}: {end.name} after {seconds:.0f} s, {megabytes:.0f} MB: {end.last_lines}")
    elif end.status and end.errors != 1:
        row.wrong.append(f"{what}: not one line of error: {end.last_lines}")
    now = contents(folder / "out")
    if end.status and now != old:
        row.lost.append(f"{what}: the old output was changed")
    elif not end.status:
        try:
            load_checked(folder / "out")
        except UserError as error:
            row.lost.append(f"{what}: {error}")


def old_output(folder: Path) -> dict[str, str]:
    """An output of yesterday, as a stage publishes it."""
    folder.mkdir(parents=True)
    (folder / "part-00000.parquet").write_bytes(b"yesterday")
    entry = {"rows": 1, "bytes": 9, "sha256": store.sha256(folder / "part-00000.parquet")}
    counts = {"in": 1, "out": 1, "rejected": {}, "totals": {}}
    store.write_json(folder / "manifest.json", {"files": {"part-00000.parquet": entry}, "counts": counts})
    return contents(folder)


def contents(folder: Path) -> dict[str, str]:
    """The digest of every file."""
    return {path.relative_to(folder).as_posix(): store.sha256(path) for path in store.list_files(folder)}


def read(words: list[str], folder: Path) -> tuple[End, float, float]:
    """Run a command in a fork; its end, its most memory in MB and its seconds. One that takes too much is killed."""
    started, most = time.monotonic(), 0.0
    running = Running(words, folder, forked=True)
    while running.wait_for(0.01):
        most = max(most, *memory_of(running.members()))
        if most > MEGABYTES or time.monotonic() - started > SECONDS:
            running.kill_all()
    return running.end(), most, time.monotonic() - started


def memory_of(processes: list[int]) -> Iterator[float]:
    """Megabytes of each, and 0."""
    yield 0.0
    for pid in processes:
        try:
            yield int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        except (OSError, IndexError):
            continue
