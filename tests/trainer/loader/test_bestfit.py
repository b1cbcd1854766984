"""Best-fit-decreasing: the same rows as the textbook's loop, many pieces at a time."""

import numpy as np
import pytest

from trainer.loader.bestfit import best_fit_decreasing


def one_by_one(lengths: list[int], capacity: int) -> list[int]:
    """Room left in each row of the textbook's algorithm."""
    room: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row, free in enumerate(room) if free >= length]
        if not fitting:
            room.append(capacity)
            fitting = [len(room) - 1]
        room[min(fitting, key=lambda row: room[row])] -= length
    return room


@pytest.mark.parametrize(("number", "capacity"), [(0, 5), (1, 5), (50, 7), (400, 17), (400, 129), (3000, 33)])
def test_the_rows_are_those_of_the_loop(number: int, capacity: int) -> None:
    for seed in range(5):
        lengths = np.random.default_rng(seed).integers(1, capacity + 1, size=number)
        if seed % 2:
            lengths = np.minimum(lengths, np.random.default_rng(seed).integers(1, capacity + 1, size=number))
        pieces, rows = best_fit_decreasing(lengths.astype(np.int32), capacity)
        assert sorted(pieces.tolist()) == list(range(number))
        used = np.bincount(rows, lengths[pieces]).astype(int) if number else np.empty(0, int)
        assert sorted((capacity - used).tolist()) == sorted(one_by_one(lengths.tolist(), capacity))


def test_a_million_pieces_take_a_moment_and_waste_next_to_nothing() -> None:
    lengths = np.minimum(np.random.default_rng(0).lognormal(5.5, 1.2, 1_000_000).astype(np.int32) + 1, 1025)
    _, rows = best_fit_decreasing(lengths, 1025)
    assert lengths.sum() / (1025 * (int(rows.max()) + 1)) > 0.99
