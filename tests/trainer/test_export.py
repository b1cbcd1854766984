"""The stage `export`: transformers opens the folder and computes what the checkpoint computes."""

import json
from pathlib import Path

import pytest
import torch

from pipelines.command import StageSpec
from pipelines.stage import run_command
from tests.trainer import small
from tests.trainer.small import Road
from trainer.model import Architecture, LanguageModel
from trainer.weights.checkpoint import load, model_tensors
from trainer.weights.records import newest_checkpoint, read_record


def checkpointed(road: Road) -> LanguageModel:
    """The model as it was trained, embedding padded for speed and all."""
    folder = newest_checkpoint(road.pretrain)
    shape = read_record(folder)["model"]
    model = LanguageModel(Architecture(**shape, pad_vocab_to=64)).eval()
    torch.nn.init.zeros_(model.transformer.wte.weight)
    load(folder, model_tensors(dict(model.named_parameters()), model.shape.vocab_size))
    return model


def test_transformers_opens_it_with_equal_logits(road: Road) -> None:
    from transformers import AutoTokenizer, GPT2LMHeadModel

    theirs, loading = GPT2LMHeadModel.from_pretrained(road.export, output_loading_info=True)
    assert not any(loading.values())
    tokenizer = AutoTokenizer.from_pretrained(road.export)
    ids = torch.tensor([tokenizer("the mill race carries water to wheel and stone").input_ids])
    with torch.no_grad():
        torch.testing.assert_close(checkpointed(road)(ids), theirs.eval()(ids).logits, atol=1e-5, rtol=0)
    assert theirs.config.eos_token_id == tokenizer.eos_token_id == 299
    assert theirs.generation_config.eos_token_id == 299


def test_equal_checkpoints_give_equal_bytes(road: Road, tmp_path: Path) -> None:
    arguments = [str(road.pretrain), str(road.tokenizer), str(tmp_path / "export")]
    assert run_command(StageSpec.load("trainer.export"), arguments) == 0
    assert small.contents(tmp_path / "export") == small.contents(road.export)
    config = json.loads((road.export / "config.json").read_text())
    assert config["architectures"] == ["GPT2LMHeadModel"]
    assert config["vocab_size"] == 300


def test_a_tokenizer_that_did_not_make_the_tokens_is_refused(
    road: Road, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    other = small.write_tokenizer(tmp_path / "other", vocab_size=290)
    arguments = [str(road.pretrain), str(other), str(tmp_path / "export")]
    assert run_command(StageSpec.load("trainer.export"), arguments) == 1
    assert f"not the tokenizer that made {road.pretrain}" in capsys.readouterr().err
    assert not (tmp_path / "export").exists()
