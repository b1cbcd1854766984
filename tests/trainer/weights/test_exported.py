"""Folders of a model that anyone may have made: whatever stands in their files is one clear line, and soon."""

import json
import shutil
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from pipelines.command import StageSpec
from pipelines.errors import UserError
from pipelines.stage import run_command
from tests.trainer import small
from tests.trainer.small import Road
from tests.trainer.test_finetune import finetune
from trainer.config import FinetuneConfig, SamplingConfig
from trainer.finetune import check_layout
from trainer.generate import write_text
from trainer.glue_score import open_classifier
from trainer.weights.base_model import open_base_model
from trainer.weights.exported import check_weights
from trainer.weights.huggingface import read_architecture, read_weights, save_tokenizer


@pytest.fixture
def model(road: Road, tmp_path: Path) -> Path:
    return shutil.copytree(road.export, tmp_path / "model", ignore=shutil.ignore_patterns("manifest.json"))


def refusal(do: Callable[..., Any], *arguments: Any) -> str:
    """The one line of an error."""
    with pytest.raises(UserError) as error:
        do(*arguments)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000
    return str(error.value)


def change(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[]", "expected keys with values, found []"),
        ('"gpt2"', "expected keys with values, found 'gpt2'"),
        ("null", "expected keys with values, found None"),
        ("", "not valid JSON"),
        ("[" * 200_000, "not valid JSON"),
        ('{"n_layer": ' + "9" * 5000 + "}", "not valid JSON"),
        ("{}", "lacks n_layer, n_head, n_embd, n_positions, vocab_size; not a GPT-2"),
        ({"n_layer": -1}, "n_layer is -1, expected a whole number of at least 1"),
        ({"n_layer": 0}, "n_layer is 0, expected"),
        ({"n_layer": 2.0}, "n_layer is 2.0, expected"),
        ({"n_layer": True}, "n_layer is True, expected"),
        ({"n_head": 0}, "n_head is 0, expected"),
        ({"n_head": 3}, "n_head is 3, which does not divide n_embd 32"),
        ({"n_embd": float("nan")}, "n_embd is nan, expected"),
        ({"n_positions": float("inf")}, "n_positions is inf, expected"),
        ({"vocab_size": "300" * 100_000}, "vocab_size is '3003003"),
        ({"vocab_size": [300]}, "vocab_size is [300], expected"),
        ({"layer_norm_epsilon": float("nan")}, "layer_norm_epsilon is nan, this GPT-2 has 1e-05"),
        ({"activation_function": {}}, "activation_function is {}, this GPT-2 has gelu_new"),
        ({"model_type": "a\nb"}, "model_type is 'a\\nb', this GPT-2 has gpt2"),
    ],
)
def test_a_config_that_makes_no_model_is_refused(model: Path, config: str | dict[str, Any], message: str) -> None:
    if isinstance(config, str):
        (model / "config.json").write_text(config)
    else:
        change(model / "config.json", **config)
    for read in (read_architecture, check_weights, lambda at: check_layout(FinetuneConfig(), small.ONE, at)):
        assert refusal(read, model).startswith(f"{model}/config.json: {message}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n_layer", "has no weight transformer.h.2.ln_1.weight, which its config.json promises"),
        ("n_positions", "transformer.wpe.weight is (32, 32), by its config.json it has to be (1000000000, 32)"),
        ("vocab_size", "transformer.wte.weight is (300, 32), by its config.json it has to be (1000000000, 32)"),
        ("n_embd", "transformer.wte.weight is (300, 32), by its config.json it has to be (300, 1000000000)"),
    ],
)
def test_a_size_of_a_billion_costs_nothing(model: Path, name: str, message: str) -> None:
    """The headers of the files of weights are looked at first, and they bound the search."""
    change(model / "config.json", **{name: 10**9})
    tracemalloc.start()
    try:
        for read in (read_architecture, lambda at: write_text(at, "x", SamplingConfig())):
            assert refusal(read, model).startswith(f"{model}: {message}")
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def rewrite(model: Path, do: Callable[[dict[str, Any]], Any]) -> None:
    weights = load_file(model / "model.safetensors")
    do(weights)
    save_file(weights, model / "model.safetensors")


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda all_: all_.pop("transformer.ln_f.bias"), "has no weight transformer.ln_f.bias"),
        (
            lambda all_: all_.update({"transformer.h.7.ln_1.bias": np.zeros(32)}),
            "has a weight transformer.h.7.ln_1.bias, of which its config.json says nothing",
        ),
        (
            lambda all_: all_.update({"transformer.h.0.ln_1.bias": np.zeros(32, np.int64)}),
            "transformer.h.0.ln_1.bias is of type I64, expected F32, BF16, F16, F64",
        ),
        (
            lambda all_: all_.update({"transformer.h.0.ln_1.bias": np.zeros((0, 32), np.float32)}),
            "transformer.h.0.ln_1.bias is (0, 32), by its config.json it has to be (32,)",
        ),
        (
            lambda all_: all_.update({"lm_head.weight": np.zeros((7, 32), np.float32)}),
            "lm_head.weight is (7, 32), but tied to transformer.wte.weight, which is (300, 32)",
        ),
    ],
)
def test_weights_that_are_not_the_models_are_refused(
    model: Path, do: Callable[[dict[str, Any]], Any], message: str
) -> None:
    rewrite(model, do)
    assert message in refusal(check_weights, model)


def header(tensors: Any, length: int | None = None, data: bytes = bytes(64)) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


ONE = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234",
        header({"a": ONE}, length=2**63),
        header({"a": ONE}, length=10**7),
        header({"a": ONE}, length=2),
        header([]),
        header({"a": {**ONE, "shape": [-4, -4]}}),
        header({"a": {**ONE, "shape": [2**62, 4]}}),
        header({"a": {**ONE, "shape": [10**12]}}),
        header({"a": {**ONE, "data_offsets": [0, 10**12]}}),
        header({"a": {**ONE, "data_offsets": [64, 0]}}),
        header({"a": ONE, "b": ONE}),
        header({"a": {**ONE, "dtype": "OBJECT"}}),
    ],
)
def test_headers_that_lie_are_refused(model: Path, data: bytes) -> None:
    (model / "model.safetensors").write_bytes(data)
    for read in (check_weights, read_weights):
        assert refusal(read, model).startswith(f"{model}/model.safetensors: not readable")


@pytest.mark.parametrize(
    "index", ["[]", '{"weight_map": 3}', '{"weight_map": {"a": ".."}}', '{"weight_map": {"a": "\\u0000"}}']
)
def test_an_index_of_weights_that_names_no_files_is_refused(model: Path, index: str) -> None:
    (model / "model.safetensors").unlink()
    (model / "model.safetensors.index.json").write_text(index)
    refusal(check_weights, model)


def test_tokenizers_and_vocabularies_that_are_none_are_refused(road: Road, model: Path, tmp_path: Path) -> None:
    meta = small.token_meta(road.tokenizer)

    def opened(tokenizer: Path | None = road.tokenizer) -> str:
        return refusal(open_base_model, model, tokenizer, meta, Path("rows"), tmp_path)

    for content in ("[]", "{}", "\x00"):
        (model / "tokenizer.json").write_text(content)
        assert opened().startswith(f"{model}/tokenizer.json: not a readable tokenizer")
        assert opened(None).startswith(f"{model}/tokenizer.json: not a readable tokenizer")
    (model / "tokenizer.json").unlink()
    (model / "vocab.json").write_text("[]")
    assert opened().startswith(f"{model}/vocab.json: expected keys with values")
    for content, message in (("[]", "expected keys with values"), ('{"eos_token": [3]}', "eos_token is [3]")):
        (tmp_path / "tokenizer.json").write_text("{}")
        (tmp_path / "tokenizer_config.json").write_text(content)
        assert f"tokenizer_config.json: {message}" in refusal(save_tokenizer, tmp_path, model, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "id2label is None, expected the name of each class by its number"),
        ({"id2label": ["a", "b"]}, "id2label is ['a', 'b'], expected"),
        ({"id2label": {"7": "a"}}, "id2label is {'7': 'a'}, expected"),
        ({"id2label": {"0": "a"}, "pad_token_id": 300}, "pad_token_id is 300, expected a token's id below 300"),
        ({"id2label": {"0": "a"}, "pad_token_id": "x"}, "pad_token_id is 'x', expected"),
    ],
)
def test_a_classifiers_config_is_checked(model: Path, changes: dict[str, Any], message: str) -> None:
    change(model / "config.json", **changes)
    rewrite(model, lambda all_: all_.update({"score.weight": np.zeros((1, 32), np.float32)}))
    assert refusal(open_classifier, model, "cpu").startswith(f"{model}/config.json: {message}")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["val/part-00000.arrow", "model/model.safetensors"])
def test_evaluate_reads_nothing_that_changed_since_it_was_published(
    road: Road, tmp_path: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    shutil.copytree(road.val, tmp_path / "val")
    shutil.copytree(road.export, tmp_path / "model")
    flip(tmp_path / name)
    arguments = [str(tmp_path / each) for each in ("model", "val", "out")]
    assert run_command(StageSpec.load("trainer.evaluate"), arguments) == 1
    assert f"error: {tmp_path / name}: changed: " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["glue/validation.arrow", "model/model.safetensors"])
def test_finetune_reads_nothing_that_changed_since_it_was_published(
    road: Road, tmp_path: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    import dataclasses

    small.write_glue(tmp_path / "glue", road.tokenizer, {"train": 20, "validation": 8})
    shutil.copytree(road.export, tmp_path / "model")
    flip(tmp_path / name)
    assert finetune(dataclasses.replace(road, export=tmp_path / "model"), tmp_path / "glue", tmp_path / "out") == 1
    assert f"error: {tmp_path / name}: changed: " in capsys.readouterr().err
