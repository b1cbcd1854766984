"""Weights go to transformers and back without a changed bit, and other models are refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.errors import UserError
from tests.trainer.small import MODEL, initialise, token_meta, write_tokenizer
from trainer.model import Architecture, Classifier, LanguageModel
from trainer.weights.huggingface import (
    fill,
    from_huggingface,
    read_architecture,
    read_weights,
    require_same_tokenizer,
    save_folder,
    save_tokenizer,
    to_huggingface,
)

SHAPE = Architecture.of(MODEL, vocab_size=61)
HEADS = SHAPE.n_head


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    model = LanguageModel(Architecture(**SHAPE.record()))
    initialise(model, seed)
    for name, weight in model.named_parameters():  # biases too: they are moved like their matrices
        if name.endswith("attn.qkv.bias"):
            weight.detach().copy_(torch.arange(len(weight)))
    return {name: weight.detach() for name, weight in model.named_parameters()}


def test_a_round_trip_changes_no_bit() -> None:
    before = weights()
    after = from_huggingface(to_huggingface(before, HEADS), HEADS)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_names_and_shapes_are_those_of_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=32, vocab_size=61)).state_dict()
    ours = to_huggingface(weights(), HEADS)
    assert {name: tensor.shape for name, tensor in ours.items()} == {
        name: tensor.shape for name, tensor in theirs.items() if name != "lm_head.weight"
    }


def test_query_key_and_value_stand_side_by_side_there_and_by_head_here() -> None:
    """Row 7 of the value of head 1 is a column of the last third of transformers' c_attn."""
    ours, theirs = weights(), to_huggingface(weights(), HEADS)
    width = SHAPE.n_embd // HEADS
    for part, head, row in ((0, 0, 0), (0, 1, 5), (1, 0, 3), (2, 1, 7), (2, 1, width - 1)):
        here = (3 * head + part) * width + row
        there = part * SHAPE.n_embd + head * width + row
        for layer in ("transformer.h.0.attn", "transformer.h.1.attn"):
            assert torch.equal(ours[f"{layer}.qkv.weight"][here], theirs[f"{layer}.c_attn.weight"][:, there])
            assert ours[f"{layer}.qkv.bias"][here] == theirs[f"{layer}.c_attn.bias"][there]


def test_the_original_folders_names_without_prefix_and_with_masks_are_read() -> None:
    theirs = {name.removeprefix("transformer."): tensor for name, tensor in to_huggingface(weights(), HEADS).items()}
    theirs["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    assert from_huggingface(theirs, HEADS).keys() == weights().keys()


def parameters(**changes: int) -> dict[str, torch.Tensor]:
    return dict(LanguageModel(Architecture(**{**SHAPE.record(), **changes})).named_parameters())


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
    with pytest.raises(UserError, match=r"transformer.wte.weight is \(61, 32\), expected \(61, 64\)"):
        fill(parameters(n_embd=64), read_weights(folder), folder)
    with pytest.raises(UserError, match=r"has no weight transformer.h.2.ln_1.weight"):
        fill(parameters(n_layer=3), read_weights(folder), folder)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match="not readable"):
        read_weights(folder)
    file.unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        read_weights(folder)


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "GPT2Model", "GPT2ForSequenceClassification"])
@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_what_transformers_saves_comes_back_from_us_to_the_bit(tmp_path: Path, kind: str, shard_size: str) -> None:
    """With `transformer.` before the names and without, in one file and in several, with either head and with none."""
    import transformers

    settings = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=32, n_positions=32, vocab_size=61, num_labels=3, pad_token_id=0
    )
    torch.manual_seed(0)
    theirs: Any = getattr(transformers, kind)(settings)
    for weight in theirs.parameters():
        weight.detach().normal_()
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=shard_size)
    files = sorted(path.name for path in (tmp_path / "theirs").glob("*.safetensors"))
    assert (len(files) > 1) == (shard_size == "20KB")

    classifies = kind == "GPT2ForSequenceClassification"
    labels = {"num_labels": 3} if classifies else {}
    shape = dataclasses.replace(read_architecture(tmp_path / "theirs"), **labels)
    model = (Classifier if classifies else LanguageModel)(shape)
    found = read_weights(tmp_path / "theirs")
    assert ("score.weight" in found) == classifies
    fill(dict(model.named_parameters()), found, tmp_path / "theirs")
    ours = {name: weight.detach() for name, weight in model.named_parameters()}
    save_folder(tmp_path / "ours", shape, ours, {"num_labels": 3, "pad_token_id": 0} if classifies else {})
    again: Any = getattr(transformers, kind).from_pretrained(tmp_path / "ours")
    expected = theirs.state_dict()
    assert again.state_dict().keys() == expected.keys()
    for name, weight in again.state_dict().items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": {"a": "../secret.safetensors"}}'])
def test_an_index_that_names_no_files_beside_it_is_refused(tmp_path: Path, text: str) -> None:
    folder = saved(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)
    with pytest.raises(UserError, match=r"index\.json: does not say which weight is in which file"):
        read_weights(folder)


def test_a_missing_file_of_several_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    with pytest.raises(UserError, match=r"has no model-00001-of-00002\.safetensors"):
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
    save_tokenizer(source, folder, 32, padding="added")
    padded = AutoTokenizer.from_pretrained(folder)
    assert (len(padded), padded.pad_token_id) == (301, 300)
    assert padded(text).input_ids == plain(text).input_ids


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    source, other = write_tokenizer(tmp_path / "tokenizer"), write_tokenizer(tmp_path / "other", 290)
    meta = token_meta(source)
    require_same_tokenizer(source, meta, Path("shards"))
    for wrong in (token_meta(other), dataclasses.replace(meta, tokenizer_sha256="0" * 64)):
        with pytest.raises(UserError, match="not the tokenizer that made shards"):
            require_same_tokenizer(source, wrong, Path("shards"))
    with pytest.raises(UserError, match=r"has no tokenizer.json"):
        require_same_tokenizer(tmp_path, meta, Path("shards"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(UserError, match=r"tokenizer.json: not a readable tokenizer"):
        require_same_tokenizer(tmp_path / "broken", meta, Path("shards"))


def test_the_same_tokenizer_in_the_layout_of_the_hub_is_known(tmp_path: Path) -> None:
    """Compact JSON, a limit on the length, end-of-text under another flag: the stage `tokenizer` writes none of it."""
    source, theirs = write_tokenizer(tmp_path / "tokenizer"), tmp_path / "theirs"
    theirs.mkdir()
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["truncation"] = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    (theirs / "tokenizer.json").write_text(json.dumps(tokenizer))
    require_same_tokenizer(theirs, token_meta(source), Path("shards"))


def test_an_exported_tokenizer_keeps_the_name_of_its_end_of_text(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "tokenizer.json").write_text("{}")
    (tmp_path / "from" / "tokenizer_config.json").write_text('{"eos_token": "<|stop|>"}')
    save_tokenizer(tmp_path / "from", tmp_path / "to", 8)
    assert json.loads((tmp_path / "to" / "tokenizer_config.json").read_text())["eos_token"] == "<|stop|>"
