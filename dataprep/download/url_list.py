"""The URL list of a download: the parts written by the stage `urls`, or a plain list converted to such parts.

A plain list keeps its order; its URLs are made canonical, and its duplicates are found out of core.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataprep.download.key_table import KEY, KeySpill, keys_of, repeats
from dataprep.web.url_lists import (
    BYTE_ORDER_MARK,
    Chunk,
    UnreadableLineError,
    first_lines,
    holds_json,
    read_blocks,
    read_url,
    unescaped,
    url_lists,
)
from pipelines import store
from pipelines.command import Part, Source
from pipelines.config import given
from pipelines.documents import TableWriter, part_files, read_rows
from pipelines.forgotten import FORGOTTEN, ForgottenPages
from pipelines.identity import canonical_url
from pipelines.inputs import first_rows
from pipelines.manifest import Counts
from pipelines.run import StageRun

LISTED_SCHEMA = pa.schema([("url", pa.string()), ("rule", pa.string()), ("value", pa.string())])
ROWS_PER_PART = 1_000_000
FORGET_KEY = "download.forget"
"""The value of the rule `forgotten`: what names the list."""
_LINE = np.dtype([*KEY, ("line", "<i8")])
_BATCH = 1 << 14


@dataclass(frozen=True, slots=True)
class Listed:
    """One URL of the list; `rule` is set if a line of a plain list cannot be fetched."""

    url: str
    rule: str = ""
    value: str = ""


def list_parts(run: StageRun, urls: Source, forget: str = "") -> list[Path]:
    """Return the files of the list, in order; a plain list is converted in scratch, once.

    URLs of the list `forget` have the rule `forgotten` there.
    """
    if urls.manifest:
        parts = part_files(first_rows(run, urls, run.limit).path if run.limit else urls.path)
    else:
        lists = url_lists(urls.path)
        if run.limit:
            lists = first_lines(lists, run.limit, run.scratch / "limited")
        run.step(take_list, "list", lists, into="list")
        parts = part_files(run.scratch / "list")
    if not given(forget):
        return parts
    run.map(mark_forgotten, [Part(part.stem, (part,)) for part in parts], forget, into="marked_list")
    return [run.scratch / "marked_list" / f"{part.stem}.parquet" for part in parts]


def mark_forgotten(part: Part, folder: Path, forget: str) -> Counts:
    """Write one file of the list with the rule of the pages to forget."""
    pages = ForgottenPages(forget)
    with TableWriter(folder / f"{part.name}.parquet", LISTED_SCHEMA) as writer:
        for entry in listed_urls([part.file]):
            is_forgotten = not entry.rule and pages.covers(entry.url)
            kept = Listed(entry.url, FORGOTTEN, FORGET_KEY) if is_forgotten else entry
            writer.write({"url": kept.url, "rule": kept.rule, "value": kept.value})
    return Counts(rows_in=writer.rows, rows_out=writer.rows)


def listed_urls(parts: Sequence[Path]) -> Iterator[Listed]:
    """Yield the list in its order."""
    for part in parts:
        for row in read_rows(part):
            yield Listed(row["url"], row.get("rule", ""), row.get("value", ""))


def take_list(part: Part, folder: Path) -> Counts:
    """Write plain lists as parts of one list: every line with its canonical URL, or the rule by which it has none."""
    spill = KeySpill(folder / "keys", _LINE)
    draft = folder / "draft.parquet"
    batch: list[Listed] = []
    lines = 0
    with TableWriter(draft, LISTED_SCHEMA) as writer:
        for entry in _read_lines(part.files):
            writer.write({"url": entry.url, "rule": entry.rule, "value": entry.value})
            batch.append(entry)
            if len(batch) == _BATCH:
                lines = _add_keys(spill, batch, lines)
        lines = _add_keys(spill, batch, lines)
    repeated = np.zeros(lines, bool)
    for rows in spill.buckets():
        repeated[rows["line"][repeats(rows)]] = True
    _write_parts(draft, repeated, folder)
    store.remove(folder / "keys")
    draft.unlink()
    return Counts(rows_in=lines, rows_out=lines)


def _read_lines(files: Sequence[Path]) -> Iterator[Listed]:
    """Yield the canonical URL of each line, with the line's spelling as value."""
    for file in files:
        in_json = holds_json(file)
        for line in _filled_lines(file):
            try:
                original = read_url(line, in_json=in_json or line.startswith(b"{"))
            except UnreadableLineError as problem:
                yield Listed(line.decode("utf-8", "backslashreplace"), problem.rule, str(problem))
                continue
            url = canonical_url(unescaped(original))
            if url is None:
                yield Listed(original, "malformed", "not an http or https URL with a valid host")
            else:
                yield Listed(url, "", original)


def _filled_lines(file: Path) -> Iterator[bytes]:
    """Yield the lines, without byte order marks; skip blank lines and `#` comments."""
    for _, block in read_blocks(Chunk(file, number=0, list_number=0)):
        for line in block.split(b"\n"):
            stripped = line.strip().removeprefix(BYTE_ORDER_MARK.encode())
            if stripped and not stripped.startswith(b"#"):
                yield stripped


def _add_keys(spill: KeySpill, batch: list[Listed], lines: int) -> int:
    """Add the keys of a batch that begins at line `lines` to the spill; empty it, and return the next line."""
    rows = np.zeros(len(batch), _LINE)
    rows["key"] = keys_of(entry.url for entry in batch)
    rows["line"] = np.arange(lines, lines + len(batch))
    spill.add(rows[[not entry.rule for entry in batch]])
    batch.clear()
    return lines + len(rows)


def _write_parts(draft: Path, repeated: npt.NDArray[np.bool_], folder: Path) -> None:
    writer: TableWriter | None = None
    for number, row in enumerate(read_rows(draft)):
        if number % ROWS_PER_PART == 0:
            if writer:
                writer.__exit__(None, None, None)
            writer = TableWriter(folder / f"part-{number // ROWS_PER_PART:05d}.parquet", LISTED_SCHEMA)
        assert writer
        writer.write(_judged(row, repeated=bool(repeated[number])))
    if writer:
        writer.__exit__(None, None, None)


def _judged(row: dict[str, Any], *, repeated: bool) -> dict[str, Any]:
    if row["rule"]:
        return row
    if repeated:
        return {"url": row["value"], "rule": "duplicate", "value": row["url"]}
    return {**row, "value": ""}
