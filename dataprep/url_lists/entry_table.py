"""A read-only table text -> category in a file that processes map: millions of entries, once in memory for all.

The rows are sorted by the 64-bit xxh3 of their text; the text itself is compared too, so a lookup is exact.
"""

from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

_CHUNK_ROWS = 100_000


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))


class EntryCollector:
    """Collects entries as columns (about 50 bytes each) and writes them as a table; of equal texts the first stays."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._chunks: list[pa.Array] = []
        self._hashes = array("Q")
        self._categories: dict[str, int] = {}
        self._codes = array("i")

    def add(self, text: str, category: str) -> None:
        """Take in one entry."""
        self._texts.append(text)
        self._hashes.append(_hash(text))
        self._codes.append(self._categories.setdefault(category, len(self._categories)))
        if len(self._texts) == _CHUNK_ROWS:
            self._flush()

    def _flush(self) -> None:
        self._chunks.append(pa.array(self._texts, pa.large_string()))
        self._texts = []

    def write(self, file: Path) -> None:
        """Sort the entries and write them, as one batch that can be mapped."""
        self._flush()
        hashes = np.frombuffer(self._hashes, np.uint64)
        order = np.argsort(hashes, kind="stable")
        hashes, texts = hashes[order], pa.chunked_array(self._chunks).combine_chunks().take(pa.array(order))
        first = np.ones(len(order), bool)
        if len(order) > 1:
            same_text = pc.call_function("equal", [texts.slice(1), texts.slice(0, len(texts) - 1)]).to_numpy(
                zero_copy_only=False
            )
            first[1:] = (hashes[1:] != hashes[:-1]) | ~same_text
        codes = np.frombuffer(self._codes, np.int32)[order][first]
        categories = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(self._categories, pa.string()))
        columns = [pa.array(hashes[first]), texts.filter(pa.array(first)), categories]
        batch = pa.record_batch(columns, names=["hash", "text", "category"])
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
            writer.write_batch(batch)


class EntryTable:
    """What an EntryCollector wrote, mapped."""

    def __init__(self, file: Path) -> None:
        batch = pa.ipc.open_file(pa.memory_map(str(file))).get_batch(0)
        self._hashes = np.asarray(batch.column("hash"))
        self._texts = batch.column("text")
        self._categories = batch.column("category")

    def __len__(self) -> int:
        return len(self._hashes)

    def get(self, text: str) -> str | None:
        """The category of an entry, None where there is no such entry."""
        if not len(self._hashes):
            return None
        wanted = np.uint64(_hash(text))
        row = int(self._hashes.searchsorted(wanted))
        while row < len(self._hashes) and self._hashes[row] == wanted:
            if self._texts[row].as_py() == text:
                return self._categories[row].as_py()
            row += 1
        return None

    def items(self) -> Iterator[tuple[str, str]]:
        """All entries with their categories."""
        return zip(self._texts.to_pylist(), self._categories.to_pylist(), strict=True)
