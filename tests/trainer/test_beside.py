"""Another job scores the newest checkpoint of a training that goes on and deletes its old ones."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.command import StageSpec
from pipelines.stage import run_command
from tests.trainer import small
from tests.trainer.small import Road, pretrain_arguments
from tests.trainer.test_pretrain import LONG, ROOT, pretrain
from trainer.weights.records import checkpoints

EXTRA = (*LONG, "--checkpoint-every", "4", "--keep", "1")


@pytest.mark.nightly
def test_a_linked_checkpoint_is_scored_beside_its_training_and_changes_nothing_of_it(
    road: Road, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "trainer.pretrain"]
    command += pretrain_arguments(road.train, road.val, tmp_path / "run", *EXTRA)
    training = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        step, linked = take_newest(tmp_path, training)
        (tmp_path / "none").mkdir()
        arguments = [str(tmp_path / name) for name in ("beside", "none", "scores")]
        arguments += ["--tokenizer", str(road.tokenizer), "--val", str(road.val), "--parallel.device", "cpu"]
        assert run_command(StageSpec.load("trainer.score"), arguments) == 0
        assert training.wait(240) == 0
    finally:
        training.kill()
    assert linked.exists(), "the training has deleted its own link only"
    assert list(checkpoints(tmp_path / "run")) != [step]
    assert pretrain(road, tmp_path / "undisturbed", *EXTRA) == 0
    assert small.contents(tmp_path / "run") == small.contents(tmp_path / "undisturbed")


def take_newest(folder: Path, training: "subprocess.Popen[bytes]") -> tuple[int, Path]:
    """Link the newest checkpoint, as docs/howto/cluster.md does it; it may be deleted meanwhile."""
    (folder / "beside").mkdir()
    while training.poll() is None:
        found = [each for root in folder.glob(".work/run-*/checkpoints") for each in checkpoints(root).items()]
        if found:
            step, newest = found[-1]
            copied = subprocess.run(["cp", "-al", newest, folder / "beside"], capture_output=True, check=False)
            if copied.returncode == 0:
                return step, folder / "beside" / newest.name
            subprocess.run(["rm", "-rf", folder / "beside" / newest.name], check=True)
        time.sleep(0.05)
    raise AssertionError("the training ended without a checkpoint")
