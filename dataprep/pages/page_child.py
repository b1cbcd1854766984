"""A child process that turns pages into text and that may die of a page: its parent only counts it.

The child limits itself: its memory, and for each page its CPU time. (CPU time, because unlike a
wall clock it does not depend on what else the machine is doing; a signal of the kernel, because it
also ends a C function that never returns, and needs no living parent.) Messages are JSON lines and
bytes, never pickles.

The parent starts it: python -m dataprep.pages.page_child CONNECTION OPTIONS
"""

import dataclasses
import functools
import json
import logging
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 << 30
"""Address space of a child; more is a MemoryError, which is a counted reason."""
RECYCLE_KILOBYTES = 1 << 20
"""A child that has ever held so much is replaced after the page."""
RETRY_FACTOR = 10
"""A page that used up its time is given this many times more, once, in a fresh child."""


@dataclasses.dataclass(frozen=True, slots=True)
class ChildOptions:
    """What `html_text.page_text` is told for every page, and the CPU seconds of one page."""

    max_elements: int
    max_depth: int
    tables: bool
    seconds: float


@dataclasses.dataclass(frozen=True, slots=True)
class Extracted:
    """The text of a page, or a rule and the value seen."""

    text: str = ""
    rule: str = ""
    value: str = ""


class PageChild:
    """The parent's end: gives pages to a child and starts another when it has died."""

    def __init__(self, options: ChildOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._finalizer: weakref.finalize[..., PageChild]

    def extract(self, body: bytes, charset: str | None) -> Extracted:
        """The text of one page. A page that ends two children is rejected, with how the second ended."""
        ended = 0
        for factor in (1, RETRY_FACTOR):
            request = json.dumps({"charset": charset, "seconds": self._options.seconds * factor}).encode()
            try:
                return self._ask(request + b"\n" + body)
            except (EOFError, ConnectionError):
                ended = self._end()
        if ended == -signal.SIGPROF:
            return Extracted(rule="extract_timeout", value=f"{self._options.seconds * RETRY_FACTOR:g} s of CPU time")
        return Extracted(rule="extractor_crash", value=f"exit status {ended}")

    def close(self) -> None:
        """End the child, if there is one."""
        if self._process is not None:
            self._end()

    def _ask(self, message: bytes) -> Extracted:
        if self._process is None:
            self._start()
        self._connection.send_bytes(message)
        reply: dict[str, Any] = json.loads(self._connection.recv_bytes())
        if reply.pop("kilobytes") > RECYCLE_KILOBYTES:
            self._end()
        return Extracted(**reply)

    def _start(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        options = json.dumps(dataclasses.asdict(self._options))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dataprep.pages.page_child", str(theirs.fileno()), options],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
        )
        theirs.close()
        # Also when this process ends in good order; when it is killed, the child sees its connection close.
        self._finalizer = weakref.finalize(self, _end_child, self._process, self._connection)

    def _end(self) -> int:
        status = self._finalizer()
        self._process = None
        return status or 0


def _end_child(process: "subprocess.Popen[bytes]", connection: Connection) -> int:
    """End a child and give its exit status; without its connection it ends by itself, unless it is deep in a page."""
    connection.close()
    try:
        return process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


@functools.lru_cache(maxsize=1)
def shared_child(options: ChildOptions) -> PageChild:
    """The one child of this process: its start takes as long as some fifty pages."""
    return PageChild(options)


def serve(connection: Connection, options: ChildOptions) -> None:
    """The child's end: answer requests until the parent is gone."""
    from dataprep.pages.html_text import page_text

    while True:
        try:
            header, _, body = connection.recv_bytes().partition(b"\n")
        except EOFError:
            return
        request = json.loads(header)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        page = page_text(
            body,
            request["charset"],
            max_elements=options.max_elements,
            max_depth=options.max_depth,
            tables=options.tables,
        )
        signal.setitimer(signal.ITIMER_PROF, 0)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        connection.send_bytes(json.dumps({**dataclasses.asdict(page), "kilobytes": peak}).encode())


def main() -> None:
    """Set the limits and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)  # every failure is a counted reason already
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(Connection(int(sys.argv[1])), ChildOptions(**json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
