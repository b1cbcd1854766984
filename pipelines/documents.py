"""Document shards: `part-00000.parquet`, one row per document; JSONL in and out.

Columns `doc_id` (16 bytes, given where a record enters and carried unchanged), `url`, `text`,
`source`, then what a stage adds. Rejected rows: `rejected/part-00000.parquet` with `doc_id, url, rule, value`.
Stages read and write Parquet only; JSONL is converted on the way in (`ingest_jsonl`) and out
(`write_jsonl`).
"""

import contextlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines import store
from pipelines.errors import UserError
from pipelines.identity import document_id
from pipelines.manifest import Counts

DOCUMENT_FIELDS = [
    pa.field("doc_id", pa.binary(16)),
    pa.field("url", pa.string()),
    pa.field("text", pa.string()),
    pa.field("source", pa.string()),
]
DOCUMENT_SCHEMA = pa.schema(DOCUMENT_FIELDS)
REJECTED_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.binary(16)),
        pa.field("url", pa.string()),
        pa.field("rule", pa.string()),
        pa.field("value", pa.string()),
    ]
)
REJECTED = "rejected"
ROW_GROUP_ROWS = 1024
JSONL_SUFFIXES = (".jsonl", ".json", ".ndjson")
UNREADABLE_FILE = "unreadable_file"
"""The rule for one file of several that cannot be read, or not to its end."""
MAX_LINE_BYTES = 1 << 27
"""Longest JSONL line, which memory holds several times over; the longest documents of real corpora have some 10 MB."""
INGEST_ROWS = 20_000
"""Documents per shard made from JSONL: part of the result, so a constant and not an option."""

Row = dict[str, Any]


class TableWriter:
    """Writes rows to one Parquet file: zstd, row groups of 1024 rows, equal bytes for equal rows."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = 0
        self._schema = schema
        self._pending: list[Row] = []
        self._writer = pq.ParquetWriter(str(path), schema, compression="zstd", compression_level=3)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one row; every column of the schema must be in it."""
        self._pending.append({name: row[name] for name in self._schema.names})
        self.rows += 1
        if len(self._pending) == ROW_GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.Table.from_pylist(self._pending, self._schema), ROW_GROUP_ROWS)
            self._pending = []

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()


class ShardWriter:
    """One shard of a stage that keeps or rejects documents: both files and the counts.

    `part.parquet` is always written, even without rows; `rejected/part.parquet` only when needed.
    """

    def __init__(self, folder: Path, name: str, extra: Sequence[pa.Field] = ()) -> None:
        self.counts = Counts()
        self._rejected_path = folder / REJECTED / f"{name}.parquet"
        self._documents = TableWriter(folder / f"{name}.parquet", pa.schema([*DOCUMENT_FIELDS, *extra]))
        self._rejected: TableWriter | None = None

    def keep(self, row: Mapping[str, Any]) -> None:
        """Write a document that passed."""
        self._documents.write(row)
        self.counts.rows_in += 1
        self.counts.rows_out += 1
        self.counts.total("text_bytes", len(str(row["text"]).encode()))

    def reject(self, row: Mapping[str, Any], rule: str, value: object) -> None:
        """Write down which rule kept a document out, and the value it saw."""
        if self._rejected is None:
            self._rejected = TableWriter(self._rejected_path, REJECTED_SCHEMA)
        self._rejected.write({"doc_id": row["doc_id"], "url": row["url"], "rule": rule, "value": str(value)})
        self.counts.rows_in += 1
        self.counts.reject(rule)

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._documents.__exit__(kind, error, trace)
        if self._rejected:
            self._rejected.__exit__(kind, error, trace)


def extra_fields(path: Path) -> list[pa.Field]:
    """The columns of a document shard that earlier stages added, to be carried along."""
    return [field for field in pq.read_schema(str(path)) if field.name not in DOCUMENT_SCHEMA.names]


def read_rows(path: Path, columns: Sequence[str] | None = None) -> Iterator[Row]:
    """The rows of one Parquet file of ours, in order, a row group at a time."""
    for batch in read_batches(path, columns):
        yield from batch.to_pylist()


def read_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The record batches of one Parquet file; UserError when it is damaged or lacks a column."""
    with open_parquet(path) as file:
        missing = set(columns or ()) - set(file.schema_arrow.names)
        if missing:
            raise UserError(f"{path}: has no column {', '.join(sorted(missing))}; found {file.schema_arrow.names}")
        yield from file.iter_batches(ROW_GROUP_ROWS, columns=list(columns) if columns else None)


def read_table(path: Path) -> pa.Table:
    """One whole Parquet file, also one without rows; UserError when it is damaged."""
    with open_parquet(path) as file:
        return file.read()


@contextlib.contextmanager
def open_parquet(path: Path) -> Generator[pq.ParquetFile, None, None]:
    """A Parquet file for reading; UserError when it is damaged, at the opening or later."""
    try:
        # Without the two, every column of a row group is read whole, and people write files of one row group.
        with pq.ParquetFile(str(path), pre_buffer=False, buffer_size=1 << 20) as file:
            yield file
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise UserError(f"{path}: not a readable Parquet file ({error}); make it again") from None


def part_files(folder: Path) -> list[Path]:
    """The shards of a folder of ours, in order; its side tables are not among them."""
    return sorted(folder.glob("part-*.parquet"))


def is_jsonl(path: Path) -> bool:
    """Whether a file is JSON lines by its name, compressed or not."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1] in store.COMPRESSED:
        suffixes = suffixes[:-1]
    return bool(suffixes) and suffixes[-1] in JSONL_SUFFIXES


def jsonl_files(folder: Path) -> list[Path]:
    """The JSONL files directly in a folder, in order of name; not the companions of an output of ours."""
    companions = (".manifest.json", ".provenance.json")
    files = (path for path in folder.iterdir() if path.is_file() and is_jsonl(path))
    return sorted(p for p in files if not p.name.endswith(companions) and ".rejected" not in p.suffixes)


class BrokenLineError(ValueError):
    """A JSONL line that is no document; `rule` is its counted reason."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def parse_document(line: bytes, source: str, text_key: str = "text", url_key: str = "url") -> Row:
    """One JSONL line as a document row. Only the text is required; raises BrokenLineError."""
    if len(line) > MAX_LINE_BYTES:
        raise BrokenLineError("too_large", f"longer than {MAX_LINE_BYTES} bytes")
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BrokenLineError("invalid_utf8", f"not valid UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BrokenLineError("invalid_json", f"not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise BrokenLineError("not_an_object", f"expected an object with a text, found {type(record).__name__}")
    fields = cast(dict[str, Any], record)
    if text_key not in fields:
        raise BrokenLineError("no_text", f"has no key {text_key!r}")
    for name, key in (("text", text_key), ("url", url_key), ("source", "source")):
        if not isinstance(fields.get(key, ""), str):
            raise BrokenLineError(f"{name}_not_text", f"{key!r} is {type(fields[key]).__name__}, expected text")
    text, url, source = fields[text_key], fields.get(url_key, ""), fields.get("source", source)
    try:
        f"{url}{text}{source}".encode()
    except UnicodeEncodeError:
        raise BrokenLineError("invalid_utf8", "holds half of a surrogate pair") from None
    return {"doc_id": document_id(url, text), "url": url, "text": text, "source": source}


def read_jsonl(path: Path, text_key: str = "text", url_key: str = "url") -> Iterator[tuple[int, Row | BrokenLineError]]:
    """The lines of a JSONL file that are not blank, by number: a document row, or why it is none.

    Raises UserError at the end when there are lines and none of them is a document.
    """
    lines = documents = 0
    first_problem = ""
    for number, line in enumerate(store.read_lines(path, MAX_LINE_BYTES), start=1):
        if len(line) <= MAX_LINE_BYTES and not line.strip():
            continue
        lines += 1
        try:
            row = parse_document(line, path.name, text_key, url_key)
        except BrokenLineError as problem:
            first_problem = first_problem or f"line {number}: {problem}"
            yield number, problem
            continue
        documents += 1
        yield number, row
    if lines and not documents:
        raise UserError(f"{path}: none of its {lines} lines is a document; {first_problem}")


def reason_of(error: UserError, file: Path) -> str:
    """What an error says of a file, the same wherever the file lies."""
    return str(error).replace(f"{file.parent}/", "").removeprefix(f"{file.name}: ")


def _lines_of(path: Path, alone: bool) -> Iterator[tuple[str, Row | BrokenLineError]]:
    """The lines of a JSONL file by place; of a file that is not alone, what is wrong with all of it comes last."""
    try:
        for number, row in read_jsonl(path):
            yield f"{path.name}:{number}", row
    except UserError as error:
        if alone:
            raise
        yield path.name, BrokenLineError(UNREADABLE_FILE, reason_of(error, path))


def ingest_jsonl(path: Path, folder: Path, name: str, *, alone: bool = True) -> Counts:
    """Convert one JSONL file to document shards `<name>-00000.parquet`... in `folder`.

    A line that is no document is counted, and written to `rejected/` with its place. When the file is
    damaged, or there are lines and none of them is a document, that is a UserError, or for a file that
    is not alone one more rejected row.
    """
    counts = Counts()
    writer: TableWriter | None = None
    rejected: TableWriter | None = None
    for place, row in _lines_of(path, alone):
        counts.rows_in += 1
        if isinstance(row, BrokenLineError):
            counts.reject(row.rule)
            rejected = rejected or TableWriter(folder / REJECTED / f"{name}.parquet", REJECTED_SCHEMA)
            rejected.write({"doc_id": None, "url": place, "rule": row.rule, "value": str(row)})
            continue
        if writer is None or writer.rows == INGEST_ROWS:
            if writer:
                writer.__exit__(None, None, None)
            shard = counts.rows_out // INGEST_ROWS
            writer = TableWriter(folder / f"{name}-{shard:05d}.parquet", DOCUMENT_SCHEMA)
        writer.write(row)
        counts.rows_out += 1
        counts.total("text_bytes", len(row["text"].encode()))
    for open_writer in (writer, rejected):
        if open_writer:
            open_writer.__exit__(None, None, None)
    return counts


def rejected_rows(folder: Path, rule: str) -> list[tuple[str, str]]:
    """URL and value of every row that a rule kept out of an output, or of one in the making."""
    files = sorted((folder / REJECTED).glob("*.parquet"))
    rows = (row for file in files for row in read_rows(file, ["url", "rule", "value"]))
    return [(row["url"], row["value"]) for row in rows if row["rule"] == rule]


def write_jsonl(parts: Iterable[Path], output: Path) -> None:
    """Write the rows of Parquet files as one JSONL file (`.gz` and `.zst` compress); bytes become hex."""
    with store.create_compressed(output) as file:
        for part in parts:
            for row in read_rows(part):
                file.write(json.dumps(row, ensure_ascii=False, default=bytes.hex).encode() + b"\n")


def count_rows(file: Path) -> int | None:
    """Rows of a Parquet, Arrow or `.jsonl` file; None for a format without rows."""
    if file.suffix == ".parquet":
        with open_parquet(file) as opened:
            return opened.metadata.num_rows
    if file.suffix == ".arrow":
        with pa.ipc.open_file(pa.memory_map(str(file))) as reader:
            return sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
    if ".jsonl" in file.suffixes:
        return sum(1 for _ in store.read_lines(file))
    return None
