"""The global order: a permutation computed place by place, and slices of it."""

import numpy as np
import pytest

from trainer.data.order import Permutation, local_slice, ragged, split

SIZES = [1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097]


@pytest.mark.parametrize("size", SIZES)
def test_the_permutation_reaches_every_element_once(size: int) -> None:
    sample_ids = np.arange(size)
    assert sorted(Permutation(size, 3, 0)(sample_ids).tolist()) == sample_ids.tolist()


def test_permutations_of_seeds_and_epochs_differ_and_mix_well() -> None:
    sample_ids = np.arange(4097)
    orders = [Permutation(4097, seed, epoch)(sample_ids) for seed, epoch in [(0, 0), (0, 1), (1, 0)]]
    for order in orders:
        assert abs(np.corrcoef(order, sample_ids)[0, 1]) < 0.05
        assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 0.05
    assert (orders[0] == orders[1]).mean() < 0.01
    assert (orders[0] == orders[2]).mean() < 0.01


def test_the_permutation_is_computed_place_by_place() -> None:
    order = Permutation(10**12, 5)
    sample_ids = np.array([0, 7, 10**12 - 1])
    assert order(sample_ids).tolist() == [int(order(sample_ids[i : i + 1])[0]) for i in range(3)]
    assert (order(sample_ids) < 10**12).all()


@pytest.mark.parametrize("size", SIZES)
def test_the_way_back_of_a_permutation_leads_to_the_index(size: int) -> None:
    order, indices = Permutation(size, 3, 1), np.arange(size)
    assert order.index(order(indices)).tolist() == indices.tolist()


def test_the_shares_of_all_processes_are_the_batch_also_when_they_are_uneven() -> None:
    sample_ids = np.arange(7)
    for ranks in range(1, 10):
        parts = [part for rank in range(ranks) for part in split(local_slice(sample_ids, rank, ranks), 2)]
        assert np.concatenate(parts).tolist() == sample_ids.tolist()
        assert max(len(part) for part in parts) <= 2


def test_ranges_become_one_index() -> None:
    assert ragged(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
