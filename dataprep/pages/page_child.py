"""A child process that turns pages into text and that may die of a page: its parent only counts it.

The child limits itself: its memory, and for each page its CPU time. (CPU time, because unlike a
wall clock it does not depend on what else the machine is doing; a signal of the kernel, because it
also ends a C function that never returns, and needs no living parent.) Messages are JSON lines and
bytes, never pickles; a text is sent as it is, not as a JSON string.

The parent starts it: python -m dataprep.pages.page_child CONNECTION OPTIONS
"""

import dataclasses
import functools
import gc
import itertools
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

from dataprep.pages.contract import OUT_OF_MEMORY, Extracted, PageOptions

MEMORY_BYTES = 4 << 30
"""Address space of a child; what would need more is a counted reason, and costs the child."""
RECYCLE_KILOBYTES = 1 << 20
"""A child that has ever held so much is replaced after the page."""
RETRY_FACTOR = 10
"""A page that used up its time is given this many times more, once, in a fresh child."""
_COLLECT_EVERY = 100
"""Pages between two garbage collections: left alone, Python walks through all libraries' objects every few pages."""


class PageChild:
    """The parent's end: gives pages to a child and starts another when it has died."""

    def __init__(self, options: PageOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._finalizer: weakref.finalize[..., PageChild]

    def extract(self, body: bytes, charset: str | None) -> Extracted:
        """The text of one page. A page that ends two children is rejected, with how the second ended."""
        ended, found = 0, Extracted()
        for factor in (1, RETRY_FACTOR):
            request = {"charset": charset, "seconds": self._options.seconds * factor}
            try:
                found = self._ask(_pack(request, body))
            except (EOFError, ConnectionError):
                ended = self._end()
            else:
                if found.rule != OUT_OF_MEMORY:
                    return found
                self._end()  # what is left of its memory may be in pieces: a fresh child has the last word
        if found.rule:
            return found
        if ended == -signal.SIGPROF:
            return Extracted(rule="extract_timeout", value=f"{self._options.seconds * RETRY_FACTOR:g} s of CPU time")
        return Extracted(rule="extractor_crash", value=f"exit status {ended}")

    @property
    def pid(self) -> int | None:
        """The child's process id; None between two children."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """End the child, if there is one."""
        if self._process is not None:
            self._end()

    def _ask(self, message: bytes) -> Extracted:
        if self._process is None:
            self._start()
        self._connection.send_bytes(message)
        header, text = _unpack(self._connection.recv_bytes())
        if header.pop("kilobytes") > RECYCLE_KILOBYTES:
            self._end()
        return Extracted(text.decode(), **header)

    def _start(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        options = json.dumps(dataclasses.asdict(self._options))
        # Ctrl-C is the parent's to handle, also while the child starts: it inherits that it is blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dataprep.pages.page_child", str(theirs.fileno()), options],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
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
def shared_child(options: PageOptions) -> PageChild:
    """The one child of this process: its start takes as long as some fifty pages."""
    return PageChild(options)


def _pack(header: dict[str, Any], content: bytes) -> bytes:
    return json.dumps(header).encode() + b"\n" + content


def _unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    header, _, content = message.partition(b"\n")
    return json.loads(header), content


def serve(connection: Connection, options: PageOptions) -> None:
    """The child's end: answer requests until the parent is gone."""
    from dataprep.pages.html_text import page_text

    gc.freeze()
    gc.disable()
    for number in itertools.count():
        try:
            request, body = _unpack(connection.recv_bytes())
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        found = page_text(body, request["charset"], options)
        if number % _COLLECT_EVERY == 0:
            gc.collect()
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply = {"extractor": found.extractor, "rule": found.rule, "value": found.value, "kilobytes": _peak_kilobytes()}
        connection.send_bytes(_pack(reply, found.text.encode()))


def _peak_kilobytes() -> int:
    """The most memory this program has held: on Linux ru_maxrss has the parent's peak in it, also after exec."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    """Set the limits and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)  # every failure is a counted reason already
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(Connection(int(sys.argv[1])), PageOptions(**json.loads(sys.argv[2])))


if __name__ == "__main__":
    main()
