"""Judge one chunk of a list: URLs that pass go to sorted runs, all other lines to `rejected/`."""

import collections
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.compute import SplitPatternOptions, call_function

from dataprep.urls.blacklists import open_blacklists
from dataprep.urls.config import Compat
from dataprep.urls.megatron import MegatronJudge
from dataprep.urls.reddit import SubmissionRules, unescaped
from dataprep.urls.rules import FastPath, FastVerdicts, Judge, Verdict
from dataprep.urls.sort import (
    REJECTED_LINES_SCHEMA,
    ROW_GROUP_ROWS,
    RUN_SCHEMA,
    RunWriter,
    release_memory,
    split_urls,
)
from dataprep.web.url_lists import (
    BYTE_ORDER_MARK,
    WHITE_SPACE,
    Chunk,
    UnreadableLineError,
    decode,
    holds_json,
    read_blocks,
    read_record,
    record_url,
)
from pipelines.errors import UserError
from pipelines.identity import canonical_url
from pipelines.manifest import Counts

_MARK_BYTES = BYTE_ORDER_MARK.encode()
_UNREADABLE = ("invalid_utf8", "invalid_json", "no_url")


class RejectedLines:
    """The rejected lines of one chunk, and its counts; the file is only made if there are any."""

    def __init__(self, path: Path, list_name: str) -> None:
        self.counts = Counts()
        self._path = path
        self._list_name = list_name
        self._block: list[tuple[Any, ...]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, line: int, url: str, rule: str, value: str, canonical: str | None) -> None:
        """Add a line of the current block; its lines may come in any order."""
        self._block.append((line, url, rule, value, canonical))

    def end_block(self) -> None:
        """Count and sort the lines of the block, and write full row groups, which have a fixed size."""
        self.counts.rows_in += len(self._block)
        for rule, number in collections.Counter(row[2] for row in self._block).items():
            self.counts.reject(rule, number)
        self._rows += sorted(self._block)
        self._block = []
        while len(self._rows) >= ROW_GROUP_ROWS:
            self._write(self._rows[:ROW_GROUP_ROWS])
            self._rows = self._rows[ROW_GROUP_ROWS:]

    def _write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                str(self._path), REJECTED_LINES_SCHEMA, compression="zstd", compression_level=3
            )
        line, url, rule, value, canonical = (list(column) for column in zip(*rows, strict=True))
        columns = [[None] * len(rows), url, rule, value, canonical, [self._list_name] * len(rows), line]
        self._writer.write_table(pa.table(columns, schema=REJECTED_LINES_SCHEMA))

    def close(self) -> None:
        """Write the remaining rows and close the file."""
        if self._rows:
            self._write(self._rows)
        if self._writer:
            self._writer.close()


def open_rules(tables: Sequence[Path], compat: Compat, longest_short: int) -> "LineRules":
    """Return the rules for these blacklists; a process that judges several chunks keeps its cache of hosts."""
    return _open_rules(tuple(tables), tuple(file.stat().st_mtime_ns for file in tables), compat, longest_short)


@functools.lru_cache(maxsize=1)
def _open_rules(tables: tuple[Path, ...], _times: tuple[int, ...], compat: Compat, longest_short: int) -> "LineRules":
    lists = open_blacklists(tables)
    if compat == "megatron":
        return LineRules(_no_fast_path, MegatronJudge(lists, longest_short), str, str, _unsplit)
    judge = Judge(lists, longest_short)
    return LineRules(FastPath(judge), judge, unescaped, canonical_url, split_urls)


class LineRules(NamedTuple):
    """The rules for lines: for whole columns and one by one; what a spelling means, and its canonical form, split."""

    fast_path: Callable[[pa.Array], FastVerdicts]
    judge: Callable[[str], Verdict]
    meant: Callable[[str], str]
    canonical: Callable[[str], str | None]
    split: Callable[[pa.Array], tuple[pa.Array, pa.Array]]


class ChunkJudge:
    """Reads the lines of one chunk and applies the rules to them."""

    def __init__(
        self,
        chunk: Chunk,
        rules: LineRules,
        submissions: SubmissionRules,
        runs: RunWriter,
        rejected: RejectedLines,
        url_key: str,
    ) -> None:
        self._chunk = chunk
        self._url_key = url_key
        self._judge = rules.judge
        self._meant = rules.meant
        self._canonical = rules.canonical
        self._split = rules.split
        self._submissions = submissions
        self._runs = runs
        self._rejected = rejected
        self._in_json = holds_json(chunk.file) or submissions.kind == "submissions"
        self._fast_path = _no_fast_path if self._in_json else rules.fast_path
        self._first_problem = ""

    def run(self) -> Counts:
        """Judge all lines; raises UserError if no line of the list can be read. The merge counts `rows_out`."""
        for first_line, block in read_blocks(self._chunk):
            self._judge_block(first_line, block)
        self._runs.flush()
        self._rejected.close()
        release_memory()
        counts = self._rejected.counts
        self._check_counts(counts)
        return counts

    def _check_counts(self, counts: Counts) -> None:
        """Raise UserError if every line of a list failed for one reason, which is then a mistake in the parameters."""
        if self._chunk.first_line > 1 or not counts.rows_in:
            return
        unreadable = sum(counts.rejected.get(rule, 0) for rule in _UNREADABLE)
        if unreadable == counts.rows_in:
            raise UserError(
                f"{self._chunk.file}: none of its {unreadable} lines holds a URL; {self._first_problem}; give URLs as "
                f"lines of text, or JSON lines with a key {self._url_key!r} (--url-key names another)"
            )

    def _judge_block(self, first_line: int, block: bytes) -> None:
        """Judge most lines by the fast path, all at once, and the others one by one."""
        lines, invalid = split_lines(block)
        passed, broken = self._fast_path(lines)
        settled = passed.copy()
        settled[[row for row, _ in broken]] = True
        texts = lines.take(pa.array([row for row, _ in broken], pa.int64())).to_pylist()
        for (row, verdict), line in zip(broken, texts, strict=True):
            self._rejected.add(first_line + row, line, verdict.rule, verdict.value, line)
        kept: list[tuple[str, str | None, int]] = []
        left = zip(np.flatnonzero(~settled).tolist(), lines.filter(pa.array(~settled)).to_pylist(), strict=True)
        for row, line in left:
            if url := self._read_and_judge(invalid.get(row) or line, first_line + row):
                kept.append((*url, first_line + row))
        self._rejected.end_block()
        self._rejected.counts.rows_in += int(passed.sum()) + len(kept)
        self._runs.add(self._run_rows(lines.filter(pa.array(passed)), np.flatnonzero(passed) + first_line, kept))

    def _run_rows(
        self, urls: pa.Array, numbers: np.ndarray[Any, Any], kept: Sequence[tuple[str, str | None, int]]
    ) -> pa.Table:
        """Return the rows of a block in the order of the list: those of the fast path, and those `kept` one by one."""
        more_urls, originals, more_numbers = zip(*kept, strict=True) if kept else ((), (), ())
        all_numbers = np.concatenate([numbers, np.array(more_numbers, np.int64)])
        keys, schemes = self._split(pa.concat_arrays([urls, pa.array(more_urls, pa.large_string())]))
        columns = [
            keys,
            schemes,
            pa.concat_arrays([pa.nulls(len(urls), pa.large_string()), pa.array(originals, pa.large_string())]),
            pa.repeat(pa.scalar(self._chunk.list_number, pa.int32()), len(keys)),
            pa.array(all_numbers),
        ]
        return pa.table(columns, schema=RUN_SCHEMA).take(pa.array(np.argsort(all_numbers)))

    def _read_and_judge(self, line: str | bytes, number: int) -> tuple[str, str | None] | None:
        """Return the canonical URL of a line, and the line's spelling if it differs; None for a line without a URL."""
        url_and_spelling = self._read(line, number)
        if url_and_spelling is None:
            return None
        url, original = url_and_spelling
        canonical, rule, value = self._judge(url)
        if rule:
            self._rejected.add(number, original, rule, value, self._canonical(url))
            return None
        return canonical, None if canonical == original else original

    def _read(self, line: str | bytes, number: int) -> tuple[str, str] | None:
        """Return the URL of a line, and its spelling there; None for an empty line, a comment or a rejected line."""
        if isinstance(line, bytes):
            text = line.strip().removeprefix(_MARK_BYTES)
        else:
            text = line.strip(WHITE_SPACE).removeprefix(BYTE_ORDER_MARK)
        if not text or text[:1] in ("#", b"#"):
            return None
        try:
            return self._read_text(decode(text) if isinstance(text, bytes) else text, number)
        except UnreadableLineError as problem:
            shown = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
            self._first_problem = self._first_problem or f"line {number}: {problem}"
            self._rejected.add(number, shown, problem.rule, f"line {number}: {problem}", None)
            return None

    def _read_text(self, text: str, number: int) -> tuple[str, str] | None:
        """Do what `_read` does, for a URL or a JSON record; return None for a submission that breaks a rule."""
        if not self._in_json and not text.startswith("{"):
            return self._meant(text), text
        record = read_record(text)
        original = record_url(record, self._url_key)
        if self._submissions.applies(record):
            url, broken = unescaped(original), self._submissions.broken(record, original)
        else:
            url, broken = self._meant(original), self._submissions.too_little(record)
        if broken:
            rule, value = broken
            self._rejected.add(number, original, rule, value, self._canonical(url))
            return None
        return url, original


def _no_fast_path(lines: pa.Array) -> FastVerdicts:
    return FastVerdicts(np.zeros(len(lines), bool), [])


def _unsplit(lines: pa.Array) -> tuple[pa.Array, pa.Array]:
    return lines, pa.repeat(pa.scalar(0, pa.int8()), len(lines))


def split_lines(block: bytes) -> tuple[pa.Array, dict[int, bytes]]:
    """Return the lines of a block as a column, and by row those that are not UTF-8, which are empty in the column."""
    options = SplitPatternOptions("\n")
    block = block.replace(b"\r\n", b"\n")
    invalid: dict[int, bytes] = {}
    try:
        text = pa.array([block.decode()], pa.large_string())
    except UnicodeDecodeError:
        lines = block.split(b"\n")
        invalid = {row: line for row, line in enumerate(lines) if not _is_utf8(line)}
        text = pa.array([b"\n".join(b"" if row in invalid else line for row, line in enumerate(lines))])
        text = text.cast(pa.large_string())
    return call_function("split_pattern", [text], options).flatten(), invalid


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True
