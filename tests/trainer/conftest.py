"""A tokenizer, a corpus and a trained, exported model, made once for all tests of the trainer."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from pipelines.command import StageSpec
from pipelines.stage import run_command
from tests.trainer import small


@dataclasses.dataclass(frozen=True)
class Road:
    """Folders of a small run, from the tokenizer to the export."""

    tokenizer: Path
    train: Path
    val: Path
    pretrain: Path
    export: Path


def flags(section: Any, prefix: str = "") -> list[str]:
    """A section as command line flags."""
    found: list[str] = []
    for name, value in dataclasses.asdict(section).items():
        flag = f"{prefix}{name}".replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{flag}" if value else f"--{prefix}no-{name}".replace("_", "-"))
        else:
            found += [f"--{flag}", str(value)]
    return found


def pretrain_arguments(train: Path, val: Path, output: Path, *extra: str) -> list[str]:
    """A small pretraining of two processes."""
    model = flags(small.MODEL, "model.")
    return [str(train), str(val), str(output), *flags(small.PRETRAIN), *model, "--parallel.device", "cpu", *extra]


@pytest.fixture(scope="session")
def road(tmp_path_factory: pytest.TempPathFactory) -> Road:
    root = tmp_path_factory.mktemp("road")
    tokenizer = small.write_tokenizer(root / "tokenizer")
    train = small.write_corpus(root / "train", tokenizer, 60, seed=1)
    val = small.write_corpus(root / "val", tokenizer, 8, seed=2)
    made = Road(tokenizer, train, val, root / "pretrain", root / "export")
    arguments = pretrain_arguments(train, val, made.pretrain, "--parallel.dp-replicate", "2", "--steps", "60")
    assert run_command(StageSpec.load("trainer.pretrain"), arguments) == 0
    assert run_command(StageSpec.load("trainer.export"), [str(made.pretrain), str(tokenizer), str(made.export)]) == 0
    return made
