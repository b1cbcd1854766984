"""Stopping at once: workers, what they have started, and every repeated Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Shards that would never end, each with a child of its own that outlives its parent if it can.
SCRIPT = """
import signal, subprocess, sys, time
from pathlib import Path
from pipelines.command import Part, Source, StageSpec, Table
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

def endless(run: StageRun, path: Source, output: Table) -> None:
    \"\"\"Never end.\"\"\"
    run.map(work, [Part(str(i), (path.path,)) for i in range(4)], str(path.path.parent), into=output)

def work(part: Part, folder: Path, base: str) -> Counts:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as for a page's child
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    (Path(base) / f"child-{child.pid}").touch()
    try:
        child.wait()
    finally:
        child.kill()  # as a stage's own process does; a worker that is killed comes to no end of its own
    return Counts()

STAGE = StageSpec.of(endless, 1, ())

if __name__ == "__main__":
    stage_main("endless")
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_ends_long_shards_at_once(workers: int, sent: signal.Signals, status: int, tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(SCRIPT)
    (tmp_path / "in").write_text("x")
    arguments = [str(tmp_path / "in"), str(tmp_path / "out"), "--workers", str(workers)]
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "endless.py"), *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while len(started := list(tmp_path.glob("child-*"))) < workers:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    begun = time.monotonic()
    for _ in range(5):
        if process.poll() is None:
            os.killpg(process.pid, sent)  # as a terminal does
            time.sleep(0.05)
    _, stderr = process.communicate(timeout=120)
    assert time.monotonic() - begun < 120, "and not 600 s"
    assert process.returncode == status, stderr
    assert stderr.count("\n") == 1, stderr
    assert "run the same command again" in stderr
    deadline = time.monotonic() + 120
    while left := [path.name for path in started if is_alive(int(path.name.removeprefix("child-")))]:
        assert time.monotonic() < deadline, left
        time.sleep(0.02)
    assert not (tmp_path / "out").exists()


def test_ctrl_c_while_workers_start_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        SCRIPT.replace("import signal,", "import time; time.sleep(0.5)\nimport signal,")
    )
    (tmp_path / "in").write_text("x")
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "endless.py"), str(tmp_path / "in"), str(tmp_path / "out"), "--workers", "2"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not list(tmp_path.glob(".work/out-*/identity.json")):
        time.sleep(0.01)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert (process.returncode, stderr.count("\n")) == (130, 1), stderr


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
