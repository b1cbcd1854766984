"""The benchmark of transfer, without its training: the random start, and the table."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import transfer
from pipelines.manifest import MANIFEST
from trainer.config import ModelConfig
from trainer.model import Architecture, LanguageModel
from trainer.weights import huggingface


def test_the_random_start_is_the_same_model_and_tokenizer_with_fresh_weights(tmp_path: Path) -> None:
    shape = Architecture.of(ModelConfig(n_layer=2, n_head=2, n_embd=16, n_positions=8, pad_vocab_to=1), 400)
    trained = {name: torch.full_like(each, 7.0) for name, each in LanguageModel(shape).named_parameters()}
    like, folder = tmp_path / "pretrained", tmp_path / "random"
    huggingface.save_folder(like, shape, trained, {})
    (like / "tokenizer.json").write_text("{}")
    (like / MANIFEST).write_text("{}")
    transfer.write_random(like, folder)
    assert huggingface.read_architecture(folder) == shape
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert not (folder / MANIFEST).exists()  # it would call the new weights damaged
    weights = huggingface.read_weights(folder)
    assert set(weights) == set(huggingface.read_weights(like))
    assert not [name for name, each in weights.items() if (each == 7).all()]
    assert weights["transformer.wte.weight"].std() == pytest.approx(0.02, rel=0.2)


def test_the_table_has_means_intervals_and_the_difference_of_both_starts(tmp_path: Path) -> None:
    for start, scores in (("pretrained", [0.7, 0.72, 0.74]), ("random", [0.6, 0.62, 0.61])):
        folder = tmp_path / "finetune" / start / "rte"
        (folder / "seed-1").mkdir(parents=True)
        (folder / "seed-1/scores.json").write_text(json.dumps({"validation": {"headline_of": ["accuracy"]}}))
        headlines = {str(number): score for number, score in enumerate(scores)}
        (folder / "seeds.json").write_text(json.dumps({"best": "seed-1", "headlines": headlines}))
    rows = transfer.table(tmp_path).splitlines()
    # Student: 0.02 / sqrt(3) x 4.303 and half of it. Welch: 0.01291 x 3.222, with 2.94 degrees of freedom.
    assert rows[2:] == ["| rte | accuracy | 0.7200 ± 0.0497 | 0.6100 ± 0.0248 | +0.1100 (+0.0684 to +0.1516) |"]
