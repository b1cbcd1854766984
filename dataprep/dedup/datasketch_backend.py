"""Candidate pairs by datasketch's own MinHashLSH, for small corpora and to check ours against it.

It keeps every document in Python dictionaries, about 7 kB each with 20 bands, in one process, and lists every
pair of a bucket. It gets the same signatures and bands as our own search, so its buckets are the same.
"""

import functools
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dataprep.dedup.banding import Banding
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.signatures import SignatureMeta, is_empty, read_signatures
from pipelines import oracle
from pipelines.command import Part
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

SCHEME = "affine32"
"""datasketch's name of the permutations of `signatures.Permutations`."""
MAX_DOCUMENTS = 100_000
MAX_PAIRS = 20_000_000
_OURS = "--backend millrace does it on disk, with all processes"


@functools.cache
def import_datasketch() -> Any:
    """Import datasketch without scipy's integrals, which only choose bands and are imported once they are needed.

    They would take 0.37 of its 0.42 seconds, a sixth of a search in 20,000 documents. Another version than the proven
    one may need more of scipy, so it is imported as it is.
    """
    if not oracle.is_proven("datasketch"):
        return importlib.import_module("datasketch")
    name = "scipy.integrate"
    stand_in = ModuleType(name)
    stand_in.quad = _quad  # pyright: ignore[reportAttributeAccessIssue]
    hidden = sys.modules.setdefault(name, stand_in) is stand_in
    try:
        import datasketch

        return datasketch
    finally:
        if hidden:
            del sys.modules[name]


def _quad(*arguments: Any, **options: Any) -> Any:
    return importlib.import_module("scipy.integrate").quad(*arguments, **options)


def check_size(num_documents: int) -> None:
    """Raise ConfigError if a corpus is too large for dictionaries."""
    if num_documents > MAX_DOCUMENTS:
        raise ConfigError(
            f"find_duplicates.backend: datasketch keeps all documents in the memory of one process and takes at most "
            f"{MAX_DOCUMENTS:,}, not {num_documents:,}; {_OURS}"
        )


class Buckets:
    """datasketch's MinHashLSH with these bands. It refuses a single one, which therefore stands there twice."""

    def __init__(self, meta: SignatureMeta, banding: Banding) -> None:
        self._library, self._seed = import_datasketch(), meta.seed
        self._twice = banding.rows if banding.bands == 1 else 0
        self._num_perm = 2 * banding.rows if self._twice else meta.num_perm
        self._lsh = self._library.MinHashLSH(num_perm=self._num_perm, params=(max(2, banding.bands), banding.rows))
        self._permutations = self._library.MinHash(self._num_perm, meta.seed, scheme=SCHEME).permutations

    def sketch(self, signature: Array) -> Any:
        """Return a signature as datasketch has it."""
        values = np.tile(signature[: self._twice], 2) if self._twice else signature
        return self._library.MinHash(
            self._num_perm, self._seed, hashvalues=values, permutations=self._permutations, scheme=SCHEME
        )

    def insert(self, number: int, sketch: Any) -> None:
        """Put a document into its buckets."""
        self._lsh.insert(number, sketch, check_duplication=False)

    def query(self, sketch: Any) -> list[int]:
        """Return the documents that share a bucket with this one."""
        return self._lsh.query(sketch)


def find_pairs(part: Part, folder: Path, corpus: Corpus, meta: SignatureMeta, banding: Banding) -> Counts:
    """Write all pairs of all buckets, sorted. `part.files`: the marks of exact copies, the signatures of all shards."""
    copies_file, *signature_files = part.files
    copies = np.load(copies_file)
    buckets = Buckets(meta, banding)
    pairs: list[tuple[Any, int]] = []
    number = -1
    for file in signature_files:
        for _, signatures in read_signatures(file):
            for empty, signature in zip(is_empty(signatures).tolist(), signatures, strict=True):
                number += 1
                if empty or copies[number]:
                    continue
                sketch = buckets.sketch(signature)
                pairs.extend((earlier, number) for earlier in buckets.query(sketch))
                buckets.insert(number, sketch)
                if len(pairs) > MAX_PAIRS:
                    raise UserError(f"--backend datasketch: more than {MAX_PAIRS:,} pairs in its buckets; {_OURS}")
    distinct = np.array(sorted(pairs), np.uint64).reshape(-1, 2)
    compared = distinct[corpus.compares(distinct[:, 0], distinct[:, 1])]
    np.save(folder / f"{part.name}.pairs.npy", compared)
    return Counts(totals={"bucket_pairs": len(compared)})
