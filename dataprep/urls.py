"""Stage `urls`: the list of pages to fetch: canonical, free of what the blacklists name, each once.

LISTS (a file of one URL per line, a JSONL file with a `url` in each line, compressed or not, or a
folder of such) -> part-*.parquet with `url` (canonical) and `original`, sorted by `url`. Each line
that is left out goes to rejected/ with its rule (domain_blacklist, extension_blacklist, too_short,
malformed, duplicate, invalid_utf8, ...) and the value seen. An empty file gives an empty list.

Run: python -m dataprep.urls LISTS OUTPUT
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from dataprep.url_lists.files import UnreadableLineError, numbered_lines, read_url, url_lists
from pipelines import store
from pipelines.command import Part, Source, Table
from pipelines.config import Count, NonNegative, SourcePath, given
from pipelines.documents import REJECTED, REJECTED_SCHEMA, TableWriter, is_jsonl, read_rows
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("tldextract", "pyarrow")

URL_SCHEMA = pa.schema([("url", pa.string()), ("original", pa.string())])
RUN_SCHEMA = pa.schema([("url", pa.string()), ("file", pa.int32()), ("line", pa.int64()), ("original", pa.string())])
RUN_ROWS = 500_000
"""Lines sorted in memory at once: about 200 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlsConfig:
    """What a URL must be like to be fetched."""

    blacklists: SourcePath = ""
    """Folder of domains-<category>.txt and extensions-<category>.txt to use in place of the built-in ones."""
    longest_short: NonNegative = 8
    """Characters; a line of at most so many is too short to be a URL."""
    rows_per_part: Count = 100_000
    """URLs in each part of the output."""


def urls(config: UrlsConfig, run: StageRun, lists: Source, output: Table) -> None:
    """Judge every line, then merge the sorted survivors and drop those that were seen before."""
    from dataprep.url_lists import rules as url_rules

    blacklists = url_rules.list_files(given(config.blacklists) or url_rules.LISTS)
    # The blacklists are files of the part, so that a changed list makes a shard's receipt void.
    parts = [Part(f"list-{i:05d}", (file, *blacklists)) for i, file in enumerate(url_lists(lists.path))]
    judged = run.map(judge_list, parts, config, into="judged")
    output.counts.add(judged)
    run.step(merge_lists, "part", store.list_files(run.scratch / "judged"), config.rows_per_part, into=output)


def judge_list(part: Part, folder: Path, config: UrlsConfig) -> Counts:
    """One list: sorted runs of canonical URLs, and its rejected lines. `rows_out` is left to the merge."""
    from dataprep.url_lists.rules import judge, load_blacklists

    file, *blacklists = part.files
    lists = load_blacklists(blacklists)
    number = int(part.name.rpartition("-")[2])
    runs = SortedRuns(folder, part.name)
    with RejectedLines(folder / REJECTED / f"{part.name}.parquet") as rejected:
        for line_number, line in numbered_lines(file):
            rejected.counts.rows_in += 1
            try:
                url = read_url(line, in_json=is_jsonl(file))
            except UnreadableLineError as problem:
                rejected.write(line.decode("utf-8", "backslashreplace"), problem.rule, f"line {line_number}: {problem}")
                continue
            verdict = judge(url, lists, config.longest_short)
            if verdict.rule:
                rejected.write(url, verdict.rule, verdict.value)
            else:
                runs.add((verdict.canonical, number, line_number, url))
        runs.close()
        return rejected.counts


class RejectedLines:
    """The rejected rows of one list and its counts; the file exists only when there are any."""

    def __init__(self, path: Path) -> None:
        self.counts = Counts()
        self._path = path
        self._writer: TableWriter | None = None

    def write(self, url: str, rule: str, value: str) -> None:
        """Write down one line that is left out."""
        self._writer = self._writer or TableWriter(self._path, REJECTED_SCHEMA)
        self._writer.write({"doc_id": None, "url": url, "rule": rule, "value": value})
        self.counts.reject(rule)

    def __enter__(self) -> "RejectedLines":
        return self

    def __exit__(self, *trace: Any) -> None:
        if self._writer:
            self._writer.__exit__(*trace)


class SortedRuns:
    """Collects rows and writes them as sorted files of at most RUN_ROWS each."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._rows: list[tuple[str, int, int, str]] = []
        self._runs = 0

    def add(self, row: tuple[str, int, int, str]) -> None:
        """Collect one row of RUN_SCHEMA."""
        self._rows.append(row)
        if len(self._rows) == RUN_ROWS:
            self._write()

    def close(self) -> None:
        """Write what is left; a list without survivors has one run without rows."""
        if self._rows or not self._runs:
            self._write()

    def _write(self) -> None:
        self._rows.sort()
        with TableWriter(self._folder / f"{self._name}-run-{self._runs:05d}.parquet", RUN_SCHEMA) as writer:
            for row in self._rows:
                writer.write(dict(zip(RUN_SCHEMA.names, row, strict=True)))
        self._runs += 1
        self._rows = []


def merge_lists(part: Part, folder: Path, rows_per_part: int) -> Counts:
    """Merge sorted runs into parts of the output; the first line of each canonical URL stays."""
    from dataprep.url_lists.rules import DUPLICATE

    runs = [file for file in part.files if file.parent.name != REJECTED]
    for file in part.files:
        if file.parent.name == REJECTED:
            store.link_or_copy(file, folder / REJECTED / file.name)
    counts = Counts()
    kept: dict[str, Any] | None = None
    with RejectedLines(folder / REJECTED / "duplicates.parquet") as duplicates, UrlWriter(folder, rows_per_part) as out:
        for row in merged(runs):
            if kept is not None and row["url"] == kept["url"]:
                duplicates.write(row["original"], DUPLICATE, f"of {kept['original']}")
                continue
            kept = row
            out.write(row)
        counts.add(duplicates.counts)
    counts.rows_out = out.rows
    return counts


def merged(runs: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The rows of sorted runs in one order: by URL, then by their place in the input."""
    return heapq.merge(*(read_rows(file) for file in runs), key=lambda row: (row["url"], row["file"], row["line"]))


class UrlWriter:
    """Writes part-00000.parquet and so on, each of `rows_per_part` rows; one part at least."""

    def __init__(self, folder: Path, rows_per_part: int) -> None:
        self.rows = 0
        self._folder = folder
        self._rows_per_part = rows_per_part
        self._writer = self._next()

    def _next(self) -> TableWriter:
        return TableWriter(self._folder / f"part-{self.rows // self._rows_per_part:05d}.parquet", URL_SCHEMA)

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; a full part is closed first."""
        if self._writer.rows == self._rows_per_part:
            self._writer.__exit__(None, None, None)
            self._writer = self._next()
        self._writer.write(row)
        self.rows += 1

    def __enter__(self) -> "UrlWriter":
        return self

    def __exit__(self, *trace: Any) -> None:
        self._writer.__exit__(*trace)


if __name__ == "__main__":
    stage_main("dataprep.urls")
