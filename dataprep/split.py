"""Stage `split`: shuffle the documents and set some aside for validation.

documents -> two folders of document shards, shuffled by seed. Whether a document is for validation
depends on its id and the seed alone, so equal documents never stand on both sides.

    python -m dataprep.split clean.jsonl train/ val/ --val-share 0.01

Two passes on disk, in the memory of one input shard and one output shard: each input shard is sorted by
the shard it will go to and written with one row group per target; then each output shard collects its row groups and
sorts them by the shuffle key. The key is a hash of (seed, id, input position), never a drawn number, so
the order does not depend on workers.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pipelines.command import Documents, Part, Table
from pipelines.config import Count, NonNegative, Share
from pipelines.documents import ROW_GROUP_ROWS, read_batches, read_table
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("xxhash", "pyarrow")
TRAIN, VAL = "train", "val"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitConfig:
    """How to shuffle and how much to set aside."""

    seed: NonNegative = 1234
    """Seed of the shuffle and of the choice of validation documents."""
    val_share: Share = 0.01
    """Share of the documents for validation, 0 to 1."""
    documents_per_shard: Count = 20_000
    """Documents per output shard, on average."""


@dataclass(frozen=True, slots=True)
class Targets:
    """How many output shards each side has; `train` targets come first."""

    train: int
    val: int


def split(config: SplitConfig, run: StageRun, documents: Documents, train: Table, val: Table) -> dict[str, int]:
    """Count the sides, scatter every input shard, gather every output shard."""
    sides = run.map(count_sides, documents.parts, config, into="sides").totals
    for side, hint in ((TRAIN, "lower"), (VAL, "raise")):
        if not sides.get(side):
            raise UserError(
                f"split: no document of {sum(sides.values())} falls to {side}; {hint} split.val_share "
                f"({config.val_share}), "
                "or give more documents"
            )
    targets = Targets(*(-(-sides[side] // config.documents_per_shard) for side in (TRAIN, VAL)))
    numbered = [Part(f"{number:05d}", part.files) for number, part in enumerate(documents.parts)]
    run.map(scatter_part, numbered, config, targets, into="scattered")
    scattered = tuple(run.scratch / "scattered" / f"{part.name}.parquet" for part in numbered)
    for output, first, count in ((train, 0, targets.train), (val, targets.train, targets.val)):
        parts = [Part(f"part-{i:05d}", scattered) for i in range(count)]
        run.map(gather_part, parts, first, into=output)
    total = sum(sides.values())
    return {"in": total, "out": total, **sides}


def count_sides(part: Part, folder: Path, config: SplitConfig) -> Counts:  # noqa: ARG001 - writes no file
    """Count the documents of one shard that fall to each side."""
    counts = Counts()
    for batch in read_batches(part.file, ["doc_id"]):
        for doc_id in batch.column("doc_id").to_pylist():
            counts.total(VAL if is_validation(doc_id, config) else TRAIN, 1)
    return counts


def is_validation(doc_id: bytes, config: SplitConfig) -> bool:
    """Whether the document is for validation: a hash of its id below `val_share`."""
    return xxhash.xxh3_64_intdigest(doc_id, config.seed) < config.val_share * 2**64


def shuffle_key(doc_id: bytes, position: int, config: SplitConfig) -> int:
    """Place in the shuffled order (64 bits); `position` tells documents with equal ids apart."""
    return xxhash.xxh3_64_intdigest(position.to_bytes(8, "little") + doc_id, config.seed + 1)


def scatter_part(part: Part, folder: Path, config: SplitConfig, targets: Targets) -> Counts:
    """Sort one input shard by (target, key); row group t of the result holds what goes to target t."""
    table = read_table(part.file)
    doc_ids = table.column("doc_id").to_pylist()
    first = int(part.name) << 32
    keys = np.array([shuffle_key(doc_id, first + row, config) for row, doc_id in enumerate(doc_ids)], dtype=np.uint64)
    validation = np.array([is_validation(doc_id, config) for doc_id in doc_ids], dtype=bool)
    target = np.array(
        [_target(int(k), bool(v), targets) for k, v in zip(keys, validation, strict=True)], dtype=np.int64
    )
    order = np.lexsort((keys, target))
    table = table.take(order).append_column("key", pa.array(keys[order]))
    ends = np.searchsorted(target[order], np.arange(targets.train + targets.val + 1))
    with pq.ParquetWriter(str(folder / f"{part.name}.parquet"), table.schema, compression="zstd") as writer:
        for start, stop in itertools.pairwise(ends):
            writer.write_table(table.slice(start, stop - start), max(1, stop - start))
    return Counts()


def _target(key: int, validation: bool, targets: Targets) -> int:
    """The output shard of a key: equal ranges of keys, so shards in order are the whole order."""
    return targets.train + (key * targets.val >> 64) if validation else key * targets.train >> 64


def gather_part(part: Part, folder: Path, first: int) -> Counts:
    """Collect row group `first + i` of every scattered file into output shard i, in key order."""
    target = first + int(part.name.removeprefix("part-"))
    # Inputs of several sources may differ in the columns that earlier stages added.
    table = pa.concat_tables(list(_row_groups(part.files, target)), promote_options="default").combine_chunks()
    table = table.take(np.argsort(table.column("key").to_numpy(), kind="stable")).drop_columns(["key"])
    pq.write_table(table, str(folder / f"{part.name}.parquet"), ROW_GROUP_ROWS, compression="zstd", compression_level=3)
    rows = table.num_rows
    return Counts(rows_in=rows, rows_out=rows)


def _row_groups(files: tuple[Path, ...], number: int) -> Iterator[pa.Table]:
    for file in files:
        with pq.ParquetFile(str(file)) as opened:
            yield opened.read_row_group(number)


if __name__ == "__main__":
    stage_main("dataprep.split")
