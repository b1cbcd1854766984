"""JSON lines: read strictly, converted to document shards piece by piece, and written from shards.

A file is cut by bytes: piece `n` has the lines that begin in bytes n x 8 MiB to (n + 1) x 8 MiB of the plain text.
So each piece of a plain file is a task of its own, a compressed one gives the same shards, and no result depends on
who worked on what. A line that is no document is noted with its number in the piece, and never costs the good ones.
"""

import codecs
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import orjson
import pyarrow as pa

from pipelines import store
from pipelines.documents import DOCUMENT_SCHEMA, UNREADABLE_FILE, Row, TableWriter, read_rows, reason_of
from pipelines.errors import UserError
from pipelines.identity import document_id
from pipelines.manifest import Counts

MAX_LINE_BYTES = 1 << 27
"""Longest JSONL line, which memory holds several times over; the longest documents of real corpora have some 10 MB."""
PIECE_BYTES = 8 << 20
"""Plain bytes of JSONL that become one shard: part of the result, so a constant and not an option."""
BUNDLE_BYTES = 4 << 20
"""Plain bytes of JSONL that are written, and compressed, at once: a constant for the same reason."""
BROKEN = "broken"
BROKEN_SCHEMA = pa.schema([("line", pa.int64()), ("rule", pa.string()), ("value", pa.string())])
"""Lines that are no document, by number in their piece from 1 on; null is the file as a whole."""


class BrokenLineError(ValueError):
    """A JSONL line that is no document; `rule` is its counted reason."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def parse_document(line: bytes, source: str, text_key: str = "text", url_key: str = "url") -> Row:
    """One JSONL line as a document row. Only the text is required; raises BrokenLineError.

    orjson takes what `json` takes but for NaN, Infinity, integers and floats too large for a double, and halves of
    surrogate pairs (and it goes some levels deeper): whatever it refuses, `json` judges.
    """
    if len(line) > MAX_LINE_BYTES:
        raise BrokenLineError("too_large", f"longer than {MAX_LINE_BYTES} bytes")
    try:
        record = orjson.loads(line)
        text, url, source_ = record[text_key], record.get(url_key, ""), record.get("source", source)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return _judge_line(line, source, text_key, url_key)
    if type(text) is type(url) is type(source_) is str:
        return {"doc_id": document_id(url, text), "url": url, "text": text, "source": source_}
    return _judge_line(line, source, text_key, url_key)


def _judge_line(line: bytes, source: str, text_key: str, url_key: str) -> Row:
    """The same by `json`, which says what is wrong and where."""
    try:
        record = json.loads(line.removeprefix(codecs.BOM_UTF8).decode("utf-8"))
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


def _is_blank(line: bytes) -> bool:
    return not line or (line.isspace() and len(line) <= MAX_LINE_BYTES)


def read_jsonl(path: Path, text_key: str = "text", url_key: str = "url") -> Iterator[tuple[int, Row | BrokenLineError]]:
    """The lines of a JSONL file that are not blank, by number: a document row, or why it is none.

    Raises UserError at the end when there are lines and none of them is a document.
    """
    lines = documents = 0
    first_problem = ""
    for number, line in enumerate(store.read_lines(path, MAX_LINE_BYTES), start=1):
        if _is_blank(line):
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
        raise no_documents(path, lines, first_problem)


def no_documents(path: Path, lines: int, first_problem: str) -> UserError:
    """The error for a file of nothing but broken lines."""
    return UserError(f"{path}: none of its {lines} lines is a document; {first_problem}")


def count_pieces(path: Path) -> int:
    """How many tasks a JSONL file is: one for each of its pieces; a compressed one can be read from its start only."""
    if store.is_compressed(path):
        return 1
    return max(1, -(-path.stat().st_size // PIECE_BYTES))


def ingest_jsonl(path: Path, folder: Path, name: str, piece: int, *, alone: bool) -> Counts:
    """Convert one piece, of a compressed file all of them, to shards `<name>-<piece>.parquet` in `folder`.

    Broken lines go to `broken/<name>-<piece>.parquet`; totals count the lines of each piece, blank ones too.
    Damaged compressed data is a UserError, or for a file that is not alone one more broken row after the good ones.
    """
    counts = Counts()
    for number, lines in itertools.groupby(_lines_of(path, piece, alone), lambda line: line[0] // PIECE_BYTES):
        _ingest_piece((line for _, line in lines), path.name, folder, f"{name}-{number:05d}", counts)
    return counts


def _lines_of(path: Path, piece: int, alone: bool) -> Iterator[tuple[int, bytes | BrokenLineError]]:
    """Where each line begins, and the line; of a file that is not alone, what is wrong with all of it comes last."""
    start, stop = (0, None) if store.is_compressed(path) else (piece * PIECE_BYTES, (piece + 1) * PIECE_BYTES)
    offset = start
    try:
        for offset, line in store.placed_lines(path, MAX_LINE_BYTES, start, stop):
            yield offset, line
    except UserError as error:
        if alone:
            raise
        yield offset, BrokenLineError(UNREADABLE_FILE, reason_of(error, path))


def _ingest_piece(
    lines: Iterable[bytes | BrokenLineError], source: str, folder: Path, name: str, counts: Counts
) -> None:
    number = 0
    with (
        TableWriter(folder / f"{name}.parquet", DOCUMENT_SCHEMA, optional=True) as documents,
        TableWriter(folder / BROKEN / f"{name}.parquet", BROKEN_SCHEMA, optional=True) as broken,
    ):
        for number, line in enumerate(lines, start=1):
            try:
                if isinstance(line, BrokenLineError):
                    raise line
                if not _is_blank(line):
                    documents.write(parse_document(line, source))
            except BrokenLineError as problem:
                place = None if problem.rule == UNREADABLE_FILE else number
                broken.write({"line": place, "rule": problem.rule, "value": str(problem)})
                counts.reject(problem.rule)
    counts.rows_in += documents.rows + broken.rows
    counts.rows_out += documents.rows
    counts.total(name, number)


def write_lines(part: Path, chunk: Path) -> None:
    """The rows of a Parquet file as JSON lines, bytes as hex; compressed by the suffix of `chunk`, in whole members."""
    with chunk.open("wb") as file:
        for lines in _bundles(map(_to_line, read_rows(part))):
            file.write(store.pack(lines, chunk.suffix))


def _bundles(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines end to end, some megabytes at a time: what memory holds, and what becomes one compressed member."""
    bundle: list[bytes] = []
    size = 0
    for line in lines:
        bundle.append(line)
        size += len(line)
        if size >= BUNDLE_BYTES:
            yield b"".join(bundle)
            bundle, size = [], 0
    if bundle:
        yield b"".join(bundle)


def _to_line(row: Row) -> bytes:
    return orjson.dumps(row, default=bytes.hex, option=orjson.OPT_APPEND_NEWLINE)
