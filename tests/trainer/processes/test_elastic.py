"""torchrun on two nodes, of which one is lost: the other goes on from the last checkpoint with the workers it has."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer.parallel.test_resume import ROOT, wait_for_step
from tests.trainer.processes.test_meeting import free_port
from tests.trainer.small import Road, pretrain_arguments
from tests.trainer.test_pretrain import pretrain
from trainer.weights.records import read_curve_rows

EXTRA = ("--steps", "160", "--checkpoint-every", "6", "--validate-every", "80")


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_lost_node_leaves_the_losses_as_they_are(road: Road, tmp_path: Path) -> None:
    """Six workers share a batch of 8, then three do: neither number divides it."""
    port = free_port()
    rendezvous = ["--nnodes", "1:2", "--nproc-per-node", "3", "--max-restarts", "3", "--rdzv-backend", "c10d"]
    rendezvous += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "last_call_timeout=5"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *rendezvous,
        "--rdzv-id",
        "lost",
        "-m",
        "trainer.pretrain",
    ]
    command += pretrain_arguments(road.train, road.val, tmp_path / "run", *EXTRA)
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    log = (tmp_path / "log").open("w")

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, stderr=log)

    host = start()
    while not listens(port):  # its store holds the rendezvous, and is not to be the lost one
        assert host.poll() is None
        time.sleep(0.05)
    lost = start()
    try:
        wait_for_step(host, tmp_path / "run", 20)
        os.killpg(lost.pid, signal.SIGKILL)
        assert host.wait(240) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        for each in (host, lost):
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
    text = (tmp_path / "log").read_text()
    for number in (6, 3):
        assert f"{number} data-parallel processes share a batch of 8 unevenly" in text
    assert pretrain(road, tmp_path / "undisturbed", *EXTRA, "--parallel.dp-replicate", "1") == 0
    found, expected = (read_curve_rows(tmp_path / name / "curve.csv") for name in ("run", "undisturbed"))
    assert [(row["step"], row["tokens"], row["lr"]) for row in found] == [
        (row["step"], row["tokens"], row["lr"]) for row in expected
    ]
    for column in ("loss", "val_loss"):
        ours, theirs = ([float(row[column]) for row in rows if row[column]] for rows in (found, expected))
        assert ours == pytest.approx(theirs, rel=1e-5), column
