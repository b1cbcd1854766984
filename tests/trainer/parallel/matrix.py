"""`make matrix`: every layout of a small pretraining beside one process, and the table of it, docs/parity.md.

    python -m tests.trainer.parallel.matrix --jobs 2

Each case is written to a file of results as it ends, so a run that was cut short goes on; results of other code than
today's do not count, and cases that failed are tried again. `--filter` and `--limit` choose some; then, and after a
run that was cut short, `--report` writes the table of what there is. `--mark` has the page say whether its figures are
of an earlier state of the code.
"""

import argparse
import ctypes
import dataclasses
import hashlib
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests import conftest
from tests.trainer.parallel.cases import SCHEDULES, Case, References, covering, distance, refusal
from tests.trainer.parallel.parity_page import PRECISIONS, Layout, keeps, layout, marked, page

PROCESSES = 8
_PR_SET_PDEATHSIG = 1
SECONDS = 180
"""Until a case is given up; on a busy machine eight processes wait long for each other."""
CODE = (
    "trainer/parallel",
    *(f"trainer/{name}.py" for name in ("config", "dropout", "loss", "model", "placements", "stages")),
    "trainer/plan/__init__.py",
    *(f"trainer/loop/{name}.py" for name in ("loop", "optimizer", "precision", "training")),
    *(f"trainer/data/{name}.py" for name in ("batch", "feed")),
    "tests/trainer/parallel/cases.py",
)
"""What decides on the figures: other code, other results."""


@dataclass(frozen=True, slots=True)
class Task:
    """A case to compare with one process; or one process, of a model as deep, with it in another precision."""

    case: Case
    one: Case | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one case gave."""

    case: str
    code: str
    seconds: float
    losses: float | None = None
    norms: float | None = None
    weights: float | None = None
    updates: float | None = None
    error: str = ""
    """Why there are no numbers: what a process said."""

    @property
    def counts(self) -> bool:
        """Whether the case need not be tried again."""
        return not self.error


def combinations() -> Iterator[Case]:
    """The whole product, each computation once, whether or not the trainer takes it."""
    for zero, tp, pp, schedule in itertools.product((0, 1, 2, 3), (1, 2), (1, 2, 4), SCHEDULES):
        if pp == 1 and schedule != "1f1b":
            continue
        # A pipeline given no size takes one of these two.
        sizes = (0, 1, 2) if pp == 1 else (1, 2)
        sequence = (True, False) if tp > 1 else (True,)
        recomputed = ("none", "full", "selective")
        for size, split, again, precision in itertools.product(sizes, sequence, recomputed, PRECISIONS):
            yield Case(
                zero=zero,
                tp=tp,
                pp=pp,
                schedule=schedule,
                sequence_parallel=split,
                micro_batch_size=size,
                activation_checkpointing=again,
                precision=precision,
            )


def feasible() -> list[Case]:
    """What can be computed, in the order that shows most soonest.

    One case of every layout in fp32; those that have every pair of values between them, also in bf16 and fp16; the
    rest of fp32; the rest, layout by layout in turn.
    """
    cases = [case for case in combinations() if case.processes <= PROCESSES and not refusal(case)]
    exact = [case for case in cases if case.precision == "fp32"]
    pairs = covering(cases)
    layouts = {layout(case): case for case in [*reversed(exact), *reversed(pairs)] if case.precision == "fp32"}
    return list(dict.fromkeys([*layouts.values(), *pairs, *exact, *_in_turn(cases)]))


def _in_turn(cases: Sequence[Case]) -> Iterator[Case]:
    """One of each layout and precision, then another of each, until there are none left; which, is by chance."""
    groups: dict[tuple[Layout, str], list[Case]] = {}
    for case in random.Random(0).sample(cases, len(cases)):
        groups.setdefault((layout(case), case.precision), []).append(case)
    for turn in itertools.zip_longest(*groups.values()):
        yield from (case for case in turn if case is not None)


def all_tasks(cases: Sequence[Case]) -> dict[str, Task]:
    """What there is to compute: first how far one process in bf16 and fp16 is from fp32, then the cases."""
    alone: dict[str, Task] = {}
    shapes = (Case(), Case(pp=4, schedule="zbv"), Case(zero=1, pp=4, schedule="dualpipev"))
    for precision, shape in itertools.product(PRECISIONS[1:], shapes):
        name = f"one-process-in-{precision},-{shape.n_layer}-layers,-{shape.batch}-samples"
        alone[name] = Task(dataclasses.replace(shape, precision=precision), shape)
    return alone | {str(case): Task(case) for case in cases}


def code_digest(root: Path) -> str:
    """Short sha256 of the trainer's code and of what makes the cases."""
    found = hashlib.sha256()
    for part in (root / name for name in CODE):
        for file in sorted(part.rglob("*.py")) if part.is_dir() else [part]:
            found.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes() + b"\0")
    return found.hexdigest()[:12]


def read_results(path: Path, code: str) -> dict[str, Result]:
    """The newest result of each case with this code; a line that was cut short is none."""
    found: dict[str, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            result = Result(**json.loads(line))
        except (json.JSONDecodeError, TypeError):  # cut short, or of another version of this file
            continue
        if result.code == code:
            found[result.case] = result
    return found


def run(tasks: Mapping[str, Task], path: Path, code: str, jobs: int) -> None:
    """Compute all, `jobs` at a time, and append each one's result as it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting, failed, started = iter(tasks.items()), 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millrace-matrix-") as folder, path.open("a") as file:
        begun = [_start(Path(folder) / str(number), code) for number in range(min(jobs, len(tasks)))]
        processes, runners = [process for process, _ in begun], [runner for _, runner in begun]
        try:
            busy = [each for each in runners if _give(each, waiting)]
            for done in range(1, len(tasks) + 1):
                ready: Any = wait(busy)[0]
                result: Result = ready.recv()
                # A line that was cut short must not spoil the next one, so each begins with the end of the last.
                file.write("\n" + json.dumps(dataclasses.asdict(result)))
                file.flush()
                failed += bool(result.error)
                left = (time.monotonic() - started) / done * (len(tasks) - done) / 60
                said = result.error or f"{result.losses:.1e} {result.norms:.1e} {result.weights:.1e}"
                counts = f"[{done}/{len(tasks)}, {failed} failed, {left:.0f} min left]"
                print(f"{counts} {result.case} {result.seconds:.1f} s: {said}", flush=True)
                if not _give(ready, waiting):
                    busy.remove(ready)
        except BaseException:
            for process in processes:
                process.terminate()
            raise
        finally:
            for each in runners:
                each.close()
            for process in processes:
                process.join()


def _start(folder: Path, code: str) -> tuple[Any, Connection]:
    """A process that computes one case after the other with workers of its own; it ends when the connection does."""
    folder.mkdir()
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, ours, folder, code))
    process.start()
    theirs.close()
    return process, ours


def _give(runner: Connection, tasks: Iterator[tuple[str, Task]]) -> bool:
    task = next(tasks, None)
    if task is not None:
        runner.send(task)
    return task is not None


def _serve(connection: Connection, other: Connection, folder: Path, code: str) -> None:
    other.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_parent()
    os.register_at_fork(after_in_child=_end_with_parent)
    tempfile.tempdir = str(folder)
    conftest.COLLECTIVE_SECONDS = SECONDS
    workers = conftest.WorkerPool()
    references = References(workers, folder)
    while True:
        try:
            name, task = connection.recv()
        except EOFError:
            workers.close()
            return
        connection.send(_result(references, name, task, code))


def _end_with_parent() -> None:
    """Have the kernel end this process with the one that began it, however that one ends. Linux only."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _result(references: References, name: str, task: Task, code: str) -> Result:
    started = time.monotonic()
    try:
        if task.one is None:
            one, ranks = references.of(task.case), references.run(task.case, timeout=SECONDS)
        else:
            one, ranks = references.of(task.one), [references.of(task.case)]
        found = distance(one, ranks)
    except Exception as error:  # noqa: BLE001 (the page says it, and the others go on)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        telling = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)] or lines or [repr(error)]
        return Result(case=name, code=code, seconds=time.monotonic() - started, error=telling[0][:300])
    return Result(case=name, code=code, seconds=time.monotonic() - started, **dataclasses.asdict(found))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is left, then write the page; 1 where a case of today's code failed or is above a bar."""
    parser = argparse.ArgumentParser(prog="make matrix", description="Every layout beside one process.")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 4), help="cases at a time")
    parser.add_argument("--filter", default="", help="only cases whose name has this regular expression in it")
    parser.add_argument("--limit", type=int, default=None, help="at most so many cases")
    parser.add_argument("--results", type=Path, default=Path(".work/parity.jsonl"), help="a line for each case")
    parser.add_argument("--output", type=Path, default=Path("docs/parity.md"), help="the page")
    parser.add_argument("--report", action="store_true", help="compute nothing, write the page of what there is")
    parser.add_argument("--mark", action="store_true", help="only have the page say whether it is of earlier code")
    options = parser.parse_args(arguments)
    if options.mark:
        options.output.write_text(marked(options.output.read_text(), code_digest(Path.cwd())))
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code, cases = code_digest(Path.cwd()), feasible()
    known = read_results(options.results, code)
    left = {name: task for name, task in all_tasks(cases).items() if name not in known or not known[name].counts}
    chosen = dict([item for item in left.items() if re.search(options.filter, item[0])][: options.limit])
    if not options.report:
        print(f"code {code}: {len(cases)} cases, {len(left)} tasks left, {len(chosen)} chosen", flush=True)
        run(chosen, options.results, code, options.jobs)
        known = read_results(options.results, code)
    if options.report or len(chosen) == len(left):
        options.output.write_text(page(cases, refused(), known, code))
    return int(not all(keeps(case.precision, known[str(case)]) for case in cases if str(case) in known))


def refused() -> dict[Layout, list[str]]:
    """Of each layout, why those of its cases that cannot be computed cannot."""
    found: dict[Layout, list[str]] = {}
    for case in combinations():
        many = f"needs {case.processes} processes" if case.processes > PROCESSES else ""
        if reason := refusal(case) or many:
            found.setdefault(layout(case), []).append(reason)
    return found


if __name__ == "__main__":
    sys.exit(main())
