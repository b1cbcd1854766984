"""Engines map a function over shards, here in local processes. An engine decides where work runs, never what it does.

An engine yields results in the order of the items, so no output depends on which one finished first. Items and results
are small, and shards stay in files. `pipelines/ray_engine.py` offers the same `map` on a cluster.
"""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker
from typing import Protocol, TypeVar

from pipelines.errors import KilledError

T = TypeVar("T")
R = TypeVar("R")

PARENTS_SIGNALS = {signal.SIGINT, signal.SIGTERM}
"""Blocked in the server, so that it does not die of what a terminal or a batch system sends to the whole group."""
LONGEST_END = 10.0
"""Seconds to wait for workers to end that have been told to."""
KILLED = (
    "a worker process was killed (out of memory?); finished work is kept: "
    "run the same command again, perhaps with fewer --workers"
)


class Engine(Protocol):
    """Runs the shards of a stage."""

    several_machines: bool
    """Whether one machine may read what another has written, and has to find it after the other was lost."""

    def prepare(self) -> None:
        """Start what a `map` of several items would otherwise wait for."""
        ...

    def works_here(self, num_items: int) -> bool:
        """Return whether a `map` of so many items is done by this process alone."""
        ...

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield `function(item)` for each item, in order."""
        ...

    def stop(self) -> None:
        """Kill all work at once; only `close` may follow."""
        ...

    def close(self) -> None:
        """Release all resources; items that have not started do not start."""
        ...


class LocalEngine:
    """Processes of this machine, started once per stage; with one worker or one item, the current process."""

    def __init__(self, workers: int, preload: Sequence[str]) -> None:
        self.workers = workers
        self.several_machines = False
        self._preload = preload
        self._context = multiprocessing.get_context("forkserver")
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None
        self._tracker: int | None = None
        """The process that knows the pool's semaphores, and removes them if this one is killed."""
        self._line, self._workers_line = socket.socketpair()
        """Every worker holds the second end: it kills itself when the first one is shut, which tells when all have."""

    def prepare(self) -> None:
        """Let the workers' server import the stage while this process still prepares the work."""
        if self.workers > 1:
            # forkserver: workers inherit no threads, locks or half-written files of this process, and are
            # forked from one that has imported the stage already.
            start_forkserver(self._preload)

    def works_here(self, num_items: int) -> bool:
        """Return whether a `map` of so many items is done by this process alone."""
        return min(self.workers, num_items) <= 1

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield `function(item)` for each item, in order; raise KilledError if a worker is killed."""
        if self.works_here(len(items)):
            yield from map(function, items)
            return
        with starting(KILLED):
            pool = self._pool = self._pool or self._start()
            futures = [pool.submit(function, item) for item in items]  # this starts the workers
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool:
            raise KilledError(KILLED) from None

    def _start(self) -> concurrent.futures.ProcessPoolExecutor:
        self.prepare()
        # Wait until the stage is imported: a worker that Ctrl-C stops while it starts would miss the pool's semaphores.
        first = self._context.Process(target=_do_nothing)
        first.start()
        first.join()
        self._tracker = _tracker_pid()
        return concurrent.futures.ProcessPoolExecutor(self.workers, self._context, _start_worker, (self._workers_line,))

    def stop(self) -> None:
        """Kill the workers and their children; that costs the shards in progress, which have no receipt yet."""
        for worker in multiprocessing.active_children():
            assert worker.pid is not None  # it has been started
            with contextlib.suppress(ProcessLookupError):  # a worker that has no group yet has no child either
                os.killpg(worker.pid, signal.SIGKILL)
            worker.kill()

    def close(self) -> None:
        """End the workers; shards in progress are finished, the others do not start."""
        if self._pool:
            if self._tracker != _tracker_pid():
                # It was killed. Its successor would print a traceback for each semaphore that it does not know.
                resource_tracker.unregister = _do_nothing
            self._pool.shutdown(wait=True, cancel_futures=True)
            # If the workers' server was killed, the pool takes them for ended, but they may still write to scratch.
            self._workers_line.close()
            self._line.shutdown(socket.SHUT_WR)
            multiprocessing.connection.wait([self._line], LONGEST_END)
        self._line.close()
        self._workers_line.close()


@contextlib.contextmanager
def starting(killed: str) -> Generator[None]:
    """Raise KilledError with the text `killed` if the server that processes are started from is killed meanwhile."""
    try:
        yield
    except (EOFError, ConnectionError, BrokenProcessPool):
        raise KilledError(killed) from None


def start_forkserver(preload: Sequence[str]) -> None:
    """Start the server that processes are forked from, unless it runs; it imports the modules `preload` first."""
    # Only the parent handles signals, also while the server imports the stage and while workers start:
    # they inherit the blocked signals. (The tracker comes first, because starting it unblocks them.)
    warnings.filterwarnings("ignore", "resource_tracker: process died")  # nothing is lost by that
    forkserver.set_forkserver_preload(["pipelines", *preload])  # it first says how to end without memory
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _tracker_pid() -> int | None:
    """Return the process id of the resource tracker, which is started anew if it has died."""
    resource_tracker.ensure_running()
    return resource_tracker._resource_tracker._pid  # pyright: ignore


def _do_nothing(*_: object) -> None:
    pass


def _start_worker(line: socket.socket) -> None:
    # A separate process group: a worker's children end with it, and Ctrl-C on a terminal reaches only the parent.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)
    try:
        threading.Thread(target=_end_with_parent, args=(line,), daemon=True).start()
    except RuntimeError:  # no memory for a thread: the parent says so
        os._exit(1)


def _end_with_parent(line: socket.socket) -> None:
    # A killed parent cannot tell its pool: without this thread, workers would wait forever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel, line])
        os.killpg(0, signal.SIGKILL)


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
