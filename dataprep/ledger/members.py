"""The members of groups of duplicates by document id, in arrays on disk that all workers share.

Memory: 40 bytes for each member while they are sorted, then only the pages that are looked at.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.dedup.pairs import GROUP_SCHEMA, compare, read_tables
from pipelines.columns import to_numpy
from pipelines.command import Part
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]

_ID = np.dtype("S16")
"""Bytes of fixed width, of which NumPy ignores zeros at the end: as all ids are of this width, none is confused."""


@dataclass(frozen=True, slots=True)
class Members:
    """Ids in order; for each its group and the id of its survivor."""

    ids: Array
    groups: Array
    survivors: Array

    @classmethod
    def open(cls, folder: Path) -> "Members":
        """Open the arrays that `write_members` wrote."""
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("ids", "groups", "survivors")))

    def find(self, doc_id: bytes) -> tuple[int | None, bytes | None]:
        """Return the group of a document and the id of its survivor; None for a document that is in no group."""
        position = int(np.searchsorted(self.ids, np.array(doc_id, _ID)))
        if position == len(self.ids) or self.ids[position].ljust(16, b"\0") != doc_id:
            return None, None
        return int(self.groups[position]), self.survivors[position].ljust(16, b"\0")


def write_members(part: Part, folder: Path) -> Counts:
    """Write the arrays of `Members` for the tables of group_duplicates; equal documents are in the same group."""
    schema = pa.schema([GROUP_SCHEMA.field(name) for name in ("corpus", "doc_id", "group", "survivor_doc_id")])
    ids, groups, survivors = [np.empty(0, _ID)], [np.empty(0, np.int64)], [np.empty(0, _ID)]
    for table in (table for file in part.files for table in read_tables(file, schema)):
        own = table.filter(compare("equal", table["corpus"], ""))  # those of old crawls are not of this corpus
        ids.append(np.array(own["doc_id"].to_pylist(), _ID))
        groups.append(to_numpy(own["group"]))
        survivors.append(np.array(own["survivor_doc_id"].to_pylist(), _ID))
    in_order, first = np.unique(np.concatenate(ids), return_index=True)
    np.save(folder / "ids.npy", in_order)
    np.save(folder / "groups.npy", np.concatenate(groups)[first])
    np.save(folder / "survivors.npy", np.concatenate(survivors)[first])
    return Counts()
