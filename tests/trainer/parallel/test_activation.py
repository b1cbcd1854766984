"""Activation checkpointing: what is kept for the backward pass."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from trainer.config import ParallelConfig
from trainer.model import Architecture, LanguageModel
from trainer.parallel import checkpoint_activations

SHAPE = Architecture(n_layer=4, n_head=2, n_embd=32, n_positions=16, vocab_size=61, dropout=0.1)


def kept(**layout: Any) -> tuple[int, list[torch.Tensor]]:
    """Bytes that a forward pass keeps, weights not counted, and the gradients that follow."""
    torch.manual_seed(0)
    model = LanguageModel(SHAPE)
    checkpoint_activations(model, ParallelConfig(**layout))
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    storages: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.arange(8 * 16).view(8, 16) % 61
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = model(ids, ids, torch.arange(8))
    loss.backward()
    return sum(storages.values()), [weight.grad for weight in model.parameters() if weight.grad is not None]


def test_less_is_kept_and_gradients_are_equal_to_the_bit() -> None:
    everything, expected = kept()
    sizes: list[int] = []
    for layout in ({"checkpoint_every": 2}, {}):
        size, gradients = kept(activation_checkpointing="full", **layout)
        sizes.append(size)
        assert len(gradients) == len(expected)
        assert all(torch.equal(found, other) for found, other in zip(gradients, expected, strict=True))
    assert everything > 1.5 * sizes[0] > 1.5 * sizes[1]


@pytest.mark.parametrize("every", [1, 2])
def test_selective_computes_no_matrix_product_again(every: int) -> None:
    _, expected = kept()
    products: dict[str, int] = {}
    for kind in ("none", "selective", "full"):
        with FlopCounterMode(display=False) as counter:
            _, gradients = kept(activation_checkpointing=kind, checkpoint_every=every)
        products[kind] = counter.get_total_flops()
        assert all(torch.equal(found, other) for found, other in zip(gradients, expected, strict=True))
    assert products["none"] == products["selective"] < products["full"]
