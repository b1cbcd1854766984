"""Where a project can be: used by two commands at once, moved, without hard links, read-only, on a full disk.

What needs root is skipped with a line where it is not allowed. Mounts are made for a moment and always taken away.
"""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.errors import compiled, run_failing
from benchmarks.faults.kills import judge_end, judge_old_output, judge_output, run_with_strikes
from benchmarks.faults.project import STARTS, Job, Reference, Start
from benchmarks.faults.table import Row
from pipelines import store

SOME = ("clean", "split", "tokenize train", "glue_download")
"""The stages that these cases run: one output and several, documents, tokens and tables."""
USUAL = Start(forked=False, workers=2)


def references(campaign: Campaign) -> list[Reference]:
    """These stages with their undisturbed runs."""
    jobs = {job.name: job for job in campaign.project.data_jobs()}
    return [campaign.project.reference(jobs[name]) for name in SOME]


def two_at_once(campaign: Campaign) -> Row:
    """The same command twice at the same time: one makes the output, the other one says so or finds it there."""
    row = Row("two runs at once")
    for reference in references(campaign):
        job, row.runs = reference.job, row.runs + 1
        job.clear()
        both = [STARTS[0].begin(job) for _ in range(2)]
        ends = [running.end() for running in both]
        for end in ends:
            row.outcomes[end.name] += 1
            judge_end(end, job, row, f"{job.name}, two at once", frozenset({0, 1}))
        if 0 not in [end.status for end in ends]:
            row.lost.append(f"{job.name}: neither of two runs made it: {ends[0].last_lines}")
        judge_output(job, reference, row)
    return row


def moved_project(campaign: Campaign) -> Row:
    """A project whose folder is renamed after each kill; the unfinished run goes on in the new place."""
    row, home = Row("moved between kills"), campaign.project.folder
    elsewhere = home.with_name("project moved")

    def move(job: Job) -> Job:
        target = elsewhere if job.project == home else home
        job.project.rename(target)
        return job.at(target)

    for reference in references(campaign):
        chance = campaign.chance(f"moved/{reference.job.name}")
        try:
            run_with_strikes(reference, chance, row, most=3, between=move)
        finally:
            if elsewhere.exists():
                elsewhere.rename(home)
    return row


def without_hard_links(campaign: Campaign) -> Row:
    """Every link is refused (EPERM), as on file systems that have none: files are copied, with the same bytes."""
    row = Row("no hard links")
    try:
        library = compiled(campaign.work)
    except (OSError, subprocess.CalledProcessError):
        row.skipped = "needs a C compiler"
        return row
    for reference in references(campaign):
        run_failing(reference, library, "link", "EPERM", 0, 1_000_000, 2, row, succeeds=True)
    return row


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int, *options: str) -> Generator[bool]:
    """A file system of our own in the folder while the block runs; gives False if it is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", ",".join((f"size={megabytes}m", *options)), "tmpfs", str(folder)]
    mounted = not subprocess.run(mount, capture_output=True, check=False).returncode
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def case_insensitive_names(campaign: Campaign) -> Row:
    """A folder in which `A` and `a` are one name, as on macOS and Windows: a tmpfs of Linux 6.13 or later."""
    row, disk = Row("case-insensitive names"), campaign.work / "disk"
    for reference in references(campaign):
        with small_disk(disk, 256, "casefold") as mounted:
            folder = disk / "project"
            folder.mkdir(exist_ok=True)
            fold = ["chattr", "+F", folder]
            if not mounted or subprocess.run(fold, capture_output=True, check=False).returncode:
                row.skipped = "needs the right to mount a tmpfs, and a kernel whose tmpfs has `casefold`"
                return row
            there = _copied(reference.job, folder / "copy")
            row.runs += 1
            _again(there, reference, row, "a copy")
    return row


def full_disk(campaign: Campaign) -> Row:
    """A disk that is full but for 100 kB, then has room again."""
    row = Row("full disk")
    for reference in references(campaign):
        job = reference.job
        with small_disk(campaign.work / "disk", 64) as mounted:
            if not mounted:
                row.skipped = "needs the right to mount a tmpfs"
                return row
            there = _copied(job, campaign.work / "disk/project")
            ballast = there.project.parent / "ballast"
            _fill(ballast, shutil.disk_usage(there.project).free - 100_000)
            _disturbed(there, reference, row, "a full disk", ballast.unlink)
    return row


def read_only_remount(campaign: Campaign) -> Row:
    """A file system that turns read-only in the middle of a run, as after an error of the disk."""
    row = Row("read-only in the middle")
    for reference in references(campaign):
        job = reference.job
        disk = campaign.work / "disk"
        with small_disk(disk, 256) as mounted:
            if not mounted:
                row.skipped = "needs the right to mount a tmpfs"
                return row
            there = _copied(job, disk / "project")
            running = USUAL.begin(there, "--overwrite")
            running.wait_for(campaign.chance(f"read-only/{job.name}").uniform(0.3, 1) * reference.timed(USUAL))
            # A file that is open for writing keeps a file system from it; the loop ends with the run at the latest.
            while (refused := _remount(disk, "ro")) and running.wait_for(0.005):
                pass
            row.outcomes["the kernel refused the remount"] += bool(refused)
            end = running.end()
            row.runs += 1
            row.outcomes[end.name] += 1
            what = f"{job.name}, read-only"
            judge_end(end, there, row, what, frozenset({0, 1}))
            judge_old_output(there, reference, row, what)
            _remount(disk, "rw")
            _again(there, reference, row, what)
    return row


def _remount(disk: Path, mode: str) -> int:
    return subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], capture_output=True, check=False).returncode


def _copied(job: Job, folder: Path) -> Job:
    store.remove(folder)
    shutil.copytree(job.project, folder, ignore=shutil.ignore_patterns(".work", "runs"))
    return job.at(folder)


def _fill(file: Path, size: int) -> None:
    with file.open("wb") as ballast:
        while size > 0:
            size -= ballast.write(bytes(min(size, 1 << 20)))


def _disturbed(job: Job, reference: Reference, row: Row, what: str, mend: Callable[[], None]) -> None:
    row.runs += 1
    end = USUAL.begin(job, "--overwrite").end()
    row.outcomes[end.name] += 1
    judge_end(end, job, row, f"{job.name}, {what}", frozenset({0, 1}))
    judge_old_output(job, reference, row, f"{job.name}, {what}")
    mend()
    _again(job, reference, row, what)


def _again(job: Job, reference: Reference, row: Row, what: str) -> None:
    end = STARTS[0].begin(job, "--overwrite").end()
    judge_end(end, job, row, f"{job.name}, after {what}", frozenset({0}))
    judge_output(job, reference, row)
