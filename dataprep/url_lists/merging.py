"""Merges sorted runs into one sorted list without repeats, in ranges that fit into memory.

The parent plans: splitters from the runs' own heads cut all runs into ranges of about equal size. Workers merge a
range each (one stable sort, then neighbours are compared). The merged ranges, first their http rows, then their https
rows, are the output in the order of its URLs, and are cut into parts of exactly `rows_per_part` rows. How the ranges
were cut shows nowhere, so memory and workers change no byte.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dataprep.url_lists.runs import (
    BATCH_ROWS,
    RUN_SCHEMA,
    SCHEMES,
    Run,
    Splitter,
    cut_at,
    join_urls,
    release_memory,
    sort_by_key,
    write_run,
)
from pipelines import store
from pipelines.command import Part
from pipelines.documents import REJECTED, REJECTED_SCHEMA
from pipelines.manifest import Counts

PLACE = [pa.field("file", pa.string()), pa.field("line", pa.int64())]
URL_SCHEMA = pa.schema([pa.field("url", pa.string()), pa.field("original", pa.string()), *PLACE])
REJECTED_LINES_SCHEMA = pa.schema([*REJECTED_SCHEMA, pa.field("canonical", pa.string()), *PLACE])
"""`url` is the line as it stands, `canonical` its canonical form where it has one."""
ROW_GROUP_ROWS = 16_384
KEPT = "kept"
DUPLICATES = "duplicates"


def plan(
    files: Sequence[Path], digests: Sequence[str], names: Sequence[str], range_bytes: int, workers: int
) -> dict[str, Any]:
    """How to merge `files`: what they are, the list files' names, and splitters at most `range_bytes` apart."""
    heads: list[tuple[Splitter, float]] = []
    for number, file in enumerate(files):
        run = Run(file)
        per_batch = run.bytes / max(len(run.heads), 1)
        heads += [(Splitter(key, number, BATCH_ROWS * i), per_batch) for i, key in enumerate(run.heads)]
    wanted = min(range_bytes, sum(size for _, size in heads) / workers)
    splitters: list[Splitter] = []
    gathered = 0.0
    for splitter, size in sorted(heads):
        if gathered and gathered + size > wanted:
            splitters.append(splitter)
            gathered = 0.0
        gathered += size
    runs = [[str(file), digest] for file, digest in zip(files, digests, strict=True)]
    return {"runs": runs, "names": list(names), "splitters": splitters}


def merge_range(part: Part, folder: Path) -> Counts:
    """One range of all runs: the first line of each page, by scheme, and the lines that repeat one."""
    layout = store.read_json(part.file)
    number = int(part.name.rpartition("-")[2])
    cuts = [None, *(Splitter(*splitter) for splitter in layout["splitters"]), None]
    start, stop = cuts[number], cuts[number + 1]
    runs = [Run(Path(file)) for file, _ in layout["runs"]]
    table = sort_by_key(_rows_between(runs, start, stop))
    repeats, kept_originals = find_repeats(table, first_original(runs, start) if start else None)
    duplicates = table.append_column("kept", kept_originals).filter(repeats)
    _write_some(folder / f"{DUPLICATES}-{part.name}.ipc", duplicates)
    table = table.filter(pc.call_function("invert", [repeats]))
    for scheme in range(len(SCHEMES)):
        of_scheme = pc.call_function("equal", [table["scheme"], pa.scalar(scheme, pa.int8())])
        _write_some(folder / f"{KEPT}-{scheme}-{part.name}.ipc", table.filter(of_scheme))
    release_memory()
    return Counts(rejected={"duplicate": len(duplicates)} if len(duplicates) else {})


def _write_some(file: Path, table: pa.Table) -> None:
    if len(table):
        write_run(file, table)


def _rows_between(runs: Sequence[Run], start: Splitter | None, stop: Splitter | None) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    for number, run in enumerate(runs):
        first = cut_at(run, number, start) if start else 0
        batches += run.batches(first, cut_at(run, number, stop) if stop else run.rows)
    return pa.Table.from_batches(batches, RUN_SCHEMA)


def first_original(runs: Sequence[Run], splitter: Splitter) -> tuple[str, str] | None:
    """(key, original of its first line) when the splitter cuts through the lines of one page."""
    for number, run in enumerate(runs[: splitter.run + 1]):
        row = run.position(splitter.key)
        stop = splitter.row if number == splitter.run else run.rows
        for batch in run.batches(row, min(row + 1, stop)) if row < stop else ():
            if batch["key"][0].as_py() == splitter.key:
                return splitter.key, _spelled(pa.Table.from_batches([batch]))[0].as_py()
    return None


def find_repeats(table: pa.Table, before: tuple[str, str] | None) -> tuple[pa.Array, pa.Array]:
    """Which rows repeat the key of the row before them, and for each row the original of its key's first row.

    `before` is the key that a range starts within, and the original that was kept of it.
    """
    keys, originals = table["key"].combine_chunks(), _spelled(table).combine_chunks()
    repeats = np.zeros(len(keys), bool)
    if len(keys):
        repeats[1:] = pc.call_function("equal", [keys.slice(1), keys.slice(0, len(keys) - 1)]).to_numpy(
            zero_copy_only=False
        )
    heads = np.maximum.accumulate(np.where(repeats, 0, np.arange(len(keys))))
    kept = originals.take(pa.array(heads))
    if before:
        within = pc.call_function("equal", [keys, pa.scalar(before[0], keys.type)])
        kept = pc.call_function("if_else", [within, pa.scalar(before[1], keys.type), kept])
        repeats |= within.to_numpy(zero_copy_only=False)
    return pa.array(repeats), kept


def write_urls(part: Part, folder: Path, starts: dict[str, int], names: Sequence[str], rows: int) -> Counts:
    """One part of the output: `rows` rows from row `part number * rows` on."""
    table = _rows_of(part, starts, rows)
    columns = [join_urls(table), _spelled(table), *_place(table, names)]
    write_parquet(folder / f"{part.name}.parquet", columns, URL_SCHEMA)
    return Counts(rows_out=len(table))


def write_duplicates(part: Part, folder: Path, starts: dict[str, int], names: Sequence[str], rows: int) -> Counts:
    """One part of the rejected repeats, in the order of their keys."""
    table = _rows_of(part, starts, rows)
    columns = [
        pa.nulls(len(table), pa.binary(16)),
        _spelled(table),
        pa.repeat("duplicate", len(table)),
        pc.call_function("binary_join_element_wise", [*_large("of"), table["kept"], *_large(" ")]),
        join_urls(table),
        *_place(table, names),
    ]
    write_parquet(folder / REJECTED / f"{part.name}.parquet", columns, REJECTED_LINES_SCHEMA)
    return Counts()


def _rows_of(part: Part, starts: dict[str, int], rows: int) -> pa.Table:
    """The part's rows; `starts` says at which row of all each of its files starts."""
    first = int(part.name.rpartition("-")[2]) * rows
    batches: list[pa.RecordBatch] = []
    schema = RUN_SCHEMA
    for file in part.files:
        run, start = Run(file), starts[file.name]
        batches += run.batches(max(first - start, 0), min(first + rows - start, run.rows))
        schema = run.schema
    return pa.Table.from_batches(batches, schema)


def _spelled(table: pa.Table) -> pa.ChunkedArray:
    """The lines as they stand; a null says that the line is its own canonical form."""
    return pc.call_function("coalesce", [table["original"], join_urls(table)])


def _large(*texts: str) -> list[pa.Scalar]:
    return [pa.scalar(text, pa.large_string()) for text in texts]


def _place(table: pa.Table, names: Sequence[str]) -> list[pa.ChunkedArray]:
    return [pa.array(names, pa.string()).take(table["file"]), table["line"]]


def write_parquet(file: Path, columns: Sequence[Any], schema: pa.Schema) -> None:
    """Write columns as one Parquet file: zstd, equal bytes for equal rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
    table = pa.table(arrays, schema=schema).combine_chunks()
    pq.write_table(table, str(file), ROW_GROUP_ROWS, compression="zstd", compression_level=3)
