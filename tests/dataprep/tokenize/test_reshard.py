"""Resharding tables of tokens: in order, shards as full as possible, nothing lost."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from dataprep.tokenize.reshard import plan_shards, planned_parts, read_lengths, table_schema, write_shard
from pipelines.command import Part
from pipelines.tokens import TokenMeta, open_tokens

META = TokenMeta("ab" * 32, 300, 299)
SIZES = st.lists(st.lists(st.lists(st.integers(1, 12), max_size=6), max_size=3), min_size=1, max_size=4)


def write_table(path: Path, batches: list[list[int]], first: int) -> int:
    """Documents of these sizes; document n is n, n, n, ... Returns the number of the next one."""
    schema = table_schema(META)
    with pa.ipc.new_file(str(path), schema) as writer:
        for sizes in batches:
            numbers = range(first, first + len(sizes))
            ids = [[number] * size for number, size in zip(numbers, sizes, strict=True)]
            columns = [ids, [number.to_bytes(16) for number in numbers], [f"u{number}" for number in numbers]]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            first += len(sizes)
    return first


@given(SIZES, st.integers(1, 20))
@example([[[3, 9]], [[]], [], [[1]]], 3)
def test_shards_hold_all_documents_in_order_and_none_could_be_fuller(tables: list[list[list[int]]], most: int) -> None:
    sizes = [size for batches in tables for batch in batches for size in batch]
    if not sizes:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("plan", "tables", "out"):
            (folder / part).mkdir()
        files: list[Path] = []
        first = 0
        for number, batches in enumerate(tables):
            files.append(folder / "tables" / f"part-{number:05d}.arrow")
            first = write_table(files[-1], batches, first)
        plan_shards(Part("plan", tuple(files)), folder / "plan", most)
        counts = [write_shard(part, folder / "out") for part in planned_parts(folder / "plan", folder / "tables")]
        shards = open_tokens(folder / "out")
        assert (
            np.concatenate([shard.tokens for shard in shards]).tolist() == np.repeat(range(len(sizes)), sizes).tolist()
        )
        assert np.concatenate([np.diff(shard.offsets) for shard in shards]).tolist() == sizes
        assert [int.from_bytes(doc) for shard in shards for doc in shard.doc_ids] == list(range(len(sizes)))
        for shard, after in zip(shards, [*shards[1:], None], strict=True):
            assert len(shard.tokens) <= most or len(shard) == 1
            assert after is None or len(shard.tokens) + after.offsets[1] > most
        assert sum(each.totals["tokens"] for each in counts) == sum(sizes)
        stats = read_lengths(folder / "plan")
        assert sum(stats["lengths"].values()) == len(sizes)
        assert [row["tokens"] for row in stats["longest"]] == sorted(sizes, reverse=True)[:10]
