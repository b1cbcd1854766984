"""Positions and rows that only fill a batch up change neither its loss nor its gradients."""

from collections.abc import Callable

import pytest
import torch

from tests.trainer.small import MODEL, initialise
from trainer.data.batch import Batch, Rounding
from trainer.loss import IGNORED
from trainer.model import Architecture, Classifier, LanguageModel

SHAPE = Architecture.of(MODEL, vocab_size=61)
ROWS = torch.tensor([4, 7, 9])


def language_batch() -> Batch:
    ids = torch.arange(3 * 13).reshape(3, 13)
    starts = torch.tensor([0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 11, 11]).expand(3, -1)
    return Batch(ids, ROWS, ids + 1, starts=starts)


def glue_batch(num_labels: int) -> Batch:
    labels = torch.tensor([0.5, 3.0, 2.0], dtype=torch.float64) if num_labels == 1 else torch.tensor([1, 0, 2])
    return Batch(torch.arange(3 * 13).reshape(3, 13), ROWS, labels, last=torch.tensor([12, 3, 8]))


KINDS = {"language": language_batch, "classes": lambda: glue_batch(3), "regression": lambda: glue_batch(1)}


def loss_and_gradients(kind: str, batch: Batch) -> dict[str, torch.Tensor]:
    """With dropout: what fills a batch must not change the masks either."""
    labels = {"language": 0, "classes": 3, "regression": 1}[kind]
    shape = Architecture(**{**SHAPE.record(), "num_labels": labels, "dropout": 0.2})
    model = Classifier(shape) if labels else LanguageModel(shape)
    initialise(model, 0)
    loss = model(batch.ids, **batch.inputs())
    loss.backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return {"loss": loss.detach(), **gradients}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(
    "fill",
    [
        lambda batch: batch.padded(8),
        lambda batch: batch.filled(5),
        lambda batch: batch.padded(4).filled(4),
        lambda batch: Rounding(32, 20).rounded(batch, 8),
    ],
    ids=["padded", "filled", "both", "rounded"],
)
def test_a_filled_up_batch_has_the_loss_and_gradients_of_the_batch(kind: str, fill: Callable[[Batch], Batch]) -> None:
    batch = KINDS[kind]()
    found, expected = loss_and_gradients(kind, fill(batch)), loss_and_gradients(kind, batch)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-5, rtol=1e-5, msg=name)


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_ignored_batch_counts_for_nothing(kind: str) -> None:
    batch = KINDS[kind]()
    for name, value in loss_and_gradients(kind, batch.ignored()).items():
        assert not value.any(), name
    assert (batch.ignored().targets == IGNORED).all()
    assert batch.ignored().targets.dtype == batch.targets.dtype


def test_sizes_are_the_asked_ones_and_what_fits_is_the_batch_itself() -> None:
    batch, glue = language_batch(), glue_batch(1)
    assert batch.padded(13) is batch
    assert batch.padded(1) is batch
    assert batch.filled(3) is batch
    assert batch.padded(8).ids.shape == batch.padded(8).targets.shape == (3, 16)
    both = batch.padded(8).filled(4)
    assert both.starts is not None
    assert (both.ids.shape, both.targets.shape, both.starts.shape, both.rows.shape) == (*[(4, 16)] * 3, (4,))
    wider = glue.padded(8).filled(4)
    assert wider.last is not None
    assert (wider.ids.shape, wider.targets.shape, wider.last.shape) == ((4, 16), (4,), (4,))
    assert wider.last[:3].tolist() == [12, 3, 8]
    assert wider.targets.tolist() == [0.5, 3.0, 2.0, IGNORED]


@pytest.mark.parametrize(
    ("multiple", "most", "length"), [(8, 32, 16), (13, 32, 13), (32, 32, 32), (32, 20, 20), (32, 13, 13)]
)
def test_a_batch_is_rounded_up_to_the_models_positions_at_most(multiple: int, most: int, length: int) -> None:
    rounded = Rounding(multiple, most).rounded(glue_batch(3), 5)
    assert rounded.ids.shape == (5, length)
    assert rounded.targets.tolist() == [1, 0, 2, IGNORED, IGNORED]
    assert [len(tensor) for tensor in rounded.tensors()] == [5] * 4
    assert Rounding(multiple, most).rounded(glue_batch(3)).ids.shape == (3, length)
