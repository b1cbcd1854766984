"""Starts the training processes of this machine, or shares the work among those of torchrun or Slurm.

`launch(function, parallel, *arguments)` runs `function(process, *arguments)` in every process and returns what
the first one returns. Local processes are forked from a server that has imported torch once; they meet through a
file and talk over loopback. Under torchrun or Slurm the stage's command runs once per process: rank 0 is the stage,
the others call `served()`, which takes the work from rank 0.

One process's failure ends all of them, with its error in one line. After SIGTERM, SIGUSR1 or Ctrl-C they save a
checkpoint at the next step and end (`Stopped`); when the parent is killed, they end at once.
"""

import contextlib
import datetime
import functools
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from pipelines import log
from pipelines.errors import ConfigError, UserError
from pipelines.stage import PREEMPTED
from trainer.config import ParallelConfig
from trainer.process import (
    Place,
    StopFlag,
    Stopped,
    join,
    place_from_environment,
    prepare,
    rendezvous_environment,
    take_usr1_for_sigterm,
)
from trainer.rank_log import STACKS, rank_log

PRELOAD = ["torch", "torch.distributed.checkpoint", "trainer.checkpoint", "trainer.hooks", "trainer.loop"]
"""What every process needs, imported once by the server that they are forked from."""
PATIENCE = datetime.timedelta(hours=1)
"""Processes of a cluster wait so long for rank 0 to bring them work."""
GRACE_SECONDS = 1.0
"""After the first failure: how long to listen for its cause, before the others are ended."""

STACK_SECONDS = 0.2
"""Processes that wait for a failed one have so long to write down where."""

Function = Callable[..., Any]
Job = tuple[Path | None, Function, ParallelConfig, tuple[Any, ...]]
"""Where each process writes its log, and what it calls."""


def count_processes(parallel: ParallelConfig) -> int:
    """Processes that the layout takes here; ConfigError when they are more than the GPUs of this machine."""
    if place := place_from_environment(os.environ):
        return place.size
    gpus = 0 if parallel.device == "cpu" else _count_gpus()
    if parallel.device == "cuda" and not gpus:
        raise ConfigError("parallel.device cuda: torch sees no GPU on this machine; set it to auto or cpu")
    rest = parallel.pp * parallel.dp_shard * parallel.tp
    processes = rest * (parallel.dp_replicate or max(1, gpus // rest))
    if gpus and processes > gpus:
        raise ConfigError(
            f"parallel: {processes} processes, but this machine has {gpus} GPU(s): lower a degree, start it with "
            "torchrun on more machines, or set parallel.device to cpu"
        )
    return processes


def launch(function: Function, parallel: ParallelConfig, *arguments: Any, logs: Path | None = None) -> Any:
    """Run `function(process, *arguments)` in every process; returns the first one's result.

    Raises UserError for the process that failed first, and SystemExit(75) when one was stopped by a signal. Each
    process keeps a log in the folder `logs`, and there the stacks of those that the failure left waiting.
    """
    take_usr1_for_sigterm()
    if place := place_from_environment(os.environ):
        return _run_placed(place, (logs, function, parallel, arguments))
    size = count_processes(parallel)
    with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        ranks: list[_Rank] = []
        try:
            for rank in range(size):
                place = Place(rank, size, local_rank=rank, local_size=size)
                ranks.append(_Rank(place, f"{folder}/store", (logs, function, parallel, arguments)))
            return _result(ranks, logs)
        except (KeyboardInterrupt, SystemExit):
            if len(ranks) == size:  # else those that are there wait for one that never comes
                _ask_to_stop(ranks)
            raise
        finally:
            for rank in ranks:
                rank.end()


def served() -> bool:
    """Whether this is a later process of torchrun or Slurm; if so, it has done its part of rank 0's work."""
    take_usr1_for_sigterm()  # from the command's first line, not only while processes train
    place = place_from_environment(os.environ)
    if place is None or place.rank == 0:
        return False
    log.configure()
    try:
        _run_placed(place, None)
    except UserError as error:
        print(f"error: rank {place.rank}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    return True


class _Rank:
    """A local training process, seen from the parent."""

    def __init__(self, place: Place, store: str, job: Job) -> None:
        context = _forkserver()
        self.place = place
        self.outcome: tuple[str, Any, float] | None = None
        """(value | stopped | user | bug | died, what goes with it, when) once it is known."""
        self.connection, theirs = context.Pipe(duplex=False)
        level = logging.getLogger().getEffectiveLevel()
        self.process = context.Process(target=_local_main, args=(theirs, level, place, store, *job))
        self.process.start()
        theirs.close()

    @property
    def failed(self) -> bool:
        """Whether it ended in another way than it should."""
        return self.outcome is not None and self.outcome[0] in ("user", "bug", "died")

    def listen(self) -> None:
        """Take what the process sent, or note that it died."""
        try:
            self.outcome = self.connection.recv()
        except EOFError:
            self.process.join()
            self.outcome = ("died", self.process.exitcode, time.monotonic())

    def end(self) -> None:
        """Make sure that the process is gone."""
        self.process.join(0 if self.outcome is None else 10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


def _listen(ranks: list[_Rank], timeout: float | None = None) -> None:
    """Wait for news of the processes still at work."""
    working = {rank.connection: rank for rank in ranks if rank.outcome is None}
    for connection in wait(list(working), timeout):
        working[connection].listen()  # pyright: ignore[reportArgumentType]


def _result(ranks: list[_Rank], logs: Path | None) -> Any:
    """Rank 0's value, once all are done; raises what went wrong as soon as something does."""
    while any(rank.outcome is None for rank in ranks):
        _listen(ranks)
        if any(rank.failed for rank in ranks):
            deadline = time.monotonic() + GRACE_SECONDS
            while any(rank.outcome is None for rank in ranks) and time.monotonic() < deadline:
                _listen(ranks, max(0.0, deadline - time.monotonic()))
            if logs:
                _ask_for_stacks(ranks)
            raise _failure([rank for rank in ranks if rank.failed], logs)
    outcomes = [rank.outcome for rank in ranks if rank.outcome]
    if any(outcome[0] == "stopped" for outcome in outcomes):
        print("training was stopped: run the same command again to go on", file=sys.stderr)
        raise SystemExit(PREEMPTED)
    return outcomes[0][1]


def _ask_for_stacks(ranks: list[_Rank]) -> None:
    """Let the processes that wait for a failed one write down where."""
    waiting = [rank.process.pid for rank in ranks if rank.outcome is None and rank.process.pid]
    for pid in waiting:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS)
    if waiting:
        time.sleep(STACK_SECONDS)


def _failure(failed: list[_Rank], logs: Path | None) -> UserError:
    """The likeliest cause: the first error of the user's, else a killed process, else the first error of any kind."""
    latest_first = sorted(failed, key=lambda rank: rank.outcome[2] if rank.outcome else 0, reverse=True)
    outcomes = {rank.outcome[0]: (rank, rank.outcome[1]) for rank in latest_first if rank.outcome}
    see = f"; each process's log: {logs}" if logs else ""
    if "user" in outcomes:
        return UserError(outcomes["user"][1])
    if "died" in outcomes:
        rank, code = outcomes["died"]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        return UserError(
            f"training process {rank.place.rank} {how} (out of memory?): run the same command again to go on from "
            f"the last checkpoint, perhaps with a smaller micro batch{see}"
        )
    rank, (summary, trace) = outcomes["bug"]
    print(trace, file=sys.stderr, end="")
    return UserError(f"training process {rank.place.rank} failed: {summary}{see}")


def _ask_to_stop(ranks: list[_Rank]) -> None:
    """Let the processes save a checkpoint at their next step; a second signal breaks this off."""
    for rank in ranks:
        if rank.outcome is None and rank.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.process.pid, signal.SIGTERM)
    while any(rank.outcome is None for rank in ranks):
        _listen(ranks)
        if any(rank.failed for rank in ranks):
            return


class _Report:
    """Sends a process's outcome to the parent, whatever it is."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.value: Any = None

    def __enter__(self) -> "_Report":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is None:
            outcome = ("value", self.value)
        elif isinstance(error, Stopped):
            outcome = ("stopped", str(error))
        elif isinstance(error, UserError):
            outcome = ("user", str(error))
        elif isinstance(error, OSError) and error.strerror:
            # A write to an open file that fails (a full disk) does not say which.
            where = f"{error.filename}: " if error.filename else ""
            line = f"{where}{error.strerror}; mend the cause (free space, rights) and run it again"
            outcome = ("user", line)
        else:
            summary = f"{type(error).__name__}: {error}".splitlines()[0]
            outcome = ("bug", (summary, "".join(traceback.format_exception(error))))
        self.connection.send((*outcome, time.monotonic()))
        return True


def _local_main(
    connection: Connection,
    level: int,
    place: Place,
    store: str,
    logs: Path | None,
    function: Function,
    parallel: ParallelConfig,
    arguments: tuple[Any, ...],
) -> None:
    """A local training process from its first to its last line."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    log.configure(logging.getLevelName(level))
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])
    flag = StopFlag()
    with _Report(connection) as report, flag.listening(interrupts=False), rank_log(logs, place.rank):
        import torch.distributed as dist

        process = prepare(place, parallel, flag)
        join(process, dist.FileStore(store, place.size))  # pyright: ignore[reportPrivateImportUsage]
        value = function(process, *arguments)
        report.value = value if place.rank == 0 else None
        dist.barrier()
        dist.destroy_process_group()
    connection.close()
    sys.stderr.flush()
    # Without the interpreter's shutdown, in which left-over threads of gloo can abort the process.
    os._exit(0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_placed(place: Place, job: Job | None) -> Any:
    """The part of a process that torchrun or Slurm started: rank 0 brings the job, the others get it."""
    import torch.distributed as dist

    os.environ.update(rendezvous_environment(place, os.environ))
    flag = StopFlag()
    with flag.listening(interrupts=True):
        meeting: Any = dist.rendezvous("env://", timeout=PATIENCE)  # pyright: ignore[reportPrivateImportUsage]
        store = next(iter(meeting))[0]
        if job is not None:
            store.set("millrace/job", pickle.dumps(job))
        logs, function, parallel, arguments = job or pickle.loads(store.get("millrace/job"))  # noqa: S301 (from our rank 0)
        join(process := prepare(place, parallel, flag), store)
        try:
            with rank_log(logs, place.rank):
                value = function(process, *arguments)
        except Stopped:
            raise SystemExit(PREEMPTED) from None
        dist.barrier()
        dist.destroy_process_group()
    return value


def _forkserver() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


@functools.cache
def _count_gpus() -> int:
    """GPUs of this machine, counted by a process of its own: CUDA must not start in one that is forked later."""
    context = _forkserver()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send_gpu_count, args=(theirs,))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise UserError("torch could not start: see the error above, and check its installation") from None
    finally:
        process.join()


def _send_gpu_count(connection: Connection) -> None:
    import torch

    connection.send(torch.cuda.device_count() if torch.cuda.is_available() else 0)
