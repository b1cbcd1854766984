"""Sort rows by 64-bit keys, out of core: scatter them into buckets on disk, then gather bucket by bucket.

A run is an Arrow file of as many rows as memory holds, with one record batch per bucket; a bucket has the rows of
several neighbouring shards of the result. So a shuffle of any size opens one file at a time, and each read gets
64 KiB or more, where a file per input and target would have a few rows
(external distribution sort: Knuth, The Art of Computer Programming, volume 3, section 5.4).
Runs are not compressed: a bucket larger than memory is read in ranges of keys, and each pass touches little more than
the keys and the rows that it takes.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.documents import ROW_GROUP_BYTES, ROW_GROUP_ROWS, parquet_options

Keys = np.ndarray[Any, np.dtype[np.uint64]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

KEY = "key"
SMALLEST_RUN = 16 << 20
LARGEST_RUN = 256 << 20
"""Bytes of rows in a run. A kill costs one run, so runs are larger than LARGEST_RUN only to keep segments large."""
RUNS = 64
"""A small corpus is split into about this many runs, so that every worker has something to do."""
SEGMENT = 64 << 10
"""Bytes of one bucket in one run, on average at least about this: buckets grow, and are read in ranges."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How keys map to shards and buckets, for each side (train, val)."""

    shards: tuple[int, ...]
    """Number of shards of each side."""
    width: int
    """Shards per bucket."""
    run_bytes: int
    """Bytes of rows held at once."""
    schema: pa.Schema
    """Schema of the resulting rows; in runs they also have their key."""

    @property
    def first_buckets(self) -> list[int]:
        """Number of each side's first bucket; the last entry is the number of buckets."""
        return [0, *itertools.accumulate(-(-count // self.width) for count in self.shards)]

    def buckets(self, keys: Keys, sides: Numbers) -> Numbers:
        """Return the bucket of each row, by its key and its side."""
        shards = scale_keys(keys, np.array(self.shards, np.uint64)[sides]).astype(np.int64)
        return np.array(self.first_buckets)[sides] + shards // self.width

    @property
    def run_schema(self) -> pa.Schema:
        """Schema of the rows on disk, with 64-bit offsets, because a run or bucket may have more than 2 GiB of text."""
        wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
        fields = [field.with_type(wide.get(field.type, field.type)) for field in self.schema]
        return pa.schema([*fields, pa.field(KEY, pa.uint64())])


def choose_layout(shards: tuple[int, ...], num_bytes: int, memory: int, schema: pa.Schema) -> Layout:
    """Choose runs and buckets for `num_bytes` of rows, if a worker may hold `memory` bytes."""
    largest = max(LARGEST_RUN, math.isqrt(num_bytes * SEGMENT))
    run_bytes = min(max(SMALLEST_RUN, num_bytes // RUNS), largest, max(memory, SMALLEST_RUN))
    buckets = min(-(-num_bytes // run_bytes), max(1, run_bytes // SEGMENT))
    return Layout(shards, max(1, sum(shards) // max(1, buckets)), run_bytes, schema)


def scale_keys(keys: Keys, count: Keys | np.uint64) -> Keys:
    """Return `key * count >> 64` for 64-bit keys and 32-bit counts: equal key ranges, so shards in order are sorted."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    return ((keys >> half) * count + ((keys & low) * count >> half)) >> half


def first_key(shard: int, count: int) -> int:
    """Return the smallest key of shard `shard` of `count`; 2^64 for the one after the last."""
    return -(-(shard << 64) // count)


class RunWriter:
    """Writes rows as runs `<name>-00000.ipc` and so on into `folder`."""

    def __init__(self, folder: Path, name: str, layout: Layout) -> None:
        self._path = folder / name
        self._layout = layout
        self._number = 0
        self._held: list[pa.RecordBatch] = []
        self._buckets: list[Numbers] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch, keys: Keys, sides: Numbers) -> None:
        """Add rows with their keys and sides; columns that only other inputs have become null."""
        schema = self._layout.run_schema
        columns = {name: batch.column(name) for name in batch.schema.names} | {KEY: pa.array(keys)}
        rows = pa.record_batch(
            [
                columns[field.name].cast(field.type) if field.name in columns else pa.nulls(len(keys), field.type)
                for field in schema
            ],
            schema=schema,
        )
        self._held.append(rows)
        self._buckets.append(self._layout.buckets(keys, sides))
        self._bytes += rows.nbytes
        if self._bytes >= self._layout.run_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the held rows as one run; rows of a bucket stay in order."""
        table = pa.Table.from_batches(self._held, self._layout.run_schema)
        self._held = []
        buckets = np.concatenate([np.empty(0, np.int64), *self._buckets])
        self._buckets = []
        self._bytes = 0
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(self._layout.first_buckets[-1] + 1))
        for rows in table.combine_chunks().to_batches():  # one batch, or none
            with pa.ipc.new_file(f"{self._path}-{self._number:05d}.ipc", rows.schema) as writer:
                for start, stop in itertools.pairwise(ends):
                    writer.write_batch(rows.take(pa.array(order[start:stop])))
            self._number += 1


def segments(files: Sequence[Path], bucket: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a bucket in each run, mapped into memory one at a time."""
    for file in files:
        with pa.memory_map(str(file)) as mapped, pa.ipc.open_file(mapped) as run:
            yield run.get_batch(bucket)


def gather(files: Sequence[Path], layout: Layout, side: int, first: int, folder: Path) -> int:
    """Write the shards of the bucket whose first shard is `first`, in order of keys. Return their number of rows.

    Equal keys stay in the order of the runs.
    """
    count = layout.shards[side]
    bucket = layout.first_buckets[side] + first // layout.width
    low, end = first_key(first, count), first_key(min(first + layout.width, count), count)
    passes = max(1, -(-sum(rows.nbytes for rows in segments(files, bucket)) // layout.run_bytes))
    bounds = [low + (end - low) * i // passes for i in range(passes + 1)]
    shards = ShardWriter(folder, layout.schema, first)
    for start, stop in itertools.pairwise(bounds):
        for rows in read_range(files, bucket, layout.run_schema, start, stop):
            keys = rows.column(KEY).to_numpy()
            order = np.argsort(keys, kind="stable")
            numbers = scale_keys(keys[order], np.uint64(count)).astype(np.int64)
            for number in np.unique(numbers).tolist():
                of_shard = slice(*np.searchsorted(numbers, [number, number + 1]))
                shards.add(number, rows, order[of_shard])
    shards.advance_to(min(first + layout.width, count))
    return shards.rows


def read_range(
    files: Sequence[Path], bucket: int, schema: pa.Schema, start: int, stop: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a bucket with keys from `start` to below `stop`, as one batch; nothing if there are none."""
    in_range: list[pa.RecordBatch] = []
    for rows in segments(files, bucket):
        keys = rows.column(KEY).to_numpy()
        in_range.append(rows.filter(pa.array((keys >= np.uint64(start)) & (keys <= np.uint64(stop - 1)))))
    table = pa.Table.from_batches(in_range, schema)
    in_range.clear()  # else all rows are held twice while they are written
    yield from table.combine_chunks().to_batches()


class ShardWriter:
    """Writes shards `part-00000.parquet` and so on, one after the other, with the row groups of TableWriter."""

    def __init__(self, folder: Path, schema: pa.Schema, first: int) -> None:
        self.rows = 0
        self._folder = folder
        self._schema = schema
        self._number = first
        self._writer: pq.ParquetWriter | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._held_bytes = 0

    def advance_to(self, number: int) -> None:
        """Close all shards before `number`; those without rows are written too."""
        while self._number < number:
            self._flush().close()
            self._writer = None
            self._number += 1

    def add(self, number: int, batch: pa.RecordBatch, order: Numbers) -> None:
        """Append rows `order` of a batch to shard `number`."""
        self.advance_to(number)
        ends = np.cumsum(row_bytes(batch)[order])
        start = before = 0
        while start < len(order):
            full = int(np.searchsorted(ends, before + ROW_GROUP_BYTES - self._held_bytes)) + 1
            stop = min(full, start + ROW_GROUP_ROWS - self._held_rows, len(order))
            self._held.append(batch.take(pa.array(order[start:stop])))
            self._held_rows += stop - start
            self._held_bytes += int(ends[stop - 1]) - before
            start, before = stop, int(ends[stop - 1])
            if self._held_rows == ROW_GROUP_ROWS or self._held_bytes >= ROW_GROUP_BYTES:
                self._flush()
        self.rows += len(order)

    def _flush(self) -> pq.ParquetWriter:
        """Write the held rows as a row group; a shard without rows has an empty one."""
        if self._writer and not self._held:
            return self._writer
        if not self._writer:
            path = self._folder / f"part-{self._number:05d}.parquet"
            self._writer = pq.ParquetWriter(str(path), self._schema, **parquet_options())
        names = self._schema.names
        rows = [batch.select(names) for batch in self._held]
        table = pa.Table.from_batches(rows, rows[0].schema if rows else self._schema).combine_chunks()
        self._writer.write_table(table.cast(self._schema), ROW_GROUP_ROWS)
        self._held, self._held_rows, self._held_bytes = [], 0, 0
        return self._writer


def row_bytes(batch: pa.RecordBatch) -> Numbers:
    """Return the bytes of text in each row."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if column.type in (pa.large_string(), pa.large_binary()):
            sizes += np.diff(np.frombuffer(column.buffers()[1], np.int64)[column.offset :][: len(column) + 1])
    return sizes
