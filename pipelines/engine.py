"""Engines map a function over shards, here in local processes. An engine decides where work runs, never what it does.

An engine yields results in the order of the items, so no output depends on which one finished first.
Another engine (a cluster) would offer the same `map`; items and results are small, and shards stay in files.
"""

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker
from typing import Protocol, TypeVar

from pipelines.errors import UserError

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs the shards of a stage."""

    def prepare(self) -> None:
        """Start what a `map` of several items would otherwise wait for."""
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

    def __init__(self, workers: int, preload: str) -> None:
        self.workers = workers
        self._preload = preload
        self._context = multiprocessing.get_context("forkserver")
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def prepare(self) -> None:
        """Let the workers' server import the stage while this process still prepares the work."""
        if self.workers > 1:
            # forkserver: workers inherit no threads, locks or half-written files of this process, and are
            # forked from one that has imported the stage already.
            self._context.set_forkserver_preload([self._preload])
            _start_forkserver()

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield `function(item)` for each item, in order; raise UserError if a worker is killed."""
        if min(self.workers, len(items)) <= 1:
            yield from map(function, items)
            return
        pool = self._pool = self._pool or self._start()
        try:
            for future in [pool.submit(function, item) for item in items]:
                yield future.result()
        except BrokenProcessPool:
            raise UserError(
                "a worker process was killed (out of memory?); finished shards are kept: "
                "run the same command again, perhaps with fewer --workers"
            ) from None

    def _start(self) -> concurrent.futures.ProcessPoolExecutor:
        self.prepare()
        # Wait until the stage is imported: a worker that Ctrl-C stops while it starts would miss the pool's semaphores.
        first = self._context.Process(target=_do_nothing)
        first.start()
        first.join()
        return concurrent.futures.ProcessPoolExecutor(self.workers, self._context, _start_worker)

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
            self._pool.shutdown(wait=True, cancel_futures=True)


def _start_forkserver() -> None:
    # Only the parent handles Ctrl-C, also while the server imports the stage and while workers start:
    # they inherit the blocked signal. (The tracker comes first, because starting it unblocks the signal.)
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _do_nothing() -> None:
    pass


def _start_worker() -> None:
    # A separate process group: a worker's children end with it, and Ctrl-C on a terminal reaches only the parent.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A killed parent cannot tell its pool: without this thread, workers would wait forever.
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


ENGINES = ("local",)


def make_engine(name: str, workers: int, module: str) -> Engine:
    """Return the engine called `name`, for a stage whose functions are in `module`."""
    if name not in ENGINES:
        raise UserError(f"--engine {name}: unknown; choose from: {', '.join(ENGINES)}")
    return LocalEngine(workers, module)
