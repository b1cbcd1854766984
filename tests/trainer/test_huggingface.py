"""Weights go to transformers and back without a changed bit, and other models are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines import store
from pipelines.errors import UserError
from tests.trainer.small import MODEL, write_tokenizer
from trainer.huggingface import (
    fill,
    from_huggingface,
    read_architecture,
    read_weights,
    require_same_tokenizer,
    save_folder,
    save_tokenizer,
    to_huggingface,
)
from trainer.model import Architecture, LanguageModel, initialise

SHAPE = Architecture.of(MODEL, vocab_size=61)


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    model = LanguageModel(Architecture(**SHAPE.record()))
    initialise(model, seed)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def test_a_round_trip_changes_no_bit() -> None:
    before = weights()
    after = from_huggingface(to_huggingface(before))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_names_and_shapes_are_those_of_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=32, vocab_size=61)).state_dict()
    ours = to_huggingface(weights())
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        name: tensor.shape for name, tensor in theirs.items() if name != "lm_head.weight"
    }


def test_the_original_folders_names_without_prefix_and_with_masks_are_read() -> None:
    theirs = {name.removeprefix("transformer."): tensor for name, tensor in to_huggingface(weights()).items()}
    theirs["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    assert from_huggingface(theirs).keys() == weights().keys()


def saved(folder: Path, **changes: Any) -> Path:
    save_folder(folder, SHAPE, weights(), {})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_a_folder_is_read_back(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    assert read_architecture(folder).record() == SHAPE.record()
    assert all(torch.equal(weight, weights()[name]) for name, weight in read_weights(folder).items())
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is llama"),
        ({"activation_function": "relu"}, "activation_function is relu"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"n_inner": 100}, "n_inner is 100"),
        ({"n_head": None}, "lacks n_head"),
    ],
)
def test_another_architecture_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_architecture(saved(tmp_path / "model", **changes))


def test_missing_damaged_and_ill_fitting_weights_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    model = LanguageModel(Architecture(**{**SHAPE.record(), "n_embd": 64}))
    with pytest.raises(UserError, match=r"transformer.wte.weight is \(61, 32\), expected \(61, 64\)"):
        fill(model, read_weights(folder), folder)
    with pytest.raises(UserError, match=r"has no weight transformer.h.2.ln_1.weight"):
        fill(LanguageModel(Architecture(**{**SHAPE.record(), "n_layer": 3})), read_weights(folder), folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="not readable"):
        read_weights(folder)
    file.unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        read_weights(folder)


def test_the_tokenizer_is_copied_to_the_byte_or_gets_a_padding_token(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    source = write_tokenizer(tmp_path / "tokenizer")
    folder = saved(tmp_path / "model")
    save_tokenizer(source, folder, 32)
    assert (folder / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    plain = AutoTokenizer.from_pretrained(folder)
    text = "water to wheel<|endoftext|> and  stone\n"
    assert plain.decode(plain(text).input_ids) == text
    assert (plain.eos_token_id, plain.pad_token_id) == (299, None)
    save_tokenizer(source, folder, 32, pad=True)
    padded = AutoTokenizer.from_pretrained(folder)
    assert (len(padded), padded.pad_token_id) == (301, 300)
    assert padded(text).input_ids == plain(text).input_ids


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    source = write_tokenizer(tmp_path / "tokenizer")
    require_same_tokenizer(source, store.sha256(source / "tokenizer.json"), Path("shards"))
    with pytest.raises(UserError, match="not the tokenizer that made shards"):
        require_same_tokenizer(source, "0" * 64, Path("shards"))
    with pytest.raises(UserError, match=r"has no tokenizer.json"):
        require_same_tokenizer(tmp_path, "0" * 64, Path("shards"))
