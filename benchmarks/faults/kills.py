"""Random kills: each stage, and training in each layout, is struck again and again until it has ended by itself.

A run is done when its output is published. It must have the bytes of the undisturbed run, and at no moment may the
output of an earlier run be gone. A seed draws the strikes and their moments; what a moment hits depends on the machine.
"""

import random
import time
from collections.abc import Callable, Sequence

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.project import STARTS, Job, Reference
from benchmarks.faults.running import STRIKES, End, Running
from benchmarks.faults.table import Row
from pipelines.errors import UserError

MOST_STRIKES = 10
"""Of one run; then it is left alone."""
DEADLY = [kind for kind in STRIKES if kind != "STOP and CONT"]
EXISTS = "exists already"
"""The refusal of a command that was killed after it had published everything."""


def kill_stages(campaign: Campaign) -> Row:
    """Every data stage, over its own earlier output (`--overwrite`) or without one."""
    return _until_enough(campaign, "kills of data stages", stage_kills(campaign), campaign.project.data_jobs())


def kill_training(campaign: Campaign) -> Row:
    """Pretraining in each layout, and under torchrun."""
    return _until_enough(campaign, "kills of training", training_kills(campaign), campaign.project.training_jobs())


def kill_later_stages(campaign: Campaign) -> Row:
    """Export, evaluation and fine-tuning."""
    return _until_enough(campaign, "kills of later stages", training_kills(campaign), campaign.project.later_jobs())


def stage_kills(campaign: Campaign) -> int:
    """The share of the data stages."""
    return campaign.kills - 2 * training_kills(campaign)


def training_kills(campaign: Campaign) -> int:
    """The share of training and of the stages after it, one in eight each: their processes take seconds to start."""
    return campaign.kills // 8


def _until_enough(campaign: Campaign, case: str, kills: int, jobs: Sequence[Job]) -> Row:
    row, number = Row(case), 0
    while row.kills < kills and not campaign.late:
        job = jobs[number % len(jobs)]
        reference = campaign.project.reference(job)
        chance = campaign.chance(f"{case}/{job.name}/{number // len(jobs)}")
        run_with_strikes(reference, chance, row, most=min(MOST_STRIKES, kills - row.kills))
        number += 1
        campaign.say(f"{case}: {job.name}: {row.kills} of {kills} kills, {len(row.problems)} problems")
    return row


def run_with_strikes(
    reference: Reference,
    chance: random.Random,
    row: Row,
    *,
    most: int,
    between: Callable[[Job], Job] = lambda job: job,
) -> None:
    """Run a command until its output is there, striking it at most so often; `between` may move it after a strike."""
    job, row.runs = reference.job, row.runs + 1
    overwrite, start = chance.random() < 0.5, chance.choices(STARTS, weights=(5, 3, 1))[0]
    if job.under_torchrun:
        start = STARTS[-1]
    longest = reference.timed(start)
    if not overwrite:
        job.clear()
    begun: list[Running] = []
    end = End(0, "")
    for strike in range(most + 3):
        flags = ["--overwrite"] if overwrite else []
        running = start.begin(job, *flags)
        begun.append(running)
        kind, moment = chance.choice(list(STRIKES)), chance.uniform(0, longest)
        struck = strike < most and running.wait_for(moment) and running.strike(kind, chance)
        end = running.end()
        row.outcomes[end.name] += 1
        row.kills += struck and kind in DEADLY and end.status != 0
        row.outcomes["paused"] += struck and kind not in DEADLY
        what = f"{job.name}, {kind} after {moment:.2f} s" if struck else f"{job.name}, left alone"
        judge_end(end, job, row, what, STRIKES[kind] if struck else frozenset({0}))
        if overwrite:
            judge_old_output(job, reference, row, what)
        if end.status == 0 or (EXISTS in end.said and not overwrite):
            break
        job = between(job)
    else:
        row.lost.append(f"{job.name}: no output after {most + 3} starts: {end.last_lines}")
    judge_output(job, reference, row)
    _judge_orphans(begun, job, row)


def judge_end(end: End, job: Job, row: Row, what: str, allowed: frozenset[int]) -> None:
    """Note an end that is not allowed, or that shows more than one line of error."""
    if end.has_traceback(launcher=job.under_torchrun):
        row.tracebacks.append(f"{what}: {end.last_lines}")
    if job.under_torchrun or EXISTS in end.said:
        return  # torchrun has its own statuses
    if end.status not in allowed:
        row.wrong.append(f"{what}: {end.name}: {end.last_lines}")
    elif end.status == 1 and end.errors != 1:
        row.wrong.append(f"{what}: not one line of error: {end.last_lines}")


def judge_old_output(job: Job, reference: Reference, row: Row, what: str) -> None:
    """The old output has the bytes of the new one, so whole means: of either run, or kept for the next one."""
    try:
        found = job.digests()
    except (UserError, OSError) as error:
        if not all((job.project / output).exists() or job.saved(output) for output in job.outputs):
            row.lost.append(f"{what}: {error}")
    else:
        if found != reference.digests:
            row.different.append(f"{what}: the published output has other bytes")


def judge_output(job: Job, reference: Reference, row: Row) -> None:
    """Compare what is published with the undisturbed run."""
    try:
        if job.digests() != reference.digests:
            row.different.append(f"{job.name}: {job.digests()} in place of {reference.digests}")
    except (UserError, OSError) as error:
        row.lost.append(f"{job.name}: {error}")


def _judge_orphans(begun: Sequence[Running], job: Job, row: Row) -> None:
    for running in begun:
        if left := running.orphans():
            row.wrong.append(f"{job.name}: {len(left)} of its processes outlive the command")
            running.kill_all()
            time.sleep(0.1)
