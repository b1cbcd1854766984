"""After a failure each process's log shows what it did last, and where the others waited."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.errors import UserError
from tests.trainer.small import TWO
from tests.trainer.test_launch import ROOT, fail
from trainer.launch import launch
from trainer.process import Process


def speak_and_fail(process: Process, kind: str) -> None:
    import logging

    logging.getLogger("trainer").warning("process %d is at step 7", process.place.rank)
    fail(process, kind)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("bug", "^training process 1 failed: ZeroDivisionError"), ("kill", "^training process 1 was killed by SIGKILL")],
)
def test_a_failure_names_the_folder_of_all_logs(tmp_path: Path, kind: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"{message}.*; each process's log: {re.escape(str(tmp_path / 'logs'))}$"):
        launch(speak_and_fail, TWO, kind, logs=tmp_path / "logs")
    waiting, failed = ((tmp_path / f"logs/rank-{rank}.log").read_text() for rank in range(2))
    assert "WARNING process 0 is at step 7" in waiting
    assert "WARNING process 1 is at step 7" in failed
    assert "in barrier" in waiting, "the stack of the one that waited"
    assert ("ZeroDivisionError: that was not expected" in failed) == (kind == "bug")
    assert ("in fail" in failed) == (kind == "bug")


def test_a_users_mistake_stays_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^the file x is broken: mend it$"):
        launch(fail, TWO, "user", logs=tmp_path)


ABORTED = """
import os
from pathlib import Path
from trainer.rank_log import rank_log
def hang(): os.abort()
with rank_log(Path({folder!r}), 3):
    hang()
"""


def test_a_crash_leaves_the_stacks(tmp_path: Path) -> None:
    """As NCCL's watchdog does it to a process that hangs."""
    command = [sys.executable, "-c", ABORTED.format(folder=str(tmp_path))]
    assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL).returncode < 0
    text = (tmp_path / "rank-3.log").read_text()
    assert "Fatal Python error: Aborted" in text
    assert "in hang" in text


def break_down(process: Process) -> None:
    raise ZeroDivisionError("that was not expected")


PLACED = """
from pathlib import Path
from tests.trainer.test_rank_log import break_down
from trainer.config import ParallelConfig
from trainer.launch import launch
launch(break_down, ParallelConfig(device="cpu"), logs=Path({folder!r}))
"""


def test_a_process_of_torchrun_keeps_its_log_too(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    meeting = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-c", PLACED.format(folder=str(tmp_path))]
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, **place, **meeting}, capture_output=True, text=True)
    assert run.returncode == 1
    assert f"the log of each process: {tmp_path}" in run.stderr
    text = (tmp_path / "rank-0.log").read_text()
    assert "ZeroDivisionError: that was not expected" in text
    assert "in break_down" in text
