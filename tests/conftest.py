"""What all tests share: a pool of worker processes that talk over gloo, started once and used again."""

import contextlib
import logging
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Generator, Iterator
from datetime import timedelta
from typing import Any

import pytest

# One thread per process, also in those that tests start: on few cores more only disturb each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

COLLECTIVE_SECONDS = 30


def pytest_configure() -> None:
    """Let Ctrl-C reach what tests start, also where a shell started the tests in the background, deaf to it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def own_process() -> Generator[None]:
    """A command run inside a test sets its process' signals and log, as is its right; the next test has both as new."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    logging.getLogger().setLevel(logging.WARNING)  # before, since a fixture of the module may have run a command
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


class WorkerPool:
    """Runs a module-level function in N processes that form one process group; one group per N, kept alive.

    Workers are forked from the test process (torch imported, nothing run on a GPU), so a start takes 0.1 s. A
    failure ends the group's workers about a second later; the next call starts new ones.
    """

    def __init__(self) -> None:
        self._groups: dict[int, list[tuple[Any, Any]]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="millrace-tests-")
        self._started = 0

    def run(self, size: int, function: Callable[..., Any], *arguments: Any, timeout: float = 60) -> list[Any]:
        """`function(*arguments)` in each of `size` processes; their results in order of rank."""
        if any(not process.is_alive() for process, _ in self._groups.get(size, [])):
            self._end(size)  # a stage that is stopped kills all children of its process, which here are ours too
        group = self._groups.get(size) or self._start(size)
        for _, connection in group:
            connection.send((function, arguments))
        answers: list[Any] = [None] * size
        deadline = time.monotonic() + timeout
        while None in answers and time.monotonic() < deadline:
            for rank, (process, connection) in enumerate(group):
                if answers[rank] is None and connection.poll(0.002):
                    with contextlib.suppress(EOFError):
                        answers[rank] = connection.recv()
                failed = not process.is_alive() or (answers[rank] is not None and not answers[rank][0])
                if failed:
                    deadline = min(deadline, time.monotonic() + 1)
        if any(answer is None or not answer[0] for answer in answers):
            self._end(size)
            texts = [f"rank {rank}: {answer[1] if answer else 'no answer'}" for rank, answer in enumerate(answers)]
            raise AssertionError("\n".join(texts))
        return [value for _, value in answers]

    def _start(self, size: int) -> list[tuple[Any, Any]]:
        import torch.multiprocessing as mp

        context = mp.get_context("fork")
        self._started += 1
        store = f"{self._folder.name}/store-{self._started}"
        group: list[tuple[Any, Any]] = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(ours, theirs, rank, size, store), daemon=True)
            process.start()
            theirs.close()
            group.append((process, ours))
        self._groups[size] = group
        return group

    def _end(self, size: int) -> None:
        for process, connection in self._groups.pop(size, []):
            process.kill()
            process.join()
            connection.close()

    def close(self) -> None:
        """End all workers."""
        for size in list(self._groups):
            self._end(size)
        self._folder.cleanup()


def _work(parents_end: Any, connection: Any, rank: int, size: int, store: str) -> None:
    """A worker: join the group, then answer calls until the connection closes."""
    parents_end.close()  # held here too, it would never close for this end
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    seconds = timedelta(seconds=COLLECTIVE_SECONDS)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=seconds)
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = (True, function(*arguments))
        except BaseException:  # noqa: BLE001 (the test gets it)
            answer = (False, traceback.format_exc())
        connection.send(answer)


@pytest.fixture(scope="session")
def workers() -> Iterator[WorkerPool]:
    """The pool: `workers.run(2, function, *arguments)`."""
    pool = WorkerPool()
    yield pool
    pool.close()
