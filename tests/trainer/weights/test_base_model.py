"""What fine-tuning starts from: folders of any GPT-2, checkpoints of any layout, and what is refused."""

import dataclasses
import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch

from pipelines.errors import UserError
from tests.trainer import small
from tests.trainer.small import Road
from tests.trainer.test_finetune import finetune
from trainer.weights.base_model import open_base_model
from trainer.weights.huggingface import read_weights
from trainer.weights.records import newest_checkpoint


@pytest.mark.parametrize("which", ["export", "newest", "one"])
def test_an_export_and_a_checkpoint_are_the_same_start(road: Road, tmp_path: Path, which: str) -> None:
    """The checkpoint was written by two processes; the folder of all of them means its newest one."""
    meta = small.token_meta(road.tokenizer)
    base = {"export": road.export, "newest": road.pretrain, "one": newest_checkpoint(road.pretrain)}[which]
    tokenizer = None if which == "export" else road.tokenizer
    found = open_base_model(base, tokenizer, meta, Path("rows"), tmp_path)
    assert found.shape == open_base_model(road.export, None, meta, Path("rows"), tmp_path).shape
    expected = read_weights(road.export)
    for name, weight in read_weights(found.folder).items():
        assert torch.equal(weight, expected[name]), name
    assert (found.tokenizer / "tokenizer.json").read_bytes() == (road.tokenizer / "tokenizer.json").read_bytes()


def test_a_checkpoint_is_converted_once_and_never_half(
    road: Road, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta, arguments = small.token_meta(road.tokenizer), (Path("rows"), tmp_path)
    with monkeypatch.context() as patch:
        interrupt = mock.Mock(side_effect=KeyboardInterrupt)
        patch.setattr("trainer.weights.conversion.save_tokenizer", interrupt)
        with pytest.raises(KeyboardInterrupt):
            open_base_model(road.pretrain, road.tokenizer, meta, *arguments)
    assert not (tmp_path / "base").exists()
    folder = open_base_model(road.pretrain, road.tokenizer, meta, *arguments).folder
    monkeypatch.setattr("trainer.weights.conversion.write_folder", lambda *_: pytest.fail("it was converted again"))
    assert open_base_model(road.pretrain, road.tokenizer, meta, *arguments).folder == folder


def test_a_model_of_the_hub_may_have_no_tokenizer_or_only_a_vocabulary(road: Road, tmp_path: Path) -> None:
    meta, base = small.token_meta(road.tokenizer), shutil.copytree(road.export, tmp_path / "gpt2")
    (base / "tokenizer.json").unlink()
    assert open_base_model(base, road.tokenizer, meta, Path("rows"), tmp_path).tokenizer == road.tokenizer
    vocabulary = json.loads((road.tokenizer / "tokenizer.json").read_text())["model"]["vocab"]
    vocabulary["<|endoftext|>"] = meta.end_of_text
    (base / "vocab.json").write_text(json.dumps(vocabulary))
    assert open_base_model(base, road.tokenizer, meta, Path("rows"), tmp_path).folder == base
    vocabulary["<|endoftext|>"], vocabulary["a"] = vocabulary["a"], vocabulary["<|endoftext|>"]
    (base / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(UserError, match=r"gpt2: its vocabulary is not that of .*tokenizer, which made rows"):
        open_base_model(base, road.tokenizer, meta, Path("rows"), tmp_path)


def test_what_is_no_model_or_lacks_its_tokenizer_is_said(road: Road, tmp_path: Path) -> None:
    meta = small.token_meta(road.tokenizer)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty: neither a Hugging Face folder \(config.json\) nor one with checkp"):
        open_base_model(tmp_path / "empty", None, meta, Path("rows"), tmp_path)
    with pytest.raises(UserError, match=r"a checkpoint has no tokenizer; name its folder with --tokenizer"):
        open_base_model(road.pretrain, None, meta, Path("rows"), tmp_path)
    other = small.write_tokenizer(tmp_path / "other", 290)
    with pytest.raises(UserError, match=r"other/tokenizer.json: not the tokenizer that made"):
        open_base_model(road.pretrain, other, meta, Path("rows"), tmp_path)
    with pytest.raises(UserError, match=r"export/tokenizer.json: not the tokenizer that made rows"):
        open_base_model(road.export, None, small.token_meta(other), Path("rows"), tmp_path)


def test_a_model_of_another_number_of_tokens_is_refused(road: Road, tmp_path: Path) -> None:
    """A folder without a tokenizer of its own, so only the numbers tell; more rows than tokens are padding."""
    from transformers import GPT2Config, GPT2LMHeadModel

    meta = small.token_meta(road.tokenizer)
    for size in (50, 320, 5000):
        config = GPT2Config(n_layer=1, n_head=1, n_embd=8, n_positions=32, vocab_size=size)
        GPT2LMHeadModel(config).save_pretrained(tmp_path / str(size))
    assert open_base_model(tmp_path / "320", road.tokenizer, meta, Path("rows"), tmp_path).shape.vocab_size == 320
    with pytest.raises(UserError, match=r"50/config.json: has 50 tokens, the tokenizer that made rows 300"):
        open_base_model(tmp_path / "50", road.tokenizer, meta, Path("rows"), tmp_path)
    with pytest.raises(
        UserError, match=r"5000/config.json: has 5000 tokens, the tokenizer that made rows 300; it is an"
    ):
        open_base_model(tmp_path / "5000", road.tokenizer, meta, Path("rows"), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("named", [False, True])
def test_a_fine_tuned_model_is_a_base_model_for_another_task(road: Road, tmp_path: Path, *, named: bool) -> None:
    """As MNLI's is for RTE: its tokenizer has a padding token more."""
    first = small.write_glue(tmp_path / "first", road.tokenizer, {"train": 20, "validation": 8}, num_labels=3)
    second = small.write_glue(tmp_path / "second", road.tokenizer, {"train": 20, "validation": 8})
    quick = ("--epochs", "1", "--parallel.dp-replicate", "1")
    assert finetune(road, first, tmp_path / "one", *quick) == 0
    again = dataclasses.replace(road, export=tmp_path / "one/model")
    tokenizer = ("--tokenizer", str(road.tokenizer)) if named else ()
    assert finetune(again, second, tmp_path / "two", *quick, *tokenizer) == 0
    config = json.loads((tmp_path / "two/model/config.json").read_text())
    assert (config["vocab_size"], config["pad_token_id"], len(config["id2label"])) == (301, 300, 2)
