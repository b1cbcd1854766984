"""MinHash signatures, equal bit for bit to `datasketch.MinHash(scheme="affine32")`.

A shingle's 64-bit hash is cut to its low 32 bits, passed once through MurmurHash3's finalizer, and
permuted as a*h + b modulo 2^32; a signature holds the minimum of each permutation. Equality with
datasketch's own class, given the same shingles and hash function, is a test.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dataprep.dedup.long_texts import pieces_of
from dataprep.dedup.shingles import Shingle, Shingles, find_shingles, has_long, mix
from dataprep.native.kernel import kernel
from dataprep.text.folding import Texts

Array = np.ndarray[Any, Any]

EMPTY = 2**32 - 1
_BLOCK = 12_288
_ROWS = 16
"""Shingles times permutations at once: 768 KiB, so that a block stays in the second-level cache."""


@dataclass(frozen=True, slots=True)
class Permutations:
    """h -> a*h + b modulo 2^32, `a` odd: (num_perm,) uint32 each."""

    a: Array
    b: Array

    @classmethod
    def draw(cls, num_perm: int, seed: int) -> "Permutations":
        """The permutations that datasketch 2 draws for this seed."""
        generator = np.random.RandomState(seed)
        a = generator.randint(0, 1 << 31, num_perm, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
        return cls(a, generator.randint(0, 1 << 32, num_perm, dtype=np.uint32))


def sign_texts(texts: Texts, shingle: Shingle, permutations: Permutations) -> Array:
    """The signature of each text: (num_texts, num_perm) uint32."""
    if native := kernel():
        return native.sign(texts.spans, shingle.unit, shingle.size, permutations.a, permutations.b)
    if not has_long(texts, shingle):
        return sign(find_shingles(texts, shingle), permutations)
    signatures = np.full((len(texts), len(permutations.a)), EMPTY, dtype=np.uint32)
    for number, signature in enumerate(signatures):
        for piece in pieces_of(texts, number, shingle.size):
            np.minimum(signature, sign(find_shingles(piece, shingle), permutations)[0], out=signature)
    return signatures


def sign(shingles: Shingles, permutations: Permutations) -> Array:
    """The signature of each text's shingles: (num_texts, num_perm) uint32.

    A text without shingles has the empty signature, all bits set.
    """
    starts, ends = shingles.first[:-1], shingles.first[1:]
    signatures = np.full((len(starts), len(permutations.a)), EMPTY, dtype=np.uint32)
    filled = np.flatnonzero(ends > starts)
    starts, ends = starts[filled], ends[filled]
    mixed = finalize(shingles.hashes.astype(np.uint32))
    for low in range(0, len(mixed), _BLOCK):
        # The texts with shingles in this block; one that began in an earlier block is merged by the minimum.
        texts = slice(np.searchsorted(ends, low, side="right"), np.searchsorted(starts, low + _BLOCK))
        minima = _block_minima(mixed[low : low + _BLOCK], np.maximum(starts[texts] - low, 0), permutations)
        signatures[filled[texts]] = np.minimum(signatures[filled[texts]], minima)
    return signatures


def _block_minima(block: Array, starts: Array, permutations: Permutations) -> Array:
    """Least value of each permutation on each run of `block` from `starts[i]`: (num_runs, num_perm)."""
    minima = np.empty((len(permutations.a), len(starts)), dtype=np.uint32)
    for first in range(0, len(permutations.a), _ROWS):
        some = slice(first, first + _ROWS)
        values = permutations.a[some, None] * block
        values += permutations.b[some, None]
        np.minimum.reduceat(values, starts, axis=1, out=minima[some])
    return minima.T


def finalize(values: Array) -> Array:
    """MurmurHash3's 32-bit finalizer, a bijection of uint32."""
    values = values ^ (values >> np.uint32(16))
    values *= np.uint32(0x85EBCA6B)
    values ^= values >> np.uint32(13)
    values *= np.uint32(0xC2B2AE35)
    values ^= values >> np.uint32(16)
    return values


def is_empty(signatures: Array) -> Array:
    """Which signatures are of texts without shingles: (num_texts,) bool."""
    return (signatures == np.uint32(EMPTY)).all(axis=1)


def band_hashes(signatures: Array, bands: int, rows: int) -> Array:
    """A 64-bit hash of each band of `rows` values: (num_texts, bands) uint64."""
    values = signatures[:, : bands * rows].reshape(len(signatures), bands, rows)
    state = np.zeros((len(signatures), bands), dtype=np.uint64)
    for row in range(rows):
        state = mix(state ^ values[:, :, row])
    return state
