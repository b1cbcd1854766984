"""A folder for the temporary files of this process: removed when it ends, or after a kill by the next one that starts.

A process holds a lock (flock) on its folder for as long as it lives, and the kernel releases it however the process
ends. Process ids would not do: two containers that share a folder for temporary files do not see each other's. Services
that clear old temporary files (systemd-tmpfiles) respect the lock too.
"""

import contextlib
import fcntl
import functools
import multiprocessing.util
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "millrace-run-"
LONGEST = 80
"""Longest name of a folder, in bytes, in which a socket can lie: its whole name has 103 at most."""


@functools.cache
def own_folder() -> Path:
    """Return this process's folder; the first call makes it, and removes those that killed processes left."""
    root = Path(tempfile.gettempdir())
    remove_leftovers(root)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        with contextlib.suppress(FileNotFoundError):  # another process took it for a leftover before it was locked
            descriptor = os.open(folder, os.O_RDONLY)
            if _locked(descriptor) in (True, None) and folder.exists():
                break
            os.close(descriptor)
    multiprocessing.util.Finalize(None, shutil.rmtree, (folder, True), exitpriority=-200)  # in no fork of this process
    return folder


def take_sockets() -> None:
    """Have multiprocessing put its sockets there: its own folder (`pymp-*`) would stay for ever after a kill."""
    if len(os.fsencode(own_folder())) <= LONGEST:
        multiprocessing.current_process()._config["tempdir"] = str(own_folder())  # pyright: ignore


def remove_leftovers(root: Path) -> None:
    """Remove this user's folders in `root` whose processes have ended."""
    for folder in sorted(root.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # gone by now, another user's, or no folder
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid() and _locked(descriptor):
                    shutil.rmtree(folder)
            finally:
                os.close(descriptor)


def _locked(descriptor: int) -> bool | None:
    """Take the lock of an open folder; return False if another process has it, None if its filesystem has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
