"""Sorted runs of URLs on disk: what one piece of a list leaves behind, to be merged with all others.

A run is an Arrow IPC file of batches of BATCH_ROWS rows (lz4), sorted by `key` (bytes), equal keys in the order of
their lines. Its schema metadata holds the first key of each batch, so that any place is found by reading one.
A key is a canonical URL without its scheme: http and https are two ways to one page.
"""

import bisect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

BATCH_ROWS = 4096
RUN_SCHEMA = pa.schema(
    [
        pa.field("key", pa.large_string()),
        pa.field("scheme", pa.int8()),  # a place in SCHEMES
        pa.field("original", pa.large_string()),  # null where the line is scheme and key as they are
        pa.field("file", pa.int32()),  # which of the list files
        pa.field("line", pa.int64()),
    ]
)
SCHEMES = ("", "http://", "https://")
"""In the order of URLs; the first is for lines that are compared as they stand."""
_HEADS = b"heads"
_BYTES = b"bytes"
_ROWS = b"rows"


class Splitter(NamedTuple):
    """A cut through all runs: before row `row` of run `run`, whose key is `key`."""

    key: str
    run: int
    row: int


class RunWriter:
    """Collects rows as columns and writes them as runs of about `run_bytes` each."""

    def __init__(self, folder: Path, name: str, run_bytes: int) -> None:
        self._folder = folder
        self._name = name
        self._run_bytes = run_bytes
        self._tables: list[pa.Table] = []
        self._runs = 0

    def add(self, rows: pa.Table) -> None:
        """Collect rows of RUN_SCHEMA; lines must rise within and from call to call."""
        self._tables.append(rows)
        if sum(table.nbytes for table in self._tables) >= self._run_bytes:
            self.flush()

    def flush(self) -> None:
        """Write what was collected, if anything was."""
        table = sort_by_key(pa.concat_tables(self._tables)) if self._tables else None
        self._tables = []
        if table is not None and len(table):
            write_run(self._folder / f"{self._name}-run-{self._runs:05d}.ipc", table)
            self._runs += 1


def release_memory() -> None:
    """Give back what Arrow's allocator keeps for the next table: the next shard's worker may be another one."""
    pa.default_memory_pool().release_unused()


def sort_by_key(table: pa.Table) -> pa.Table:
    """The rows by key; rows of equal keys keep their order (Arrow's sort is stable)."""
    table = table.combine_chunks()
    return table.take(pc.call_function("array_sort_indices", [table["key"]]))


def split_urls(urls: pa.Array) -> tuple[pa.Array, pa.Array]:
    """(keys, schemes) of canonical URLs."""
    secure = pc.call_function("starts_with", [urls], pc.MatchSubstringOptions("https://"))
    ends = pc.ReplaceSubstringOptions("^https?://", "", max_replacements=1)
    schemes = pc.call_function("add", [secure.cast(pa.int8()), pa.scalar(1, pa.int8())])
    return pc.call_function("replace_substring_regex", [urls], ends), schemes


def join_urls(table: pa.Table) -> pa.ChunkedArray:
    """The URLs of a table of RUN_SCHEMA."""
    schemes = pa.array(SCHEMES, pa.large_string()).take(table["scheme"])
    return pc.call_function("binary_join_element_wise", [schemes, table["key"], pa.scalar("", pa.large_string())])


def write_run(file: Path, table: pa.Table) -> None:
    """Write sorted rows."""
    table = table.combine_chunks()
    heads = table["key"].take(pa.array(range(0, len(table), BATCH_ROWS), pa.int64())).to_pylist()
    schema = table.schema.with_metadata({_HEADS: json.dumps(heads), _BYTES: str(table.nbytes), _ROWS: str(len(table))})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_table(table, BATCH_ROWS)


class Run:
    """A run open for reading, a batch at a time."""

    def __init__(self, file: Path) -> None:
        self._reader = pa.ipc.open_file(pa.memory_map(str(file)))
        self.schema = self._reader.schema.remove_metadata()
        metadata = self._reader.schema.metadata
        self.heads: list[str] = json.loads(metadata[_HEADS])
        self.rows = int(metadata[_ROWS])
        self.bytes = int(metadata[_BYTES])
        """Of all rows in memory."""

    def position(self, key: str, *, after: bool = False) -> int:
        """The first row that is not below `key`; with `after`, the first above it."""
        find = bisect.bisect_right if after else bisect.bisect_left
        batch = find(self.heads, key) - 1
        if batch < 0:
            return 0
        keys = self._reader.get_batch(batch).column("key")
        return batch * BATCH_ROWS + find(range(len(keys)), key, key=lambda row: keys[row].as_py())

    def batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows from `start` to before `stop`."""
        for number in range(start // BATCH_ROWS, -(-stop // BATCH_ROWS)):
            first = number * BATCH_ROWS
            batch = self._reader.get_batch(number)
            yield batch.slice(max(start - first, 0), min(stop - first, BATCH_ROWS) - max(start - first, 0))


def cut_at(run: Run, number: int, splitter: Splitter) -> int:
    """The row of run `number` at which a splitter cuts it: equal keys are in the order of the runs."""
    if number == splitter.run:
        return splitter.row
    return run.position(splitter.key, after=number < splitter.run)
