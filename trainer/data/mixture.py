"""Several corpora by weight: the corpus of a sample is a pure function of the sample's id.

Every block of 2^16 ids has the same pattern, in which each corpus has its share to 1 in 65,536, spread evenly: any run
of ids has each corpus's share, give or take a sample. Each corpus goes through its own epochs, each with its own
permutation.
"""

from collections.abc import Sequence

import numpy as np

from pipelines.errors import ConfigError
from trainer.data.order import Ids, Permutation, shuffled

BLOCK = 2**16
AHEAD = 2**14


class Mixture:
    """Maps the ids of a run to a corpus and a sample of it."""

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

    def __call__(self, sample_ids: Ids) -> tuple[Ids, Ids]:
        """Return the corpus of each sample, and its index in that corpus.

        A permutation of a few ids costs as much as one of thousands, so the next ids are computed too and kept.
        """
        if not len(sample_ids) or int(sample_ids.max() - sample_ids.min()) >= AHEAD:
            return self._compute(sample_ids)
        start, corpora, elements = self._known
        if not start <= sample_ids.min() <= sample_ids.max() < start + len(corpora):
            start = int(sample_ids.min())
            corpora, elements = self._compute(np.arange(start, start + AHEAD))
            self._known = start, corpora, elements  # in one assignment: a thread that reads ahead calls this too
        return corpora[sample_ids - start], elements[sample_ids - start]

    def ids_of(self, corpus: int, elements: Ids, end: int) -> Ids:
        """Return every sample id below `end` that maps to one of these samples of a corpus, in order."""
        size, many = self.sizes[corpus], len(self.sizes) > 1
        inside = np.flatnonzero(self._corpora == corpus) if many else np.zeros(1, np.int64)
        drawn = (end // BLOCK + 1) * self.counts[corpus] if many else end  # samples of the corpus, at most
        keys = (corpus,) if many else ()
        numbers = [
            epoch * size + Permutation(size, self.seed, epoch, *keys).index(elements)
            for epoch in range(-(-drawn // size))
        ]
        ids = np.concatenate([np.empty(0, np.int64), *numbers])
        if many:
            blocks, ranks = np.divmod(ids, self.counts[corpus])
            ids = blocks * BLOCK + inside[ranks]
        return np.sort(ids[ids < end])

    def _compute(self, sample_ids: Ids) -> tuple[Ids, Ids]:
        if len(self.sizes) == 1:
            return np.zeros_like(sample_ids), shuffled(sample_ids, self.sizes[0], self.seed)
        blocks, inside = np.divmod(sample_ids, BLOCK)
        corpora = self._corpora[inside]
        elements = blocks * np.array(self.counts)[corpora] + self._ranks[inside]
        for corpus in np.unique(corpora).tolist():
            mask = corpora == corpus
            elements[mask] = shuffled(elements[mask], self.sizes[corpus], self.seed, corpus)
        return corpora, elements


def _apportion(weights: Sequence[float]) -> list[int]:
    """Return the number of ids of a block for each corpus, by largest remainders."""
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
