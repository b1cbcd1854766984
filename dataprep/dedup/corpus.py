"""The documents that a search covers: their numbers, which of them are old, and which pairs it looks for.

A document's number is its position in the whole corpus: the first number of its shard plus its row. The
documents of old crawls, known by their fingerprints, come first; the new ones follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Against = Literal["both", "old", "joint"]
"""`both`: compare new documents with old ones and with each other; `old`: with old ones only; `joint`: compare old
ones with each other too, as if all were one corpus."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """`first[i]` is the number of the first document of shard i; the last entry is the number of documents."""

    first: tuple[int, ...]
    names: tuple[str, ...]
    """The fingerprint folder of each shard; empty for a shard of the input."""
    num_old: int
    """Documents with a lower number are old."""
    against: Against

    @classmethod
    def of(cls, rows: Sequence[int], names: Sequence[str] = (), against: Against = "both") -> "Corpus":
        """Return the corpus of shards with `rows[i]` rows each; the first `len(names)` of them are old."""
        first = (0, *np.cumsum(rows, dtype=np.int64).tolist())
        return cls(first, (*names, *[""] * (len(rows) - len(names))), first[len(names)], against)

    @property
    def num_documents(self) -> int:
        """Number of documents in all shards."""
        return self.first[-1]

    def compares(self, a: Array, b: Array) -> Array:
        """Return whether documents a[i] and b[i] are a pair to look for, for each i."""
        low, high = np.minimum(a, b), np.maximum(a, b)
        if self.against == "old":
            return (high >= self.num_old) & (low < self.num_old)
        return np.ones(len(low), dtype=bool) if self.against == "joint" or not self.num_old else high >= self.num_old

    def compares_any(self, members: Array) -> bool:
        """Return whether there is such a pair among two or more documents, given in order."""
        return bool(self.compares(members[:1], members[-1:])[0])

    def can_be_duplicate(self, numbers: Array) -> Array:
        """Return which documents may be removed as a duplicate of another."""
        return np.full(len(numbers), True) if self.against == "joint" else numbers >= self.num_old

    def can_be_survivor(self, numbers: Array) -> Array:
        """Return which documents may survive another that is removed as their duplicate."""
        return numbers < self.num_old if self.against == "old" else np.full(len(numbers), True)
