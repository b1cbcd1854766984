"""Fast paths are trusted with an oracle beside them: the library whose result they give reads a share of each run.

A difference from the version for which the tests prove equality (PROVEN) is an error that names the row. Another
version may give other results, so its differences are counted and reported; they stop nothing. The stats of a stage
say how many rows were checked and how many differed. The first rows of each shard are checked, and a share of the
others by their ids: equal shards have equal figures, also in a resumed run; the same rows in other shards may have
others.
"""

import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import xxhash

from pipelines.errors import UserError
from pipelines.manifest import Counts

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

PROVEN = {"datasets": "5.2.0", "datasketch": "2.0.0", "ftfy": "6.3.1", "langdetect": "1.0.9", "transformers": "5.23.0"}
"""Versions of the libraries for which our tests show equal results."""
MAX_CHARACTERS = 1 << 16
"""Leading characters of a text that are compared, so that no text takes long."""
_CHECKED, _DIFFERENT = "checked_by_", "different_from_"


class Sample:
    """Chooses the rows of a shard that are checked: the first ones, and one in `one_in` by a hash of its id."""

    def __init__(self, *, first: int, one_in: int) -> None:
        self._first = first
        self._one_in = one_in

    def takes(self, doc_id: bytes | None) -> bool:
        """Return whether the next row of the shard, with this id, is checked."""
        first, self._first = self._first, max(0, self._first - 1)
        return first > 0 or is_chosen(doc_id, self._one_in)

    def rows(self, doc_ids: "pa.FixedSizeBinaryArray") -> list[int]:
        """Return which of the shard's next rows, with these ids of 16 bytes, are checked."""
        import numpy as np  # not needed where rows are asked for one by one, as in `clean`

        from pipelines.columns import to_numpy
        from pipelines.native.hashes import id_hashes

        first, self._first = self._first, max(0, self._first - len(doc_ids))
        chosen = id_hashes(doc_ids) % np.uint64(self._one_in) == 0
        if doc_ids.null_count:
            chosen &= to_numpy(doc_ids.is_valid())
        chosen[:first] = True
        return np.flatnonzero(chosen).tolist()


def is_chosen(doc_id: bytes | None, one_in: int) -> bool:
    """Return whether a document is one in `one_in`, by a hash of its id; never without an id."""
    return doc_id is not None and hash_of(doc_id) % one_in == 0


def hash_of(doc_id: bytes | None) -> int:
    """Return the hash of an id by which documents are chosen; without an id, that of no bytes."""
    return xxhash.xxh3_64_intdigest(doc_id or b"")


@functools.cache
def installed(library: str) -> str:
    """Return the installed version of a library."""
    import importlib.metadata  # here, since it brings the parser of e-mail

    return importlib.metadata.version(library)


def is_proven(library: str) -> bool:
    """Return whether the installed version of a library is the one for which equality is proven."""
    return installed(library) == PROVEN[library]


def compare(counts: Counts, library: str, *, equal: bool, row: str, what: str) -> None:
    """Count a checked row, and whether it differs. Raises UserError if it differs from the proven version's result."""
    counts.total(f"{_CHECKED}{library}", 1)
    counts.total(f"{_DIFFERENT}{library}", int(not equal))
    if not equal and is_proven(library):
        raise UserError(
            f"{row}: {what} is not what {library} {installed(library)} gives, which it has to equal; nothing was "
            "published. Please report it, with the input that shows it"
        )


def name_of(doc_id: bytes | None, url: str | None) -> str:
    """Return the name of a document for an error: its id, and its URL if it has one."""
    return " ".join(filter(None, ["document", doc_id.hex() if doc_id else "without id", f"({url})" if url else ""]))


def report(stage: str, libraries: Sequence[str], counts: Counts) -> dict[str, Any]:
    """Return, by library, its version, the rows that it checked, and those that differed; log another version.

    The figures are taken out of `counts`, those of the output, so that the stats hold them once.
    """
    stats: dict[str, Any] = {}
    for library in libraries:
        if f"{_CHECKED}{library}" not in counts.totals:
            continue
        checked, different = (counts.totals.pop(f"{kind}{library}") for kind in (_CHECKED, _DIFFERENT))
        stats[library] = {"version": installed(library), "checked": checked, "different": different}
        if not is_proven(library):
            logger.warning(
                "%s: %s is %s, equal results are proven for %s: of %s checked rows, %s differ from its results",
                stage,
                library,
                installed(library),
                PROVEN[library],
                f"{checked:,}",
                f"{different:,}",
            )
    return stats
