"""What a pretraining starts from is refused before any process starts, and without torch, where it does not do."""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from pipelines.command import StageSpec
from pipelines.errors import ConfigError, UserError
from pipelines.stage import run_command
from tests.trainer import small
from tests.trainer.small import Road
from trainer.loop.start import find_start

ROOT = Path(__file__).parents[3]
STEPS = 99


@pytest.fixture
def folder(road: Road, tmp_path: Path) -> Path:
    """Copies of an export and of what pretraining published, to be spoilt."""
    for name, source in (("huggingface", road.export), ("checkpoint", road.pretrain)):
        shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("manifest.json"))
    return tmp_path


def found(road: Road, folder: Path, init: Any, **changes: Any) -> Path | None:
    model = dataclasses.replace(small.MODEL, **changes)
    config = dataclasses.replace(small.PRETRAIN, init=init, init_path=str(folder / init))
    return find_start(config, STEPS, model, dataclasses.asdict(small.token_meta(road.tokenizer)), road.train)


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def change_weights(file: Path, do: Callable[[dict[str, Any]], Any]) -> None:
    weights = load_file(file)
    do(weights)
    save_file(weights, file)


def test_what_fits_is_found(road: Road, folder: Path) -> None:
    assert found(road, folder, "huggingface") == folder / "huggingface"
    assert found(road, folder, "checkpoint") == folder / "checkpoint/step-00000060"
    assert find_start(small.PRETRAIN, STEPS, small.MODEL, {}, road.train) is None


def test_a_checkpoint_of_another_optimizer_is_refused(road: Road, folder: Path) -> None:
    config = dataclasses.replace(
        small.PRETRAIN, init="checkpoint", init_path=str(folder / "checkpoint"), optimizer="muon"
    )
    tokenizer = dataclasses.asdict(small.token_meta(road.tokenizer))
    with pytest.raises(
        UserError, match=r"trained with pretrain\.optimizer adamw, and muon cannot go on from its state"
    ):
        find_start(config, STEPS, small.MODEL, tokenizer, road.train)
    change(folder / "checkpoint/step-00000060/run.json", optimizer="muon")
    assert find_start(config, STEPS, small.MODEL, tokenizer, road.train) == folder / "checkpoint/step-00000060"
    change(folder / "checkpoint/step-00000060/run.json", optimizer="sgd")
    with pytest.raises(UserError, match="optimizer is 'sgd'; not a checkpoint of this trainer"):
        find_start(config, STEPS, small.MODEL, tokenizer, road.train)


SPOILT: list[tuple[str, Callable[[Path], Any], str]] = [
    ("huggingface", shutil.rmtree, r"config\.json"),
    ("huggingface", lambda at: change(at / "config.json", model_type="llama"), "model_type is llama"),
    ("huggingface", lambda at: change(at / "config.json", n_layer=3), "its n_layer is 3, here it is 2"),
    ("huggingface", lambda at: change(at / "config.json", vocab_size=7), "its vocab_size is 7, here it is 300"),
    ("huggingface", lambda at: (at / "model.safetensors").unlink(), r"has no model\.safetensors"),
    ("huggingface", lambda at: (at / "model.safetensors").write_bytes(b"1" * 99), "not readable"),
    (
        "huggingface",
        lambda at: change_weights(at / "model.safetensors", lambda all_: all_.pop("transformer.h.1.ln_2.bias")),
        r"has no weight transformer\.h\.1\.ln_2\.bias",
    ),
    (
        "huggingface",
        lambda at: change_weights(
            at / "model.safetensors",
            lambda all_: all_.update({"transformer.wpe.weight": all_["transformer.wpe.weight"][:9]}),
        ),
        r"transformer\.wpe\.weight is \(9, 32\), by its config\.json it has to be \(32, 32\)",
    ),
    ("checkpoint", shutil.rmtree, "holds no checkpoint"),
    ("checkpoint", lambda at: (at / "step-00000060/run.json").write_text("{}"), "not a checkpoint of this trainer"),
    (
        "checkpoint",
        lambda at: change(at / "step-00000060/run.json", tokenizer={"tokenizer_sha256": "other"}),
        "trained on tokens of another tokenizer than",
    ),
    ("checkpoint", lambda at: change(at / "step-00000060/run.json", step=99), "is at step 99 already; ask for more"),
]


@pytest.mark.parametrize(("init", "spoil", "message"), SPOILT, ids=[f"{init}-{word}" for init, _, word in SPOILT])
def test_what_does_not_is_refused(
    road: Road, folder: Path, init: str, spoil: Callable[[Path], Any], message: str
) -> None:
    spoil(folder / init)
    with pytest.raises((UserError, ConfigError), match=message):
        found(road, folder, init)


@pytest.mark.parametrize("init", ["huggingface", "checkpoint"])
def test_the_stage_refuses_it_before_any_process_starts_unless_it_has_a_checkpoint_of_its_own(
    road: Road, folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, init: str
) -> None:
    own = folder / "own/step-00000008"

    def end(*_: Any, **__: Any) -> None:
        raise UserError("processes were started")

    def pretrain() -> str:
        extra = ("--init", init, "--init-path", str(folder / init), "--steps", "99")
        arguments = small.pretrain_arguments(road.train, road.val, folder / "run", *extra)
        assert run_command(StageSpec.load("trainer.pretrain"), arguments) == 1
        return capsys.readouterr().err

    monkeypatch.setattr("trainer.processes.launch.launch", end)
    assert "processes were started" in pretrain()
    for file in (folder / init).rglob("model.safetensors" if init == "huggingface" else "run.json"):
        file.unlink()
    assert "processes were started" not in pretrain()
    monkeypatch.setattr("trainer.pretrain.PretrainJob.checkpoints", own.parent)
    own.mkdir(parents=True)
    assert "processes were started" in pretrain()


def test_no_torch_is_needed(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from trainer.loop.start import find_start\n"
        "from trainer.weights.exported import check_weights\n"
        f"check_weights(Path({str(folder / 'huggingface')!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
