"""GLUE rows: padded on the right, each once in an epoch."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import UserError
from tests.trainer import small
from trainer.data.glue import GlueBatches, GlueRows


@pytest.fixture
def rows(tmp_path: Path) -> GlueRows:
    tokenizer = small.write_tokenizer(tmp_path / "tokenizer")
    return GlueRows(small.write_glue(tmp_path / "glue", tokenizer, {"train": 101}) / "train.arrow")


def test_glue_rows_are_padded_on_the_right_to_the_longest(rows: GlueRows) -> None:
    ids, last, labels = rows.collate([5, 60, 100], pad=300)
    lengths = rows.lengths[[5, 60, 100]]
    assert ids.shape == (3, lengths.max())
    assert last.tolist() == (lengths - 1).tolist()
    for row, element in enumerate([5, 60, 100]):
        expected = rows.tokens[rows.offsets[element] : rows.offsets[element + 1]].tolist()
        assert ids[row, : len(expected)].tolist() == expected
        assert (ids[row, len(expected) :] == 300).all()
    assert labels.tolist() == rows.labels[[5, 60, 100]].tolist()


def test_an_epoch_of_glue_has_each_row_once_and_keeps_its_last_batch(rows: GlueRows) -> None:
    batches = GlueBatches(rows, 8, pad=300, seed=1)
    sizes, seen, position = [], [], 0
    for _ in range(2 * batches.steps_per_epoch):
        sample_ids = batches.sample_ids(position)
        sizes.append(len(sample_ids))
        seen.append(batches.collate(sample_ids).ids.sum().item())
        position += len(sample_ids)
    assert sizes == [*[8] * 12, 5] * 2
    assert position == 202
    assert seen[:13] != seen[13:]
    assert batches.tokens(batches.sample_ids(0)) == int(rows.lengths[batches._elements(batches.sample_ids(0))].sum())


def test_rows_that_a_model_cannot_learn_from_are_refused(tmp_path: Path, rows: GlueRows) -> None:
    rows.check(32)
    with pytest.raises(UserError, match=r"row \d+ has 30 tokens but the model has 20 positions"):
        rows.check(20)
    rows.labels = rows.labels - 1
    with pytest.raises(UserError, match="labels from -1 to 0, expected 0 to 1"):
        rows.check(32)
    rows.labels = rows.labels + 1
    rows.tokens[rows.offsets[7] + 1] = 301
    with pytest.raises(UserError, match="row 7 has an id that is not from 0 to 300"):
        rows.check(32)
    with pytest.raises(UserError, match="no such file"):
        GlueRows(tmp_path / "test.arrow")
    (tmp_path / "broken.arrow").write_bytes(b"ARROW1 but no more")
    with pytest.raises(UserError, match="not a readable Arrow file"):
        GlueRows(tmp_path / "broken.arrow")


def test_no_flipped_byte_makes_anything_but_a_clear_error(rows: GlueRows) -> None:
    data, rng, refused = rows.path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(200):
        flipped = bytearray(data)
        flipped[rng.integers(len(data))] ^= 1 << rng.integers(8)
        rows.path.write_bytes(flipped)
        with contextlib.suppress(UserError):
            GlueRows(rows.path).check(32)
            refused -= 1
        refused += 1
    assert refused
