"""Several corpora by weight: which corpus a place of the run belongs to, as a pure function of the place.

Every block of 2^16 places has the same pattern, in which each corpus has its share to 1 in 65,536, spread evenly:
any run of places has each corpus's share of them, give or take a sample. Within its own places, a corpus goes
through its epochs, each a permutation of its own.
"""

from collections.abc import Sequence

import numpy as np

from pipelines.errors import ConfigError
from trainer.loader.order import Ids, shuffled

BLOCK = 2**16
AHEAD = 2**14


class Mixture:
    """Places of the run -> corpus and sample in it."""

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int) -> None:
        """`sizes`: samples of each corpus. `weights`: their shares, in any unit."""
        self.sizes = list(sizes)
        self.seed = seed
        self.counts = _apportion(weights)
        spread = np.concatenate([(np.arange(count) + 0.5) / count for count in self.counts])
        order = np.argsort(spread, kind="stable")
        self._corpora: Ids = np.repeat(np.arange(len(self.counts)), self.counts)[order]
        self._ranks: Ids = np.concatenate([np.arange(count) for count in self.counts])[order]

        self._known: tuple[int, Ids, Ids] = (0, np.empty(0, np.int64), np.empty(0, np.int64))

    def __call__(self, places: Ids) -> tuple[Ids, Ids]:
        """The corpus of each place, and the sample of it.

        A permutation of a few places costs as much as one of thousands, so some that will be asked for are kept.
        """
        if not len(places) or int(places.max() - places.min()) >= AHEAD:
            return self._compute(places)
        start, corpora, elements = self._known
        if not start <= places.min() <= places.max() < start + len(corpora):
            start = int(places.min())
            corpora, elements = self._compute(np.arange(start, start + AHEAD))
            self._known = start, corpora, elements  # at once: a thread that reads ahead asks too
        return corpora[places - start], elements[places - start]

    def _compute(self, places: Ids) -> tuple[Ids, Ids]:
        if len(self.sizes) == 1:
            return np.zeros_like(places), shuffled(places, self.sizes[0], self.seed)
        blocks, inside = np.divmod(places, BLOCK)
        corpora = self._corpora[inside]
        elements = blocks * np.array(self.counts)[corpora] + self._ranks[inside]
        for corpus in np.unique(corpora).tolist():
            here = corpora == corpus
            elements[here] = shuffled(elements[here], self.sizes[corpus], self.seed, corpus)
        return corpora, elements


def _apportion(weights: Sequence[float]) -> list[int]:
    """How many places of a block each corpus has: largest remainders."""
    exact = np.array(weights, np.float64) / sum(weights) * BLOCK
    counts = np.floor(exact).astype(np.int64)
    missing = BLOCK - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    if not counts.all():
        raise ConfigError(
            f"pretrain.mixture_weights: {weights[int(counts.argmin())]:g} is less than 1 in {BLOCK} of the whole: "
            "raise it, or leave that corpus out"
        )
    return counts.tolist()
