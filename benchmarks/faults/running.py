"""Commands in sessions of their own, and the ways to strike them. Linux only.

A command is started as a user does it, or forked from this process, which has imported the stages already: then a start
takes no time, and more moments of the work itself are hit.
"""

import contextlib
import importlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from pipelines import exits
from pipelines.command import StageSpec
from pipelines.exits import INTERRUPTED, PREEMPTED
from pipelines.stage import run_command

ROOT = Path(__file__).parents[2]
OURS = re.compile(r'File "[^"]*/(?:pipelines|dataprep|trainer)/')
HANG_SECONDS = 300.0
"""Until a command that does not end is killed, on a busy machine."""
ORPHAN_SECONDS = 20.0
"""Until the other processes of a killed command must have ended by themselves."""

MODULES = "FAULTS_MODULES"
"""Variable with the file into which a forked command writes the names of its modules."""

STRIKES: dict[str, frozenset[int]] = {
    "SIGKILL of all": frozenset({0, -signal.SIGKILL}),
    "SIGKILL of the group": frozenset({0, -signal.SIGKILL}),
    "SIGKILL of the command": frozenset({0, -signal.SIGKILL}),
    "SIGKILL of a worker": frozenset({0, 1}),
    "SIGKILL of a helper": frozenset({0, 1}),
    "SIGTERM": frozenset({0, PREEMPTED, -signal.SIGTERM}),
    "SIGINT": frozenset({0, INTERRUPTED, -signal.SIGINT}),
    "STOP and CONT": frozenset({0}),
}
"""What is done to a command -> how it may end then. 0: it was at its end already. Before Python is up, a signal has
the kernel's own effect."""


def environment(**changes: str) -> dict[str, str]:
    """The environment of every command: this code, one thread per process, one worker, loopback."""
    fixed = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "MILLRACE_WORKERS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, "PYTHONPATH": str(ROOT), "MILLRACE_MEMORY_BUDGET": "500MB", **fixed, **changes}


@dataclass(frozen=True)
class End:
    """How a command ended."""

    status: int
    said: str
    """All that it and its processes wrote."""

    @property
    def name(self) -> str:
        """For the table: `exit 0`, `SIGKILL`."""
        return signal.Signals(-self.status).name if self.status < 0 else f"exit {self.status}"

    @property
    def errors(self) -> int:
        """How many lines of error it wrote."""
        return len(re.findall(r"^error: ", self.said, re.MULTILINE))

    @property
    def last_lines(self) -> str:
        """The end of what it said, in one line."""
        return " / ".join(self.said.strip().splitlines()[-3:])[-400:]

    def has_traceback(self, *, launcher: bool = False) -> bool:
        """Whether a traceback was shown; with a `launcher`, or if Python itself took a Ctrl-C, one of our code."""
        shown = self.said.split("Traceback (most recent call last)")[1:]
        ours = launcher or self.status == -signal.SIGINT
        return any(OURS.search(text) for text in shown) if ours else bool(shown)


def preload(names: Path) -> None:
    """Import what a forked command has imported, so that the next fork need not."""
    for name in names.read_text().splitlines():
        if not name.startswith("__"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def warn_as_an_interpreter() -> None:
    """Warn of what a new interpreter warns of; in a test, pytest makes errors of warnings that a user never sees."""
    importlib.reload(warnings)  # where they are shown
    warnings.resetwarnings()
    for ignored in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", ignored)


class Forked:
    """The command of a stage in a fork of this process, with what is used of the interface of `subprocess.Popen`."""

    def __init__(self, words: Sequence[str], folder: Path, changes: Mapping[str, str], said: int) -> None:
        self.returncode: int | None = None
        sys.stdout.flush()
        # A signal waits until the fork handles it as a command does from its first import on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, exits.STOPPING)
        self.pid = os.fork()
        if self.pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        else:
            status = 70
            try:
                os.setsid()
                os.chdir(folder)
                for helper in (forkserver._forkserver, resource_tracker._resource_tracker):  # pyright: ignore
                    helper.__init__()  # those of this process, if it has any, are no children of the fork
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(said, 1)
                os.dup2(said, 2)
                exits.end_on_signals()
                # pytest has put others in their place
                sys.stdout, sys.stderr = (open(fd, "w", buffering=1, closefd=False) for fd in (1, 2))  # noqa: SIM115
                os.environ.update(environment(**changes))
                warn_as_an_interpreter()
                main: Any = sys.modules["__main__"]
                main.__spec__ = None  # as `pipelines.stage.stage_main` does it
                main.__dict__.pop("__file__", None)  # without, `inspect` still knows the one from before the fork
                status = run_command(StageSpec.load(words[1]), words[2:])
                if MODULES in changes:
                    Path(changes[MODULES]).write_text("\n".join(sys.modules))
            except SystemExit as error:
                status = error.code if isinstance(error.code, int) else 1
            except BaseException:  # noqa: BLE001 (as the interpreter would show it)
                traceback.print_exc()
            finally:
                with contextlib.suppress(OSError):
                    sys.stdout.flush()
                    sys.stderr.flush()
                os._exit(status)

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended; raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork", timeout or 0)
            time.sleep(0.003)
        assert self.returncode is not None
        return self.returncode


class Running:
    """A command at work; its processes are those of its session, whatever their groups."""

    def __init__(
        self, words: Sequence[str], folder: Path, changes: Mapping[str, str] | None = None, *, forked: bool = False
    ) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        if forked:
            self.process: Forked | subprocess.Popen[bytes] = Forked(words, folder, changes or {}, self._said.fileno())
            return
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=environment(**(changes or {})),
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
        )

    def strike(self, kind: str, chance: random.Random) -> bool:
        """Do one of STRIKES; return False if there is nothing to strike, such as a worker of a command without any."""
        if self.process.poll() is not None:
            return False
        pid, sent = self.process.pid, True
        if kind == "SIGKILL of all":
            for victim in self.members():
                _send(victim, signal.SIGKILL)
        elif kind == "SIGKILL of the group":
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        elif kind == "SIGKILL of the command":
            _send(pid, signal.SIGKILL)
        elif kind == "STOP and CONT":
            self._pause(chance.uniform(0.05, 0.5))
        elif kind in ("SIGTERM", "SIGINT"):
            _send(pid, signal.Signals[kind])
        else:
            victims = self.workers() if kind.endswith("worker") else self.helpers()
            sent = bool(victims) and _send(chance.choice(victims), signal.SIGKILL)
        return sent

    def _pause(self, seconds: float) -> None:
        stopped = self.members()
        for member in stopped:
            _send(member, signal.SIGSTOP)
        time.sleep(seconds)
        for member in stopped:
            _send(member, signal.SIGCONT)

    def wait_for(self, seconds: float) -> bool:
        """Wait so long or to the end; return whether the command is still running."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.poll() is None

    def end(self) -> End:
        """Wait for the end of the command; one that hangs is killed and has the status 124."""
        status = 124
        try:
            status = self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill_all()
            self.process.wait()
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        self._said.close()
        return End(status, said)

    def kill_all(self) -> None:
        """Kill whatever is left of the session."""
        for member in self.members():
            _send(member, signal.SIGKILL)

    def orphans(self) -> list[int]:
        """The processes that outlive the command by more than ORPHAN_SECONDS."""
        deadline = time.monotonic() + ORPHAN_SECONDS
        while (left := self.members()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def members(self) -> list[int]:
        """All processes of the session."""
        return [pid for pid, (_, session) in _processes().items() if session == self.process.pid]

    def helpers(self) -> list[int]:
        """The fork server and the resource tracker."""
        return [pid for pid in _children(self.process.pid) if b"multiprocessing" in _command_line(pid)]

    def workers(self) -> list[int]:
        """The processes that the helpers (or torchrun) have started, and other children of the command."""
        children, helpers = _children(self.process.pid), self.helpers()
        return [pid for pid in children if pid not in helpers] + [pid for each in helpers for pid in _children(each)]


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _processes() -> dict[int, tuple[int, int]]:
    """Process -> (parent, session) of all that run; those that only wait to be reaped are left out."""
    found: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, parent, _, session, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                if state not in "ZX":
                    found[int(entry.name)] = (int(parent), int(session))
    return found


def _children(parent: int) -> list[int]:
    return [pid for pid, (each, _) in _processes().items() if each == parent]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
