"""Batches: one global order, whatever the processes; every token predicted once in an epoch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines.errors import UserError
from pipelines.tokens import open_tokens
from tests.trainer import small
from trainer.batches import GlueBatches, GlueRows, Permutation, PretrainBatches, TokenStream, micro_batches, share

SIZES = [1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097]


@pytest.mark.parametrize("size", SIZES)
def test_the_permutation_reaches_every_element_once(size: int) -> None:
    places = np.arange(size)
    assert sorted(Permutation(size, 3, 0)(places).tolist()) == places.tolist()


def test_permutations_of_seeds_and_epochs_differ_and_mix_well() -> None:
    places = np.arange(4097)
    orders = [Permutation(4097, seed, epoch)(places) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    for order in orders:
        assert abs(np.corrcoef(order, places)[0, 1]) < 0.05
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
    assert (orders[0] == orders[1]).mean() < 0.01
    assert (orders[0] == orders[2]).mean() < 0.01


def test_the_permutation_is_computed_place_by_place() -> None:
    order = Permutation(10**12, 5)
    places = np.array([0, 7, 10**12 - 1])
    assert order(places).tolist() == [int(order(places[i : i + 1])[0]) for i in range(3)]
    assert (order(places) < 10**12).all()


@pytest.fixture
def batches(tmp_path: Path) -> PretrainBatches:
    return PretrainBatches(TokenStream(small.write_stream(tmp_path / "tokens")), 16, 12, seed=4)


def test_the_stream_reads_across_shards(tmp_path: Path) -> None:
    folder = small.write_stream(tmp_path / "tokens")
    stream = TokenStream(folder)
    whole = np.concatenate([shard.tokens for shard in open_tokens(folder)])
    assert len(stream) == len(whole)
    for start in range(0, len(whole) - 50, 13):
        assert stream.read(start, 50).tolist() == whole[start : start + 50].tolist()
    assert stream.read(0, len(whole)).tolist() == whole.tolist()


def test_an_epoch_predicts_every_token_once(batches: PretrainBatches) -> None:
    whole = batches.stream.read(0, len(batches.stream))
    batch = batches.collate(np.arange(batches.samples))
    order = np.argsort([row[0] for row in _starts(batches)])
    targets = batch.targets[order].flatten().tolist()
    assert targets == whole[1 : 1 + batches.samples * 16].tolist()
    assert torch.equal(batch.ids[:, 1:], batch.targets[:, :-1])


def _starts(batches: PretrainBatches) -> list[tuple[int, int]]:
    from trainer.batches import shuffled

    elements = shuffled(np.arange(batches.samples), batches.samples, batches.seed)
    return [(int(element), place) for place, element in enumerate(elements)]


@pytest.mark.parametrize("position", [0, 12, 480, 1201])
@pytest.mark.parametrize(("ranks", "micro"), [(1, 0), (2, 0), (3, 2), (4, 1), (5, 0)])
def test_the_global_batch_does_not_depend_on_the_processes(
    batches: PretrainBatches, position: int, ranks: int, micro: int
) -> None:
    """Also past the end of an epoch: some of these positions lie in later ones."""
    places = batches.places(position)
    whole = batches.collate(places)
    parts = [batch for rank in range(ranks) for batch in micro_batches(batches, share(places, rank, ranks), micro)]
    assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
    assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)
    assert torch.equal(torch.cat([part.rows for part in parts]), torch.arange(position, position + 12))


def test_a_resumed_run_sees_the_batches_it_would_have_seen(tmp_path: Path, batches: PretrainBatches) -> None:
    again = PretrainBatches(TokenStream(tmp_path / "tokens"), 16, 12, seed=4)
    position = 0
    for step in range(8):
        if step == 5:
            assert torch.equal(again.collate(again.places(position)).ids, batches.collate(batches.places(position)).ids)
        position += len(batches.places(position))
    assert position == 8 * 12


def test_too_few_tokens_are_refused(tmp_path: Path) -> None:
    stream = TokenStream(small.write_stream(tmp_path / "tokens"))
    with pytest.raises(UserError, match="fewer than one sample of 2001"):
        PretrainBatches(stream, 2000, 1, seed=0)


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
        places = batches.places(position)
        sizes.append(len(places))
        seen.append(batches.collate(places).ids.sum().item())
        position += len(places)
    assert sizes == [*[8] * 12, 5] * 2
    assert position == 202
    assert seen[:13] != seen[13:]
    assert batches.tokens(batches.places(0)) == int(rows.lengths[batches._elements(batches.places(0))].sum())


def test_rows_that_a_model_cannot_learn_from_are_refused(tmp_path: Path, rows: GlueRows) -> None:
    rows.check(32)
    with pytest.raises(UserError, match=r"row \d+ has 30 tokens but the model has 20 positions"):
        rows.check(20)
    rows.labels = rows.labels - 1
    with pytest.raises(UserError, match="labels from -1 to 0, expected 0 to 1"):
        rows.check(32)
    with pytest.raises(UserError, match="no such file"):
        GlueRows(tmp_path / "test.arrow")
    (tmp_path / "broken.arrow").write_bytes(b"ARROW1 but no more")
    with pytest.raises(UserError, match="not a readable Arrow file"):
        GlueRows(tmp_path / "broken.arrow")
