"""What a command costs with all its processes, start-up included: seconds, CPU seconds, memory.

CPU seconds are the kernel's resource usage. The workers of a pool end after the command that began them, and
their usage would be lost with it: so this process adopts them and waits for them too. Linux only.
"""

import ctypes
import functools
import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_SECONDS = 0.1
_PR_SET_CHILD_SUBREAPER = 36
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True, slots=True)
class Usage:
    """One run of a command."""

    seconds: float
    cpu: float
    """Seconds of user and system time of all its processes."""
    peak_mib: float
    """All processes together at the worst moment, a page that several share counted once (PSS)."""
    first_mib: float
    """Most resident memory that the first process ever had."""
    others_mib: float
    """The same of the largest one of the others; 0 without any."""


class CommandError(Exception):
    """The command did not end well; says why in a line."""


def measure(command: Sequence[str | Path]) -> Usage:
    """Run a command to the end of its last process; raises CommandError. No other child may be running."""
    _adopt_orphans()
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=said, stderr=said, env={**os.environ, **_ONE_THREAD})
        memory = Memory(process.pid)
        watch = threading.Thread(target=memory.watch)
        watch.start()
        seconds, cpu, code = 0.0, 0.0, 0
        for pid, status, usage in _ended_children():
            cpu += usage.ru_utime + usage.ru_stime
            if pid == process.pid:
                seconds, code = time.perf_counter() - started, os.waitstatus_to_exitcode(status)
                memory.ended.set()
        watch.join()
        process.returncode = code
        if code:
            said.seek(0)
            raise CommandError(_reason(said.read().decode(errors="replace")) or f"exit status {code}")
    others = [mib for pid, mib in memory.most.items() if pid != process.pid]
    return Usage(seconds, cpu, memory.peak, memory.most.get(process.pid, 0.0), max(others, default=0.0))


class Memory:
    """Memory of a process and its descendants, sampled until `ended` is set."""

    def __init__(self, process: int) -> None:
        self.ended = threading.Event()
        self.peak = 0.0
        """MiB of all at once, at most."""
        self.most = dict[int, float]()
        """MiB of each at most, from the kernel's own high-water mark."""
        self._process = process

    def watch(self) -> None:
        """Take samples until the process has ended."""
        while not self.ended.wait(_SAMPLE_SECONDS):
            total = 0.0
            for pid in _tree(self._process):
                total += _mib(pid, "smaps_rollup", "Pss:")
                self.most[pid] = max(self.most.get(pid, 0.0), _mib(pid, "status", "VmHWM:"))
            self.peak = max(self.peak, total)


@functools.cache
def _adopt_orphans() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _ended_children() -> Iterator[tuple[int, int, resource.struct_rusage]]:
    """`os.wait4` for each child, born here or adopted, until there is none."""
    while True:
        try:
            yield os.wait4(-1, 0)
        except ChildProcessError:
            return


def _tree(process: int) -> Iterator[int]:
    yield process
    try:
        tasks = [(task / "children").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return
    for child in " ".join(tasks).split():
        yield from _tree(int(child))


def _mib(process: int, file: str, field: str) -> float:
    """A field of /proc/<process>/<file>; 0 for a process that has just ended."""
    try:
        lines = Path(f"/proc/{process}/{file}").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), 0.0)


def _reason(said: str) -> str:
    """The line of an error message that says what is wrong."""
    lines = [line.strip("╭─╮│ ") for line in said.splitlines() if line.strip("╭─╮╰╯│ ")]
    telling = [line for line in lines if "error:" in line or "options:" in line]
    return (telling or lines[-1:] or [""])[0]
