"""Which documents are searched: their numbers, which are old, and which pairs are looked for.

A document's number is its place in the whole corpus: the first number of its shard plus its row. The
documents of old crawls, known by their fingerprints, come first; the new ones follow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Against = Literal["both", "old", "joint"]
"""`both`: new documents with old ones and with each other; `old`: with old ones only; `joint`: old ones with
each other too, as if all were one corpus."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """`first[i]` is the number of the first document of shard i; the last entry is how many there are."""

    first: tuple[int, ...]
    names: tuple[str, ...]
    """Of each shard the fingerprint folder that it is in; empty for a shard of the input."""
    num_old: int
    """Documents with a lower number are old."""
    against: Against

    @classmethod
    def of(cls, rows: Sequence[int], names: Sequence[str] = (), against: Against = "both") -> "Corpus":
        """Shards with so many rows each; the first of them, as many as `names`, are old."""
        first = (0, *np.cumsum(rows, dtype=np.int64).tolist())
        return cls(first, (*names, *[""] * (len(rows) - len(names))), first[len(names)], against)

    @property
    def num_documents(self) -> int:
        """Documents in all shards."""
        return self.first[-1]

    def compares(self, a: Array, b: Array) -> Array:
        """Whether documents a[i] and b[i] are a pair to look for."""
        low, high = np.minimum(a, b), np.maximum(a, b)
        if self.against == "old":
            return (high >= self.num_old) & (low < self.num_old)
        return np.ones(len(low), dtype=bool) if self.against == "joint" or not self.num_old else high >= self.num_old

    def compares_any(self, members: Array) -> bool:
        """Whether there is such a pair among these documents, which are two or more and in order."""
        return bool(self.compares(members[:1], members[-1:])[0])

    def may_lose(self, numbers: Array) -> Array:
        """Which of these documents may be taken for a duplicate of another."""
        return np.full(len(numbers), True) if self.against == "joint" else numbers >= self.num_old

    def may_win(self, numbers: Array) -> Array:
        """Which of these documents may have duplicates."""
        return numbers < self.num_old if self.against == "old" else np.full(len(numbers), True)
