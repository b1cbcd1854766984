"""The work of a training as the processes of a cluster pass it on: JSON, checked as parameters are, and no pickle.

With it goes a file that rank 0 has just written into the run's scratch folder, and the paths that it sees: a rank that
does not find them has another file system there, and checkpoints of which each node had a part would be lost.
"""

import dataclasses
import json
import math
import time
import uuid
from pathlib import Path
from typing import Any

from pipelines.config import check, to_plain
from pipelines.errors import UserError
from trainer.processes.meeting import answered, await_key, minutes, node_name
from trainer.processes.rank import Rank

KEY = "millrace/job"
LEFT = "millrace/left"
MARK = "shared"
"""The file in scratch that all ranks have to see."""
SEE_SECONDS = 60.0
"""How long a rank looks for it: clients of NFS remember for up to a minute what was not there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What the processes of a cluster are to do."""

    logs: Path | None
    processes: int
    """In all."""
    work: Any
    """A dataclass with the fields `parallel` and `scratch`; None for nothing."""

    def send(self, store: Any) -> None:
        """Tell the processes that wait at torch's `store`."""
        mark = uuid.uuid4().hex
        scratch = getattr(self.work, "scratch", None)
        if scratch is not None:
            (scratch / MARK).write_text(mark)
        message = {
            "logs": self.logs and str(self.logs),
            "processes": self.processes,
            "mark": mark,
            "seen": [str(path) for path in _paths(self.work) if path.exists()],
            "jobs": [] if self.work is None else [to_plain(self.work)],
        }
        store.set(KEY, json.dumps(message))


def receive(store: Any, kind: type[Any], number: int) -> Job | None:
    """Wait for the job, whose work is of a dataclass; None if there is nothing to do.

    Raises UserError if anything else arrives, or if this rank does not see what rank 0 sees.
    """
    try:
        text = await_key(store, KEY, math.inf)
    except RuntimeError as error:  # torch's errors of a store that is gone
        reason = str(error).partition("\n")[0]
        raise UserError(f"rank 0 has ended, hangs or is cut off ({reason}): see its error") from None
    try:
        message = json.loads(text or b"")
        if message is None:
            return None
        logs, (plain,) = message["logs"] and Path(message["logs"]), message["jobs"]
        processes, mark, seen = int(message["processes"]), str(message["mark"]), list(map(Path, message["seen"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"rank 0 sent no job ({error}); start all processes from the same code") from None
    work = check(kind, plain, "job", "rank 0")
    _require_shared(work.scratch / MARK, mark, seen, number)
    return Job(logs, processes, work)


def dismiss(store: Any) -> None:
    """Let the ranks that wait for a job end, if rank 0 ends without one."""
    try:
        if not store.check([KEY]):
            store.set(KEY, json.dumps(None))
            time.sleep(0.5)  # until they have read it: the store may end with this process
    except RuntimeError:
        pass  # it is gone already, and so are they


def leave(store: Any, rank: Rank, seconds: float) -> None:
    """Say that this rank has ended its work; rank 0, with which the store may end, waits for the others."""
    try:
        left = answered(lambda: store.add(LEFT, 1))
        deadline = time.monotonic() + seconds
        while rank.number == 0 and left < rank.size and time.monotonic() < deadline:
            time.sleep(0.05)
            left = store.add(LEFT, 0)
    except RuntimeError:
        pass  # rank 0 has ended


def _paths(work: Any) -> list[Path]:
    values = [getattr(work, field.name) for field in dataclasses.fields(work)] if work is not None else []
    return [value for value in values if isinstance(value, Path)]


def _require_shared(file: Path, mark: str, seen: list[Path], number: int) -> None:
    """Raise UserError unless this rank sees the file that rank 0 wrote, and what rank 0 sees."""
    deadline = time.monotonic() + min(SEE_SECONDS, 60 * minutes())
    while (missing := _unseen(file, mark, seen)) and time.monotonic() < deadline:
        time.sleep(0.5)
    if missing:
        raise UserError(
            f"rank {number} on {node_name()} does not see {missing.absolute()} as rank 0 does: put it on a file system "
            "that all nodes share, under the same path"
        )


def _unseen(file: Path, mark: str, seen: list[Path]) -> Path | None:
    for path in seen:
        if not path.exists():
            return path
    try:
        return None if file.read_text() == mark else file.parent
    except OSError:
        return file.parent
