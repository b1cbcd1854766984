"""MinHash signatures, equal bit for bit to `datasketch.MinHash(scheme="affine32")`.

A shingle's 64-bit hash is cut to its low 32 bits, passed once through MurmurHash3's finalizer, and
permuted as a*h + b modulo 2^32; a signature holds the minimum of each permutation. Equality with
datasketch's own class, given the same shingles and hash function, is a test.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataprep.shingles import mix

Array = np.ndarray[Any, Any]

_BLOCK = 512
"""Shingles per block: with 128 permutations 256 KiB, which stays in the cache (512 measured best of 64 to 1024)."""


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


def sign(shingles: Iterable[Array], permutations: Permutations) -> Array:
    """The signature of each set of shingle hashes: (num_texts, num_perm) uint32.

    A text without shingles has the empty signature, all bits set.
    """
    a, b = permutations.a[:, None], permutations.b[:, None]
    permuted = np.empty((len(a), _BLOCK), dtype=np.uint32)
    signatures: list[Array] = []
    for hashes in shingles:
        mixed = finalize(hashes.astype(np.uint32))
        signature = np.full(len(a), 2**32 - 1, dtype=np.uint32)
        for start in range(0, len(mixed), _BLOCK):
            block = mixed[start : start + _BLOCK]
            values = permuted[:, : len(block)]
            np.multiply(a, block, out=values)
            np.add(values, b, out=values)
            np.minimum(signature, values.min(axis=1), out=signature)
        signatures.append(signature)
    return np.stack(signatures) if signatures else np.empty((0, len(a)), dtype=np.uint32)


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
    return (signatures == np.uint32(2**32 - 1)).all(axis=1)


def band_hashes(signatures: Array, bands: int, rows: int) -> Array:
    """A 64-bit hash of each band of `rows` values: (num_texts, bands) uint64."""
    values = signatures[:, : bands * rows].reshape(len(signatures), bands, rows)
    state = np.zeros((len(signatures), bands), dtype=np.uint64)
    for row in range(rows):
        state = mix(state ^ values[:, :, row])
    return state


def estimate_jaccard(signature: Array, others: Array) -> Array:
    """Share of equal values: one signature against (num_others, num_perm)."""
    return np.count_nonzero(others == signature, axis=1) / len(signature)
