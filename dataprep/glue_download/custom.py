"""A user's own task: pairs or single texts with labels in JSONL, CSV, TSV or Parquet files.

The folder has a train file, a validation file (or dev, valid, val) and optionally a test file, each with the named
columns. CSV has quotes as in RFC 4180; in TSV a quote is text, as in GLUE. Labels are names, numbers or scores; a test
file without labels is only predicted.
"""

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from dataprep.glue.tasks import CUSTOM, HIDDEN_LABEL, GlueTask, RowError, Rows, squeeze
from dataprep.readers.parquet import bounded_batches
from pipelines import store
from pipelines.documents import JSONL_SUFFIXES, open_parquet
from pipelines.errors import ConfigError, UserError, did_you_mean
from pipelines.utf import text_lines

LabelKind = Literal["auto", "classes", "score"]
MAX_CLASSES = 1000
"""More distinct labels than this are treated as a mistake, unless they are all named."""

_SPLITS: dict[str, int | None] = {"train": None, "validation": None, "test": None}
_SUFFIXES = (*JSONL_SUFFIXES, ".csv", ".tsv", ".parquet")
_RESERVED = ("label", "index", "input_ids")
_WHOLE = re.compile(r"(-?\d+)(?:\.0*)?")
_CSV_CELL = 1 << 27
"""Longest cell of a CSV file, in characters."""

RawRows = Iterator[tuple[str, dict[str, Any] | RowError]]
"""The location of each row, and its cells by column or the error in it."""


def check_columns(columns: Sequence[str], label: str, labels: Sequence[str]) -> None:
    """Raise ConfigError for columns that a model cannot read, and labels that it cannot learn."""
    if not 1 <= len(columns) <= 2 or len(set(columns)) < len(columns):
        raise ConfigError(
            f"glue_download.columns: {CUSTOM} needs the names of its one or two text columns, such as --columns "
            f"sentence1 sentence2; got {' '.join(columns) or 'none'}"
        )
    if taken := [name for name in columns if name in (*_RESERVED, label)]:
        raise ConfigError(f"glue_download.columns: {taken[0]}: the tables have a column of that name; rename yours")
    if len(labels) == 1 or len(set(labels)) < len(labels):
        raise ConfigError(f"glue_download.labels: expected two or more different names, got {' '.join(labels)}")


def custom_files(source: Path) -> list[Path]:
    """Return the files of the splits in `source` or its folder `custom`; raise UserError if one is missing."""
    folder = source / CUSTOM if (source / CUSTOM).is_dir() else source
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name one with train and validation files")
    files = sorted(path for path in folder.iterdir() if path.is_file() and _format(path) in _SUFFIXES)
    by_split = {split: [path for path in files if _split_of(path) == split] for split in _SPLITS}
    for split, candidates in by_split.items():
        if len(candidates) > 1:
            raise UserError(f"{folder}: several files for {split}: {', '.join(f.name for f in candidates)}; keep one")
        if not candidates and split != "test":
            names = ", ".join(path.name for path in files) or "none"
            raise UserError(
                f"{folder}: has no file for {split}: expected {split}.jsonl, .csv, .tsv or .parquet, found {names}"
            )
    return [path for candidates in by_split.values() for path in candidates]


def custom_task(
    files: Sequence[Path], columns: Sequence[str], label: str, labels: Sequence[str], kind: LabelKind
) -> GlueTask:
    """Return the task of the files; unless named, its labels are those of the train file."""
    names = tuple(labels) if labels or kind == "score" else class_names(files[0], columns, label, kind)
    return GlueTask(
        name=CUSTOM,
        folders=(),
        texts={name: (name,) for name in columns},
        label_columns=(label,),
        labels=names,
        published={split: rows for split, rows in _SPLITS.items() if split in map(_split_of, files)},
    )


def class_names(train: Path, columns: Sequence[str], label: str, kind: LabelKind) -> tuple[str, ...]:
    """Return the labels of the train file, numbers by value; none for scores: numbers of which some are not whole."""
    names = {
        name
        for _, row in raw_rows(train, [*columns, label])
        if not isinstance(row, RowError) and _is_text(name := label_name(row.get(label))) and name
    }
    numbers = [number for name in names if (number := _number(name)) is not None]
    if kind == "auto" and names and len(numbers) == len(names) and not all(number.is_integer() for number in numbers):
        return ()
    if not 2 <= len(names) <= MAX_CLASSES:
        examples = ", ".join(sorted(names)[:5]) or "none"
        raise UserError(
            f"{train}: {len(names)} different labels in column {label!r} ({examples}), expected 2 to {MAX_CLASSES}; "
            "name the column with --label, all classes with --labels, or say that labels are numbers: "
            "--label-kind score"
        )
    return tuple(sorted(names, key=float if len(numbers) == len(names) else None))


def label_name(value: object) -> str:
    """Return a label as text: `1`, `1.0` and "1" are the same class, true is `true`, None and NaN are empty."""
    if isinstance(value, bool):
        return str(value).lower()
    text = "" if value is None or value != value else str(value).strip()
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def _is_text(text: str) -> bool:
    """Return whether text can be written as UTF-8, without invalid bytes or half a surrogate pair from JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(name: str) -> float | None:
    try:
        number = float(name)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def read_custom(files: Sequence[Path], task: GlueTask) -> Iterator[tuple[str, Path, Rows]]:
    """Yield (split, file, rows) for each file of the task."""
    for file in files:
        split = _split_of(file)
        yield split, file, _examples(file, task, split)


def _examples(file: Path, task: GlueTask, split: str) -> Rows:
    (label,) = task.label_columns
    wanted, optional = ([*task.texts], [label]) if split == "test" else ([*task.texts, label], [])
    for index, (location, row) in enumerate(raw_rows(file, wanted, optional)):
        try:
            if isinstance(row, RowError):
                raise row
            yield {**_example(row, task, label, split), "index": index}
        except RowError as problem:
            yield RowError(problem.rule, f"{location}: {problem}")


def _example(row: dict[str, Any], task: GlueTask, label: str, split: str) -> dict[str, Any]:
    for name in task.texts:
        if name not in row:
            raise RowError("missing_column", f"has no {name!r}.{did_you_mean(name, row)}")
        if not isinstance(row[name] or "", str):
            raise RowError("not_text", f"{name}: expected text, got {row[name]!r}")
    texts = {name: row[name] or "" for name in task.texts}
    if not any(text.strip() for text in texts.values()):
        raise RowError("empty_text", "its texts are empty")
    name = label_name(row.get(label))
    if not all(map(_is_text, (*texts.values(), name))):
        raise RowError("invalid_utf8", "not valid UTF-8, or half of a surrogate pair")
    if name:
        return {**texts, "label": task.label(name, split)}
    if split != "test":
        raise RowError("no_label", f"has no {label!r}")
    return {**texts, "label": HIDDEN_LABEL}


def raw_rows(file: Path, wanted: Sequence[str], optional: Sequence[str] = ()) -> RawRows:
    """Return the rows of a file by its format; raise UserError for a table that lacks a wanted column."""
    kind = _format(file)
    if kind == ".parquet":
        return _parquet_rows(file, wanted, optional)
    if kind in JSONL_SUFFIXES:
        return _json_rows(file)
    return _table_rows(file, wanted, _csv_cells(file) if kind == ".csv" else _tsv_cells(file))


def _format(file: Path) -> str:
    plain = file.with_suffix("") if store.is_compressed(file) else file
    return plain.suffix.lower()


def _split_of(file: Path) -> str:
    names = {"dev": "validation", "valid": "validation", "val": "validation"}
    name = squeeze(file.name.partition(".")[0])
    return names.get(name, name)


def _parquet_rows(file: Path, wanted: Sequence[str], optional: Sequence[str]) -> RawRows:
    with open_parquet(file) as opened:
        header = opened.schema_arrow.names
        _check_header(f"{file}", header, wanted)
        columns = [*wanted, *(name for name in optional if name in header)]
        rows = (row for batch in bounded_batches(file, opened, columns) for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            yield f"{file.name}:{number}", row


def _json_rows(file: Path) -> RawRows:
    for number, line in enumerate(text_lines(file), start=1):
        if line.strip():
            yield f"{file.name}:{number}", _json_row(line)


def _json_row(line: bytes) -> dict[str, Any] | RowError:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        return RowError("invalid_utf8", f"not valid UTF-8 at byte {error.start}")
    except (ValueError, RecursionError) as error:
        return RowError("invalid_json", f"not valid JSON ({error})")
    if not isinstance(value, dict):
        return RowError("invalid_json", "not a JSON object")
    return cast(dict[str, Any], value)


def _table_rows(file: Path, wanted: Sequence[str], cells: Iterator[tuple[int, list[str]]]) -> RawRows:
    """Yield the rows of a table whose first row is its header."""
    number, header = next(cells, (1, []))
    _check_header(f"{file}:{number}", header, wanted)
    for number, row in cells:
        location = f"{file.name}:{number}"
        if len(row) != len(header):
            yield location, RowError("wrong_column_count", f"{len(row)} columns, expected {len(header)}")
        else:
            yield location, dict(zip(header, row, strict=True))


def _check_header(location: str, header: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in header:
            raise UserError(
                f"{location}: has no column {name!r}, which --columns or --label names.{did_you_mean(name, header)}"
            )


def _lines(file: Path) -> Iterator[str]:
    """Yield lines of text; a byte that is not UTF-8 becomes a lone surrogate, which valid text never contains."""
    return (line.decode(errors="surrogateescape") for line in text_lines(file))


def _tsv_cells(file: Path) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in enumerate(_lines(file), start=1) if line)


def _csv_cells(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield rows with their first line; raise UserError for a misplaced quote, which may have swallowed rows."""
    csv.field_size_limit(_CSV_CELL)
    reader = csv.reader((f"{line}\n" for line in _lines(file)), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(
                f"{file}:{number}: not valid CSV ({error}): double the quotes inside a quoted cell, and close it"
            ) from None
        if row:
            yield number, row
