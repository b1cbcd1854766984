"""Resharding: the tokens of documents, tokenized shard by shard, become token shards of a target size, in order.

Token tables (Arrow IPC, any number of record batches of input_ids, doc_id, url) -> a plan (for each token shard a JSON
file `[[table, first row, last row + 1], ...]`, and lengths.json) -> token shards. The plan only names rows, so any
number of workers can write the shards.
"""

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines import store, tokens
from pipelines.command import Part
from pipelines.manifest import Counts

LENGTHS = "lengths.json"
LONGEST = 10
"""Longest documents that the statistics list."""

Array = np.ndarray[Any, Any]


def table_schema(meta: tokens.TokenMeta) -> pa.Schema:
    """Return the columns of a token table."""
    return tokens.token_schema(meta).append(pa.field("url", pa.string()))


def plan_shards(part: Part, folder: Path, tokens_per_shard: int) -> Counts:
    """Plan which rows of the tables go into which token shard, and collect the documents' lengths."""
    shard: list[tuple[str, int, int]] = []
    number = size = 0
    lengths = Lengths()
    for file in part.files:
        ends = np.cumsum(row_lengths(file, lengths))
        row = 0
        while row < len(ends):
            before = int(ends[row - 1]) if row else 0
            stop = int(np.searchsorted(ends, before + tokens_per_shard - size, side="right"))
            if stop == row and not size:
                stop = row + 1  # a document longer than a shard has one of its own
            if stop > row:
                shard.append((file.name, row, stop))
                size += int(ends[stop - 1]) - before
            if stop < len(ends):
                store.write_json(folder / f"part-{number:05d}.json", shard, durable=False)
                shard, size, number = [], 0, number + 1
            row = stop
    store.write_json(folder / f"part-{number:05d}.json", shard, durable=False)
    store.write_json(folder / LENGTHS, lengths.to_json(), durable=False)
    return Counts()


class Lengths:
    """Lengths of documents in tokens, end-of-text included: a histogram, and the longest documents."""

    def __init__(self) -> None:
        self._sizes = np.zeros(64, np.int64)
        self._longest: list[tuple[int, int, str, str]] = []
        self._rows = 0

    def add(self, lengths: Array, doc_ids: pa.Array, urls: pa.Array) -> None:
        """Add the documents of a batch."""
        self._sizes += np.bincount(np.frexp(lengths)[1] - 1, minlength=64)
        for row in np.argsort(-lengths, kind="stable")[:LONGEST].tolist():
            earliest = -(self._rows + row)  # of equally long documents, the first wins
            self._longest.append((int(lengths[row]), earliest, doc_ids[row].as_py().hex(), urls[row].as_py() or ""))
        self._longest = heapq.nlargest(LONGEST, self._longest)
        self._rows += len(lengths)

    def to_json(self) -> dict[str, Any]:
        """Return the statistics; `"256": n` counts the documents of 256 to 511 tokens."""
        return {
            "lengths": {str(1 << power): int(n) for power, n in enumerate(self._sizes) if n},
            "longest": [{"doc_id": doc_id, "url": url, "tokens": n} for n, _, doc_id, url in self._longest],
        }


def row_lengths(file: Path, lengths: Lengths) -> Array:
    """Return the number of tokens of each row of a token table, and add them to `lengths`."""
    counts = [np.zeros(0, np.int64)]
    for batch in batches(file):
        counts.append(np.diff(batch.column("input_ids").offsets.to_numpy()))
        lengths.add(counts[-1], batch.column("doc_id"), batch.column("url"))
    return np.concatenate(counts)


def planned_parts(plan: Path, tables: Path) -> list[Part]:
    """Return the token shards of a plan, each with its file of the plan and the tables that it takes rows from."""
    plans = {file: json.loads(file.read_bytes()) for file in sorted(plan.glob("part-*.json"))}
    return [Part(file.stem, (file, *(tables / name for name, _, _ in ranges))) for file, ranges in plans.items()]


def read_lengths(plan: Path) -> dict[str, Any]:
    """Read the statistics that `plan_shards` wrote."""
    return store.read_json(plan / LENGTHS)


def write_shard(part: Part, folder: Path) -> Counts:
    """Write one token shard. `part.files` are its plan and the tables that it takes rows from."""
    plan, *tables = part.files
    slices = [
        batch
        for table, (_, first, stop) in zip(tables, json.loads(plan.read_bytes()), strict=True)
        for batch in rows_between(table, first, stop)
    ]
    with pa.ipc.open_file(pa.memory_map(str(tables[0]))) as reader:
        meta = tokens.TokenMeta.of_schema(reader.schema)
    columns = [each.column("input_ids") for each in slices]
    ids = [values_of(column) for column in columns]
    offsets = np.concatenate(
        [[0], np.cumsum(np.concatenate([np.diff(column.offsets.to_numpy()) for column in columns]))]
    )
    doc_ids = pa.concat_arrays([each.column("doc_id") for each in slices])
    tokens.write_stream(folder / f"{part.name}.arrow", np.concatenate(ids), offsets, doc_ids, meta)
    return Counts(len(doc_ids), len(doc_ids), totals={"tokens": int(offsets[-1])})


def values_of(lists: pa.LargeListArray) -> Array:
    """Return the values of all rows. `flatten` would import pyarrow.compute: 0.05 s of a process."""
    offsets = lists.offsets.to_numpy()
    return lists.values.to_numpy()[offsets[0] : offsets[-1]]


def rows_between(table: Path, first: int, stop: int) -> Iterator[pa.RecordBatch]:
    """Yield rows `first` to `stop` (exclusive) of a token table."""
    start = 0
    for batch in batches(table):
        begin, end = max(first - start, 0), min(stop - start, batch.num_rows)
        if begin < end:
            yield batch.slice(begin, end - begin)
        start += batch.num_rows


def batches(file: Path) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a token table, mapped into memory."""
    reader = pa.ipc.open_file(pa.memory_map(str(file)))
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number)
