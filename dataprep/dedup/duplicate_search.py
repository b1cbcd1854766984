"""The search for duplicates, step by step: which files each step reads, and into how many jobs it is cut.

How many jobs there are follows from the memory budget and the workers. It is part of the jobs' names, so
that a resumed run takes up only jobs of the same cut, and no result depends on it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from dataprep.dedup import candidates, datasketch_backend, fingerprints, verification
from dataprep.dedup.banding import Banding
from dataprep.dedup.buckets import Slice, even_cuts, key_ranges, plan_name, plan_slices
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.verification import Measure
from pipelines.command import Part
from pipelines.manifest import Counts
from pipelines.run import StageRun

Backend = Literal["millrace", "datasketch"]

PAIRS_PER_JOB = 1 << 16
"""Comparisons below which a job is not worth a process of its own."""
_BYTES_PER_PAIR = 4 * candidates.EDGE.itemsize


class Search:
    """One search. Its methods are its steps, in this order; each works on the files of those before.

    `documents`: the shards of the input. `signatures`: a file for each shard of the corpus, which for an old
    one holds its fingerprints.
    """

    def __init__(
        self,
        run: StageRun,
        documents: Sequence[Part],
        signatures: Sequence[Path],
        corpus: Corpus,
        measure: Measure,
        banding: Banding,
        backend: Backend = "millrace",
    ) -> None:
        self.totals = Counts()
        self._run = run
        self._signatures = [Part(f"part-{number:05d}", (file,)) for number, file in enumerate(signatures)]
        self._num_old = len(signatures) - len(documents)
        self._documents = documents
        self._corpus = corpus
        self._measure = measure
        self._banding = banding
        self._backend = backend
        self._memory = max(_BYTES_PER_PAIR, run.memory_budget // run.workers)
        self._exact: list[Path] = []
        self._buckets: list[Path] = []
        self._verified: list[Path] = []
        self._completed: list[Path] = []
        self._sets = run.scratch / "sets"

    def run(self) -> list[Path]:
        """All steps. Returns the files of edges: exact ones in folders `exact-*`, the others near."""
        self._sort_keys()
        self._find_copies()
        if self._backend == "datasketch":
            self._find_candidates_by_datasketch()
        else:
            self._find_candidates()
        self._write_sets()
        self._verify()
        self._complete()
        return [*self._exact, *self._verified, *self._completed]

    def _sort_keys(self) -> None:
        self._run.map(candidates.sort_keys, self._signatures, self._corpus, self._banding, into="keys")

    def _keys(self, kind: str) -> list[Path]:
        return [self._run.scratch / "keys" / f"{part.name}.{kind}.npy" for part in self._signatures]

    def _plan_slices(self, kind: str, bands: int) -> tuple[Slice, ...]:
        def cuts(band: int, ranges: int) -> list[int]:
            return even_cuts([np.load(file, mmap_mode="r")[band, 0] for file in self._keys(kind)], ranges)

        return tuple(plan_slices(self._corpus.num_documents, bands, self._memory, self._run.workers, cuts))

    def _find_copies(self) -> None:
        slices = self._plan_slices("texts", 1)
        folder = plan_name("exact", slices)
        parts = _jobs(len(slices), self._keys("texts"))
        self._run.map(candidates.find_copies, parts, slices, into=folder)
        self._exact = [self._run.scratch / folder / f"{part.name}.npy" for part in parts]
        counts = self._run.step(candidates.mark_copies, "copies", self._exact, self._corpus, into="copies")
        self.totals.add(counts)

    def _find_candidates(self) -> None:
        slices = self._plan_slices("bands", self._banding.bands)
        folder = plan_name("buckets", slices)
        parts = _jobs(len(slices), [*self._keys("bands"), self._run.scratch / "copies" / "copies.npy"])
        counts = self._run.map(candidates.find_bucket_pairs, parts, slices, self._corpus, into=folder)
        self._num_pairs = counts.totals.pop("bucket_pairs")
        self.totals.add(counts)
        kinds = ("pairs", "large.members", "large.ends")
        self._buckets = [self._run.scratch / folder / f"{part.name}.{kind}.npy" for part in parts for kind in kinds]

    def _find_candidates_by_datasketch(self) -> None:
        files = [self._run.scratch / "copies" / "copies.npy", *(part.file for part in self._signatures)]
        arguments = (self._corpus, self._measure.meta, self._banding)
        counts = self._run.step(datasketch_backend.find_pairs, "datasketch", files, *arguments, into="buckets-lsh")
        self._num_pairs = counts.totals.pop("bucket_pairs")
        self._buckets = [self._run.scratch / "buckets-lsh" / "datasketch.pairs.npy"]

    def _write_sets(self) -> None:
        step = self._run.step(candidates.mark_candidates, "candidates", self._buckets, self._corpus, into="candidates")
        self.totals.add(step)
        marks = self._run.scratch / "candidates" / "candidates.npy"
        old, new = self._signatures[: self._num_old], self._signatures[self._num_old :]
        num_perm = self._measure.meta.num_perm
        parts = [Part(part.name, (part.file, marks)) for part in old]
        self._run.map(fingerprints.copy_sets, parts, self._corpus, num_perm, into="sets")
        parts = [
            Part(part.name, (*texts.files, part.file, marks)) for texts, part in zip(self._documents, new, strict=True)
        ]
        self._run.map(verification.write_sets, parts, self._corpus, self._measure.meta, into="sets")

    def _verify(self) -> None:
        pairs = [file for file in self._buckets if file.name.endswith(".pairs.npy")]
        cuts = even_cuts([np.load(file, mmap_mode="r")[:, 0] for file in pairs], self._share_out(self._num_pairs))
        slices = tuple(key_ranges(cuts))
        folder, parts = plan_name("verified", slices), _jobs(len(slices), pairs)
        arguments = (slices, self._corpus, self._measure, self._sets)
        self.totals.add(self._run.map(verification.verify_pairs, parts, *arguments, into=folder))
        self._verified = [self._run.scratch / folder / f"{part.name}.npy" for part in parts]

    def _complete(self) -> None:
        files = [*(part.file for part in self._signatures), *self._verified, *self._exact, *self._buckets]
        arguments = (self._corpus, self._measure, self._sets)
        memory = self._run.memory_budget
        counts = self._run.step(verification.find_clusters, "clusters", files, *arguments, memory, into="clusters")
        comparisons = counts.totals.pop("cluster_pairs")
        self.totals.add(counts)
        clusters = self._run.scratch / "clusters"
        names = ["clusters", *(f"order-{rule}" for rule in self._measure.rules)]
        lists = [clusters / f"{name}.{kind}.npy" for name in names for kind in ("members", "ends")]
        count = self._share_out(comparisons)
        folder, parts = f"completed-{count}", _jobs(count, lists)
        self._run.map(verification.complete_clusters, parts, *arguments, into=folder)
        self._completed = [clusters / "linked.npy", *(self._run.scratch / folder / f"{p.name}.npy" for p in parts)]

    def _share_out(self, pairs: int) -> int:
        """Jobs for this many comparisons: one per worker, fewer for little to do, more where memory asks for it."""
        return max(1, min(self._run.workers, pairs // PAIRS_PER_JOB), -(-pairs * _BYTES_PER_PAIR // self._memory))


def _jobs(count: int, files: Sequence[Path]) -> list[Part]:
    return [Part(f"{number:05d}-of-{count:05d}", tuple(files)) for number in range(count)]
