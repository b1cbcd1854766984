"""Failing disks: an error of write, fsync, rename, open or link below the project, in the command or in its workers.

A small C library (`failing.c`), compiled here and loaded with LD_PRELOAD, lets the n-th call fail. The command must
end with one line, or go on without harm; the old output stays, and the same command then ends in the same bytes.
"""

import errno
import subprocess
from pathlib import Path

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.kills import judge_end, judge_old_output, judge_output
from benchmarks.faults.project import Reference, Start
from benchmarks.faults.table import Row

CALLS = ("write", "fsync", "rename", "open", "link")
ERRORS = ("EIO", "ENOSPC", "EMFILE", "EACCES", "EROFS")
LATEST = {"write": 60, "fsync": 12, "rename": 12, "open": 60, "link": 4}
"""The last call of each kind that is chosen; a stage of the project makes about so many."""
FOREVER = 1_000_000


def compiled(folder: Path) -> Path:
    """The library; raises OSError or CalledProcessError without a C compiler."""
    library = folder / "failing.so"
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("failing.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, capture_output=True)
    return library


def failing_calls(campaign: Campaign) -> Row:
    """Each error of each call once, in a stage of the graph, over its earlier output."""
    row = Row("errors of calls")
    try:
        library = compiled(campaign.work)
    except (OSError, subprocess.CalledProcessError):
        row.skipped = "needs a C compiler"
        return row
    jobs = [*campaign.project.data_jobs(), campaign.project.training_jobs()[0]]
    for call in CALLS:
        for error in ERRORS:
            if campaign.late:
                return row
            chance = campaign.chance(f"errno/{call}/{error}")
            reference = campaign.project.reference(chance.choice(jobs))
            first, times = chance.randrange(LATEST[call]), chance.choice((1, FOREVER))
            run_failing(reference, library, call, error, first, times, chance.choice((1, 2)), row)
            campaign.say(f"{call} {error}: {reference.job.name}: {len(row.problems)} problems")
    return row


def run_failing(
    reference: Reference,
    library: Path,
    call: str,
    error: str,
    first: int,
    times: int,
    workers: int,
    row: Row,
    *,
    succeeds: bool = False,
) -> None:
    """One run over the old output with failing calls, which must do no harm if it `succeeds`, and one without."""
    job, row.runs = reference.job, row.runs + 1
    faults = {
        "FAULTS_UNDER": str(job.project),
        "FAULTS_CALL": call,
        "FAULTS_ERRNO": str(getattr(errno, error)),
        "FAULTS_FIRST": str(first),
        "FAULTS_TIMES": str(times),
    }
    what = f"{job.name}, {call} {error} from call {first}, {times} time(s), {workers} worker(s)"
    start = Start(False, workers)
    end = start.begin(job, "--overwrite", LD_PRELOAD=str(library), **faults).end()
    row.outcomes[end.name] += 1
    judge_end(end, job, row, what, frozenset({0} if succeeds else {0, 1}))
    judge_old_output(job, reference, row, what)
    again = Start(True, 1).begin(job, "--overwrite").end()
    judge_end(again, job, row, f"after {what}", frozenset({0}))
    judge_output(job, reference, row)
