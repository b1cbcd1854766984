"""Limits on work that hold on any machine: in pieces of plain Python's work, timed beside it, not in seconds."""

import contextlib
import resource
import time
from collections.abc import Generator

PIECE = 1_500_000
"""Turns of a loop that take a usual core about 0.1 s."""


@contextlib.contextmanager
def at_most(pieces: float) -> Generator[None]:
    """Fail when the block, and the processes that end in it, take more CPU time than so many pieces of work.

    What a piece takes is measured before and after, so a slow processor, or one that others keep busy, has more time.
    """
    piece, started = _piece(), _cpu_seconds()
    yield
    taken = _cpu_seconds() - started
    piece = max(piece, _piece())
    assert taken < pieces * piece, f"{taken / piece:.1f} pieces of work, {taken:.2f} s"


def _piece() -> float:
    started = time.process_time()
    sum(n * n % 7 for n in range(PIECE))
    return time.process_time() - started


def _cpu_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
