"""The global order of samples: a pure function of (seed, epoch, id), the same for any number of processes.

The position in a run is one integer, the number of samples consumed; a sample's id is the position at which it comes. A
global batch consists of the samples with the next ids, and each process takes its slice. Memory does not grow with the
data, and a run can resume at any position.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Ids = np.ndarray[Any, np.dtype[np.int64]]
_ROUNDS = 6


def local_slice(sample_ids: Ids, rank: int, ranks: int) -> Ids:
    """Return the slice of a global batch that data-parallel process `rank` of `ranks` works on."""
    return sample_ids[len(sample_ids) * rank // ranks : len(sample_ids) * (rank + 1) // ranks]


def split(sample_ids: Ids, size: int) -> list[Ids]:
    """Split ids into forward passes of `size` samples; 0: all at once."""
    step = size or max(1, len(sample_ids))
    return [sample_ids[start : start + step] for start in range(0, len(sample_ids), step)]


def ragged(starts: Ids, lengths: Ids) -> Ids:
    """Concatenate ranges into one index: starts[0], starts[0]+1, ... (lengths[0] of them), starts[1], ..."""
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

    def __call__(self, indices: Ids) -> Ids:
        """Return the elements at these indices, each in 0..size-1."""
        values = self._encrypt(indices.astype(np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._encrypt(values[outside])
        return values.astype(np.int64)

    def index(self, elements: Ids) -> Ids:
        """Return the indices at which these elements stand: the way back."""
        values = self._decrypt(elements.astype(np.uint64))
        while (outside := values >= self.size).any():
            values[outside] = self._decrypt(values[outside])
        return values.astype(np.int64)

    def _encrypt(self, values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        mask = (np.uint64(1) << self._half) - np.uint64(1)
        left, right = values >> self._half, values & mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << self._half) | right

    def _decrypt(self, values: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
        mask = (np.uint64(1) << self._half) - np.uint64(1)
        left, right = values >> self._half, values & mask
        for key in reversed(self._keys):
            left, right = right ^ (_mix(left + key) & mask), left
        return (left << self._half) | right


def _mix(x: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    # The finalizer of splitmix64 (Steele, Lea and Flood, 2014).
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def shuffled(sample_ids: Ids, size: int, seed: int, *keys: int) -> Ids:
    """Return the element for each sample id; ids run through endless epochs, each with its own permutation."""
    elements = np.empty_like(sample_ids)
    for epoch in np.unique(sample_ids // size).tolist():
        in_epoch = sample_ids // size == epoch
        elements[in_epoch] = Permutation(size, seed, epoch, *keys)(sample_ids[in_epoch] % size)
    return elements
