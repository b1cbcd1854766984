"""The global order of samples: a pure function of (seed, epoch, place), the same for any number of processes.

The place in a run is one integer, the number of samples consumed. A global batch is the samples at the next
places; each process takes its slice. Nothing here needs memory that grows with the data, and it resumes anywhere.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Ids = np.ndarray[Any, np.dtype[np.int64]]
_ROUNDS = 6


def share(places: Ids, rank: int, ranks: int) -> Ids:
    """The slice of a global batch that data-parallel process `rank` of `ranks` works on."""
    return places[len(places) * rank // ranks : len(places) * (rank + 1) // ranks]


def split(places: Ids, size: int) -> list[Ids]:
    """Places in forward passes of `size` samples; 0: all at once."""
    step = size or max(1, len(places))
    return [places[start : start + step] for start in range(0, len(places), step)]


def ragged(starts: Ids, lengths: Ids) -> Ids:
    """starts[0], starts[0]+1, ... (lengths[0] of them), starts[1], ...: many ranges as one index."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


class Permutation:
    """A seeded permutation of 0..size-1, computed element by element.

    A Feistel network over the next even power of two, walked until the value falls inside (cycle walking:
    Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002): at most 4 rounds of it on average.
    """

    def __init__(self, size: int, *keys: int) -> None:
        self.size = size
        self._half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        seed = np.random.SeedSequence(keys).generate_state(_ROUNDS, np.uint64)
        self._keys: list[np.uint64] = list(seed)

    def __call__(self, places: Ids) -> Ids:
        """The elements at `places`, each in 0..size-1."""
        values = self._encrypt(places.astype(np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._encrypt(values[outside])
        return values.astype(np.int64)

    def _encrypt(self, values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        mask = (np.uint64(1) << self._half) - np.uint64(1)
        left, right = values >> self._half, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << self._half) | right


def _mix(x: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    # The finalizer of splitmix64 (Steele, Lea and Flood, 2014).
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def shuffled(places: Ids, size: int, seed: int, *keys: int) -> Ids:
    """The element at each place of an endless run of epochs, each a permutation of its own."""
    elements = np.empty_like(places)
    for epoch in np.unique(places // size).tolist():
        here = places // size == epoch
        elements[here] = Permutation(size, seed, epoch, *keys)(places[here] % size)
    return elements
