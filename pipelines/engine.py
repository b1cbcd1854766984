"""Map a function over shards: in local processes. An engine decides where, never what.

An engine yields results in the order of the items, so no output depends on who finished first.
Another engine (a cluster) offers the same `map`; items and results are small, and shards stay files.
"""

import concurrent.futures
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeVar

from pipelines.errors import UserError

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Where the shards of a stage are worked on."""

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield `function(item)` for each item, in order."""
        ...


class LocalEngine:
    """Processes of this machine; with one worker, or one item, simply this process."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield `function(item)` for each item, in order; UserError when a worker is killed."""
        workers = min(self.workers, len(items))
        if workers <= 1:
            yield from map(function, items)
            return
        # forkserver: workers inherit no threads, locks or half-written files of this process.
        context = multiprocessing.get_context("forkserver")
        pool = concurrent.futures.ProcessPoolExecutor(workers, context, _ignore_interrupt)
        futures = [pool.submit(function, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        except BrokenProcessPool:
            raise UserError(
                "a worker process was killed (out of memory?); finished shards are kept: "
                "run the same command again, perhaps with fewer --workers"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupt() -> None:
    # Ctrl-C reaches the whole group: the parent decides, workers finish the shard at hand.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def default_workers() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


ENGINES = ("local",)


def make_engine(name: str, workers: int) -> Engine:
    """The engine called `name`."""
    if name not in ENGINES:
        raise UserError(f"--engine {name}: unknown; choose from: {', '.join(ENGINES)}")
    return LocalEngine(workers)
