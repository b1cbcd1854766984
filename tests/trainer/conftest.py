"""A tokenizer, a corpus and a trained, exported model, made once for all tests of the trainer."""

import pytest

from pipelines.command import StageSpec
from pipelines.stage import run_command
from tests.trainer import small
from tests.trainer.small import Road, pretrain_arguments


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
