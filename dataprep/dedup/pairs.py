"""The tables between find_duplicates, group_duplicates and remove_duplicates, from Parquet or JSONL.

Documents are referred to by (shard, row) of the input, counted from 0 in input order; `doc_id` and `url`
are for people and for checks. In JSONL, ids are hexadecimal.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import store
from pipelines.command import Source
from pipelines.documents import is_jsonl, part_files
from pipelines.errors import UserError


def _document(suffix: str) -> list[pa.Field]:
    return [
        pa.field(f"shard{suffix}", pa.int32()),
        pa.field(f"row{suffix}", pa.int64()),
        pa.field(f"doc_id{suffix}", pa.binary(16)),
        pa.field(f"url{suffix}", pa.string()),
        pa.field(f"length{suffix}", pa.int64()),
    ]


DOCUMENT_FIELDS = _document("")
"""shard, row, doc_id, url, and length in characters."""

PAIR_SCHEMA = pa.schema(
    [*_document("_a"), *_document("_b"), pa.field("jaccard", pa.float64()), pa.field("kind", pa.string())]
)
"""Two duplicates, a before b in the input; `kind` is exact (equal texts once normalised) or near."""

GROUP_SCHEMA = pa.schema(
    [
        pa.field("group", pa.int64()),
        *DOCUMENT_FIELDS,
        pa.field("survivor_shard", pa.int32()),
        pa.field("survivor_row", pa.int64()),
        pa.field("survivor_doc_id", pa.binary(16)),
        pa.field("survivor_url", pa.string()),
        pa.field("jaccard", pa.float64()),
        pa.field("is_survivor", pa.bool_()),
        pa.field("kind", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
"""One document of a group, sorted by (shard, row); `kind` is survivor, exact or near."""

PAIR_METADATA = b"millrace.pairs"
"""Schema metadata of pairs: how they were found, as JSON with at least `threshold`."""

_ROW_GROUP = 1 << 16
_JSONL_ROWS = 10_000


def write_table(path: Path, table: pa.Table) -> None:
    """Write one Parquet file, the same bytes for the same rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, str(path), _ROW_GROUP, compression="zstd", compression_level=3)


def source_files(source: Source, what: str) -> list[Path]:
    """The files of a table: the shards of a folder that a stage made, or one JSONL file."""
    if source.path.is_file():
        if is_jsonl(source.path):
            return [source.path]
        raise UserError(f"{source.path}: not JSON lines by its name; give the folder or the .jsonl file of {what}")
    files = part_files(source.path)
    if not files and source.manifest is None:
        raise UserError(f"{source.path}: holds no part-*.parquet; give the output of {what}")
    return files


def read_tables(file: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of one file with the columns of `schema`; UserError when it holds something else."""
    if is_jsonl(file):
        yield from _read_jsonl(file, schema)
        return
    try:
        with pq.ParquetFile(str(file)) as opened:
            missing = [name for name in schema.names if name not in opened.schema_arrow.names]
            if missing:
                raise UserError(f"{file}: has no column {', '.join(missing)}; is it the output of another stage?")
            for batch in opened.iter_batches(_ROW_GROUP, columns=schema.names):
                yield pa.Table.from_batches([batch]).select(schema.names).cast(schema)
    except pa.ArrowInvalid as error:
        raise UserError(f"{file}: not a readable Parquet file ({error}); make it again") from None


def read_table(files: Sequence[Path], schema: pa.Schema) -> pa.Table:
    """The rows of all files in order."""
    return pa.concat_tables([schema.empty_table(), *(table for file in files for table in read_tables(file, schema))])


def pair_threshold(file: Path) -> float | None:
    """The threshold at which pairs were recorded; None where the file does not say (JSONL)."""
    if is_jsonl(file):
        return None
    metadata = (pq.read_schema(str(file)).metadata or {}).get(PAIR_METADATA)
    return json.loads(metadata)["threshold"] if metadata else None


def _read_jsonl(file: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(store.read_lines(file), start=1):
        if line.strip():
            rows.append(_parse_row(line, schema, f"{file}:{number}"))
        if len(rows) == _JSONL_ROWS:
            yield _to_table(rows, schema, file)
            rows = []
    yield _to_table(rows, schema, file)


def _parse_row(line: bytes, schema: pa.Schema, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place}: not valid JSON ({error}); make the file again") from None
    row = cast(dict[str, Any], value) if isinstance(value, dict) else dict[str, Any]()
    missing = [name for name in schema.names if name not in row]
    if missing:
        raise UserError(f"{place}: has no key {', '.join(missing)}; is it the output of another stage?")
    for field in schema:
        if pa.types.is_fixed_size_binary(field.type) and row[field.name] is not None:
            try:
                row[field.name] = bytes.fromhex(row[field.name])
            except (ValueError, TypeError):
                raise UserError(f"{place}: {field.name}: expected hexadecimal, got {row[field.name]!r}") from None
    return row


def _to_table(rows: list[dict[str, Any]], schema: pa.Schema, file: Path) -> pa.Table:
    try:
        return pa.Table.from_pylist(rows, schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UserError(f"{file}: a value has the wrong type ({error}); make the file again") from None
