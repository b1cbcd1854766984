"""Temporary folders: gone when a process ends, and after a kill when the next one starts; never one that is in use."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.trainer.processes.test_launch import PARENT, ROOT, session, wait_until
from trainer.processes.temporary import PREFIX, remove_leftovers

HOLD = """
import sys, time
from trainer.processes.temporary import own_folder
(own_folder() / "file").touch()
print(own_folder(), flush=True)
sys.stdin.read()
"""


def hold(root: Path) -> "tuple[subprocess.Popen[str], Path]":
    """A process with a folder in `root`, until its standard input is closed."""
    command, environment = [sys.executable, "-c", HOLD], {**os.environ, "TMPDIR": str(root)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    return process, Path(process.stdout.readline().strip())


def test_a_folder_goes_with_its_process_and_never_before(tmp_path: Path) -> None:
    process, folder = hold(tmp_path)
    assert (folder.parent, folder.name[: len(PREFIX)]) == (tmp_path, PREFIX)
    remove_leftovers(tmp_path)
    assert (folder / "file").exists()
    process.communicate()
    assert not folder.exists()


def test_what_a_killed_process_left_goes_when_the_next_one_starts(tmp_path: Path) -> None:
    killed, leftover = hold(tmp_path)
    killed.kill()
    killed.communicate()
    assert leftover.exists()
    others = [tmp_path / "millrace-other", tmp_path / f"{PREFIX}file"]
    others[0].mkdir()
    others[1].touch()
    (tmp_path / f"{PREFIX}link").symlink_to(others[0])
    first, one = hold(tmp_path)
    second, two = hold(tmp_path)
    assert not leftover.exists()
    assert one.exists()
    assert two.exists()
    assert all(other.exists() for other in others)
    for process in (first, second):
        process.communicate()


def start_training(root: Path, folder: Path, function: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", PARENT, str(folder), function]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TMPDIR": str(root)}, start_new_session=True)
    wait_until(lambda: len(list(folder.glob("ready-*"))) == 2)
    return process


@pytest.mark.nightly
def test_a_training_killed_with_9_leaves_one_folder_and_the_next_training_none(tmp_path: Path) -> None:
    """The file through which its processes met, and the socket of the server that they were forked from."""
    root = Path(tempfile.mkdtemp(prefix="millrace-tests-"))  # the name of a socket has to be short
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
    killed = start_training(root, tmp_path / "one", "never_stop")
    killed.kill()
    killed.wait()
    wait_until(lambda: not session(killed.pid))
    (leftover,) = root.glob("[!t]*")  # torch's cache stays
    following = start_training(root, tmp_path / "two", "wait_for_stop")
    assert not leftover.exists()
    following.send_signal(signal.SIGTERM)
    assert following.wait(120) == 75
    wait_until(lambda: not session(following.pid))
    assert list(root.glob("[!t]*")) == []
    shutil.rmtree(root)
