"""A child process that extracts the text of pages, so that a page that crashes the parser costs only itself.

The child limits its own memory and its CPU time per page: CPU time because, unlike wall-clock time, it does not depend
on the load of the machine; by a signal of the kernel because that also ends a C function that never returns, and works
without the parent. A message is a line of JSON and raw bytes, never a pickle; the text follows as bytes, not inside
the JSON.
"""

import contextlib
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

from dataprep.extract.contract import OUT_OF_MEMORY, Extracted, PageOptions

MEMORY_BYTES = 4 << 30
"""Address space of a child. A page that needs more is rejected with a counted reason, and its child is replaced."""
RECYCLE_KILOBYTES = 1 << 20
"""A child whose memory use ever peaked above this is replaced after the page."""
RETRY_FACTOR = 10
"""A page that used up its time is tried once more in a fresh child, with this many times as much."""
_COMMAND = "from dataprep.extract.page_child import main; main()"
"""Not `python -m`: only a command says on standard error that a signal ended it."""
_COLLECT_EVERY = 100
"""Pages between two garbage collections: by default, Python would scan all libraries' objects every few pages."""


class PageChild:
    """The parent's end: sends pages to a child and starts another one when it has died."""

    def __init__(self, options: PageOptions) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._finalizer: weakref.finalize[..., PageChild]

    def extract(self, body: bytes, charset: str | None) -> Extracted:
        """Return the text of one page. A page that ends two children is rejected with the second one's exit status."""
        status, extracted = 0, Extracted()
        for factor in (1, RETRY_FACTOR):
            request = {"charset": charset, "seconds": self._options.seconds * factor}
            try:
                extracted = self._ask(_pack(request, body))
            except (EOFError, ConnectionError):
                status = self._end()
            else:
                if extracted.rule != OUT_OF_MEMORY:
                    return extracted
                self._end()  # its memory may only be fragmented: a fresh child decides
        if extracted.rule:
            return extracted
        if status == -signal.SIGPROF:
            return Extracted(rule="extract_timeout", value=f"{self._options.seconds * RETRY_FACTOR:g} s of CPU time")
        return Extracted(rule="extractor_crash", value=f"exit status {status}")

    @property
    def pid(self) -> int | None:
        """Return the child's process id; None if there is no child at the moment."""
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
        self._connection, child_end = multiprocessing.Pipe()
        options = json.dumps(dataclasses.asdict(self._options))
        # Only the parent handles Ctrl-C, even while the child starts: the child inherits the blocked signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, str(child_end.fileno()), options],
                pass_fds=[child_end.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child_end.close()
        # Runs also when this process exits normally; when it is killed, the child sees its connection close.
        self._finalizer = weakref.finalize(self, _end_child, self._process, self._connection)

    def _end(self) -> int:
        status = self._finalizer()
        self._process = None
        return status or 0


def _end_child(process: "subprocess.Popen[bytes]", connection: Connection) -> int:
    """End a child and return its exit status: without its connection it exits, unless it is busy with a page."""
    connection.close()
    try:
        return process.wait(timeout=1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


@functools.lru_cache(maxsize=1)
def shared_child(options: PageOptions) -> PageChild:
    """Return the one child of this process; starting it takes as long as about fifty pages."""
    return PageChild(options)


def _pack(header: dict[str, Any], content: bytes) -> bytes:
    return json.dumps(header).encode() + b"\n" + content


def _unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    header, _, content = message.partition(b"\n")
    return json.loads(header), content


def serve(connection: Connection, options: PageOptions) -> None:
    """Answer requests, as the child, until the parent is gone."""
    from dataprep.extract.page_text import page_text

    gc.freeze()
    gc.disable()
    for number in itertools.count():
        try:
            request, body = _unpack(connection.recv_bytes())
        except (EOFError, ConnectionError):  # reset, if the parent was killed before it had read the last answer
            return
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        page = page_text(body, request["charset"], options)
        if number % _COLLECT_EVERY == 0:
            gc.collect()
        signal.setitimer(signal.ITIMER_PROF, 0)
        reply = {"extractor": page.extractor, "rule": page.rule, "value": page.value, "kilobytes": _peak_kilobytes()}
        with contextlib.suppress(ConnectionError):
            connection.send_bytes(_pack(reply, page.text.encode()))


def _peak_kilobytes() -> int:
    """Return the peak memory of this program; on Linux ru_maxrss would include the parent's peak, even after exec."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    return int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    """Set the limits and serve."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    logging.disable(logging.CRITICAL)  # every failure is a counted reason already
    with contextlib.suppress(ValueError, OSError):  # macOS refuses a limit below what every program maps there
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(Connection(int(sys.argv[1])), PageOptions(**json.loads(sys.argv[2])))
