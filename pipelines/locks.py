"""Locks of outputs: files in `.work` beside them, which are there only while a process holds them."""

import contextlib
import os
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.errors import UserError
from pipelines.manifest import WORK

if TYPE_CHECKING:
    import filelock  # lazy below: a command that only prints its help needs none


class InUseError(UserError):
    """Another process holds the lock of an output."""


MOST_TRIES = 100
"""How often a folder that another process removes with its own lock is made again."""
IN_ARRAY = " (the tasks of a Slurm array share a stage if each has --shard-range slurm)"


@contextlib.contextmanager
def locked(outputs: Iterable[Path]) -> Generator[None, None, None]:
    """Hold the locks of all outputs while their stage works; raise InUseError if another process holds one."""
    with contextlib.ExitStack() as locks:
        for output in outputs:
            if not locks.enter_context(held(output)):
                raise InUseError(
                    f"{output}: another process is making {output.name}; wait for it or end it, then run this again"
                    f"{IN_ARRAY if 'SLURM_ARRAY_TASK_ID' in os.environ else ''}"
                )
        yield


@contextlib.contextmanager
def held(output: Path) -> Generator[bool, None, None]:
    """Hold the lock of an output, if no other process does; whether it is held is what the `with` gives.

    At the end nothing is left of it: neither the file, nor a folder that was made for it and holds nothing else. Raises
    UserError if nothing can be written there.
    """
    import filelock

    file = lock_file(output)
    lock = filelock.FileLock(file)
    try:
        made = [folder for folder in file.parents if not folder.exists()]
        _acquire(lock, file)
    except filelock.Timeout:
        yield False
        return
    except OSError as error:
        raise UserError(
            f"{output}: nothing can be written to {output.parent} ({error.strerror or error}); choose another output, "
            "or allow it (permissions, a read-only disk)"
        ) from None
    try:
        yield True
    finally:
        # While it is held: who opened it meanwhile sees that the file is gone, and makes a new one.
        file.unlink(missing_ok=True)
        lock.release()
        for folder in (file.parent, *made):
            with contextlib.suppress(OSError):
                folder.rmdir()


def lock_file(output: Path) -> Path:
    """Return the path of the lock of an output."""
    return output.parent / WORK / f"{output.name}.lock"


def _acquire(lock: "filelock.BaseFileLock", file: Path) -> None:
    import filelock

    for tries_left in reversed(range(MOST_TRIES)):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
            return
        except (FileNotFoundError, FileExistsError):  # the latter: it was there, and is gone
            if not tries_left:
                raise
        except filelock.Timeout:
            if file.exists() or not tries_left:  # if it is not there, its holder has just gone
                raise
