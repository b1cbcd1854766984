"""Another job scores the newest checkpoint of a training that goes on and deletes its old ones, as the page says."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.pages import Page
from tests.sample_project import ROOT, environment
from tests.trainer import small
from tests.trainer.small import Road, pretrain_arguments
from tests.trainer.test_pretrain import LONG, pretrain
from trainer.weights.records import checkpoints

EXTRA = (*LONG, "--checkpoint-every", "4", "--keep", "1")


@pytest.mark.nightly
def test_a_linked_checkpoint_is_scored_beside_its_training_and_changes_nothing_of_it(
    road: Road, tmp_path: Path
) -> None:
    output = tmp_path / "runs/RUN/pretrain"
    (tmp_path / "data/CORPUS/tokenize").mkdir(parents=True)
    (tmp_path / "data/CORPUS/tokenizer").symlink_to(road.tokenizer)
    (tmp_path / "data/CORPUS/tokenize/val").symlink_to(road.val)
    command = [sys.executable, "-m", "trainer.pretrain", *pretrain_arguments(road.train, road.val, output, *EXTRA)]
    training = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        while not any(output.parent.glob(".work/pretrain-*/checkpoints/step-*")):
            assert training.poll() is None
        score_as_the_page_says(tmp_path)
        assert training.wait(240) == 0
    finally:
        training.kill()
    linked = checkpoints(tmp_path / "beside")
    assert {*linked} - {*checkpoints(output)}, "the training has deleted its own links only"
    assert (tmp_path / "beside.scores/scores.md").exists()
    assert pretrain(road, tmp_path / "undisturbed", *EXTRA) == 0
    assert small.contents(output) == small.contents(tmp_path / "undisturbed")


def score_as_the_page_says(folder: Path) -> None:
    """Run the page's commands, again while a checkpoint is deleted under `cp`."""
    page = Page.read(ROOT / "docs/howto/cluster.md")
    (commands,) = (block.commands for block in page.blocks if "cp -al" in block.commands)
    while True:
        run = ["bash", "-euc", commands]
        done = subprocess.run(
            run, cwd=folder, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True, check=False
        )
        if not done.returncode:
            return
        assert "cp: " in done.stderr, done.stderr
