"""The model file: the same weights after reading it, and one line for a file that is none."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataprep.quality.features import named_features
from dataprep.quality.logistic import Fit
from dataprep.quality.model import Explanation, QualityModel
from pipelines.errors import UserError

BITS = 10
TEXT = "The mill turned, and the miller read on."


def model() -> QualityModel:
    weights = (np.arange(1 << BITS) * 7919 % 2001 - 1000) / 250
    return QualityModel.quantised(Fit(weights, 0.25, 9, 1e-7), BITS, {"trained_good": 7})


def test_a_model_is_after_reading_what_it_was(tmp_path: Path) -> None:
    model().save(tmp_path / "model.arrow")
    read = QualityModel.load(tmp_path / "model.arrow")
    assert np.array_equal(read.weights, model().weights)
    assert (read.bias, read.scale, read.bits, read.trained) == (model().bias, model().scale, BITS, {"trained_good": 7})
    read.save(tmp_path / "again.arrow")
    assert (tmp_path / "again.arrow").read_bytes() == (tmp_path / "model.arrow").read_bytes()


def test_a_quality_is_the_sigmoid_of_the_mean_weight() -> None:
    made = model()
    weights = [made.scale * int(made.weights[bucket]) for bucket in named_features(TEXT, BITS).buckets]
    logit = sum(weights) / math.sqrt(len(weights)) + made.scale * made.bias
    assert made.quality(TEXT) == pytest.approx(1 / (1 + math.exp(-logit)), abs=0.51e-4)


def test_texts_have_together_the_qualities_that_each_has_alone() -> None:
    texts = [TEXT, "", "?!", "mill", TEXT * 3, "水車"]
    assert model().qualities(texts) == [model().quality(text) for text in texts]


@pytest.mark.parametrize("text", ["", " \n", "?! ..."])
def test_a_text_without_words_has_quality_0(text: str) -> None:
    assert model().quality(text) == 0
    assert model().explain(text, 9) == Explanation([], [], 0, 0.0)


def test_the_words_add_up_to_the_logit_and_the_most_telling_come_first() -> None:
    made = model()
    whole = made.explain(TEXT, 100)
    words = [*whole.speaking_for, *whole.against]
    logit = sum(word.weight for word in words) + made.scale * made.bias
    assert made.quality(TEXT) == pytest.approx(1 / (1 + math.exp(-logit)), abs=0.51e-4)
    assert whole.total == pytest.approx(sum(word.weight for word in words))
    assert whole.number == len(words) == 14
    for side in (whole.speaking_for, whole.against):
        sizes = [abs(word.weight) for word in side]
        assert sizes == sorted(sizes, reverse=True)
    assert {"the", "the mill", "mill turned", "and the", "read on"} <= {word.text for word in words}
    assert made.explain(TEXT, 2) == Explanation(whole.speaking_for[:2], whole.against[:2], 14, whole.total)


def test_a_long_word_is_cut_where_it_is_named() -> None:
    found = model().explain("x" * 500, 5)
    assert [len(word.text) for word in (*found.speaking_for, *found.against)] == [40]


def test_a_model_of_zeros_says_half() -> None:
    assert QualityModel.quantised(Fit(np.zeros(1 << BITS), 0.0, 1, 0.0), BITS, {}).quality(TEXT) == 0.5


def damaged(change: dict[str, Any]) -> pa.Table:
    about = {"format": 1, "bits": BITS, "bias": 0, "scale": 1.0, "digest": "0", "trained": {}} | change
    metadata = {"millrace_quality": json.dumps(about)}
    return pa.table({"weight": pa.array([0] * (1 << BITS), pa.int16())}).replace_schema_metadata(metadata)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "a quality model of format 2, and 1 is expected; train it again"),
        ({"bits": 11}, "1024 weights of int16"),
        ({"bits": "x"}, "not a quality model, or a damaged one"),
        ({}, "the weights are not those that were written"),
    ],
)
def test_a_file_of_another_version_or_with_other_weights_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    table = damaged(change)
    with pa.ipc.new_file(str(tmp_path / "model.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match=message):
        QualityModel.load(tmp_path / "model.arrow")


def test_a_file_damaged_anywhere_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "model.arrow"
    model().save(file)
    whole = file.read_bytes()
    for end in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:end])
        with pytest.raises(UserError, match=r"model\.arrow: not a quality model") as raised:
            QualityModel.load(file)
        assert "\n" not in str(raised.value)
    file.write_bytes(whole[:1200] + bytes([whole[1200] ^ 1]) + whole[1201:])
    with pytest.raises(UserError, match="the weights are not those that were written"):
        QualityModel.load(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.arrow").write_text("no model")
    with pytest.raises(UserError, match="not a quality model, or a damaged one"):
        QualityModel.load(tmp_path / "model.arrow")
    table = pa.table({"start": [1]})
    with pa.ipc.new_file(str(tmp_path / "other.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(UserError, match="not a quality model, or a damaged one"):
        QualityModel.load(tmp_path / "other.arrow")
    with pytest.raises(UserError, match="no such file"):
        QualityModel.load(tmp_path / "none.arrow")
