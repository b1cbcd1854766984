"""One piece of a list: its URLs that pass go to sorted runs, all other lines to `rejected/`."""

import collections
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.compute import SplitPatternOptions, call_function

from dataprep.url_lists import files
from dataprep.url_lists.blacklists import Compat, open_blacklists
from dataprep.url_lists.files import UnreadableLineError
from dataprep.url_lists.megatron import MegatronJudge
from dataprep.url_lists.merging import REJECTED_LINES_SCHEMA, ROW_GROUP_ROWS
from dataprep.url_lists.one_look import Looked, OneLook
from dataprep.url_lists.pieces import Piece, read_blocks
from dataprep.url_lists.rules import Judge, Verdict
from dataprep.url_lists.runs import RUN_SCHEMA, RunWriter, release_memory, split_urls
from dataprep.url_lists.submissions import SubmissionRules, unescaped
from pipelines.documents import is_jsonl
from pipelines.errors import UserError
from pipelines.identity import canonical_url
from pipelines.manifest import Counts

_MARK_BYTES = files.BYTE_ORDER_MARK.encode()
_UNREADABLE = ("invalid_utf8", "invalid_json", "no_url")


class RejectedLines:
    """The rejected lines of one piece and its counts; the file exists only when there are any."""

    def __init__(self, path: Path, list_name: str) -> None:
        self.counts = Counts()
        self._path = path
        self._list_name = list_name
        self._block: list[tuple[Any, ...]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._writer: pq.ParquetWriter | None = None

    def add(self, line: int, url: str, rule: str, value: str, canonical: str | None) -> None:
        """Take in one line of the block at hand, in any order."""
        self._block.append((line, url, rule, value, canonical))

    def end_block(self) -> None:
        """Count the lines of a block and put them in order; row groups have a fixed size."""
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
        """Write what is left."""
        if self._rows:
            self._write(self._rows)
        if self._writer:
            self._writer.close()


def open_judge(tables: Sequence[Path], compat: Compat, longest_short: int) -> "LookAndJudge":
    """The rules for these blacklists; a process that judges several pieces keeps what it knows of their hosts."""
    return _open_judge(tuple(tables), tuple(file.stat().st_mtime_ns for file in tables), compat, longest_short)


@functools.lru_cache(maxsize=1)
def _open_judge(
    tables: tuple[Path, ...], _times: tuple[int, ...], compat: Compat, longest_short: int
) -> "LookAndJudge":
    lists = open_blacklists(tables)
    if compat == "megatron":
        return LookAndJudge(_look_away, MegatronJudge(lists, longest_short), str, _unsplit)
    judge = Judge(lists, longest_short)
    return LookAndJudge(OneLook(judge), judge, canonical_url, split_urls)


class LookAndJudge(NamedTuple):
    """How lines are judged: by one look at many, or one by one; their canonical form, its keys and schemes."""

    look: Callable[[pa.Array], Looked]
    judge: Callable[[str], Verdict]
    canonical: Callable[[str], str | None]
    split: Callable[[pa.Array], tuple[pa.Array, pa.Array]]


class PieceJudge:
    """Reads the lines of one piece and asks the rules about each."""

    def __init__(
        self,
        piece: Piece,
        judge: LookAndJudge,
        rules: SubmissionRules,
        runs: RunWriter,
        rejected: RejectedLines,
    ) -> None:
        self._piece = piece
        self._judge = judge.judge
        self._canonical = judge.canonical
        self._split = judge.split
        self._rules = rules
        self._runs = runs
        self._rejected = rejected
        self._in_json = is_jsonl(piece.file) or rules.kind == "submissions"
        self._look = _look_away if self._in_json else judge.look
        self._first_problem = ""

    def run(self) -> Counts:
        """Judge all lines; UserError when the list turns out to be none. `rows_out` is left to the merge."""
        for first_line, block in read_blocks(self._piece):
            self._judge_block(first_line, block)
        self._runs.flush()
        self._rejected.close()
        release_memory()
        counts = self._rejected.counts
        unreadable = sum(counts.rejected.get(rule, 0) for rule in _UNREADABLE)
        if self._piece.first_line == 1 and counts.rows_in and unreadable == counts.rows_in:
            raise UserError(
                f"{self._piece.file}: none of its {unreadable} lines holds a URL; {self._first_problem}; give URLs as "
                "lines of text, or JSON lines with a key 'url'"
            )
        return counts

    def _judge_block(self, first_line: int, block: bytes) -> None:
        """Most lines are settled by one look at all of them, the others are read one by one."""
        lines, invalid = split_lines(block)
        passed, broken = self._look(lines)
        settled = passed.copy()
        settled[[row for row, _ in broken]] = True
        texts = lines.take(pa.array([row for row, _ in broken], pa.int64())).to_pylist()
        for (row, verdict), line in zip(broken, texts, strict=True):
            self._rejected.add(first_line + row, line, verdict.rule, verdict.value, line)
        found: list[tuple[str, str | None, int]] = []
        left = zip(np.flatnonzero(~settled).tolist(), lines.filter(pa.array(~settled)).to_pylist(), strict=True)
        for row, line in left:
            if kept := self._read_and_judge(invalid.get(row) or line, first_line + row):
                found.append((*kept, first_line + row))
        self._rejected.end_block()
        self._rejected.counts.rows_in += int(passed.sum()) + len(found)
        self._runs.add(self._kept_rows(lines.filter(pa.array(passed)), np.flatnonzero(passed) + first_line, found))

    def _kept_rows(
        self, urls: pa.Array, numbers: np.ndarray[Any, Any], found: Sequence[tuple[str, str | None, int]]
    ) -> pa.Table:
        """The kept lines of a block in the order of the list: those of one look, and those found one by one."""
        more_urls, originals, more_numbers = zip(*found, strict=True) if found else ((), (), ())
        all_numbers = np.concatenate([numbers, np.array(more_numbers, np.int64)])
        keys, schemes = self._split(pa.concat_arrays([urls, pa.array(more_urls, pa.large_string())]))
        columns = [
            keys,
            schemes,
            pa.concat_arrays([pa.nulls(len(urls), pa.large_string()), pa.array(originals, pa.large_string())]),
            pa.repeat(pa.scalar(self._piece.list_number, pa.int32()), len(keys)),
            pa.array(all_numbers),
        ]
        return pa.table(columns, schema=RUN_SCHEMA).take(pa.array(np.argsort(all_numbers)))

    def _read_and_judge(self, line: str | bytes, number: int) -> tuple[str, str | None] | None:
        """(canonical URL, the line's spelling where that is another); None for a line that gives no URL."""
        found = self._read(line, number)
        if found is None:
            return None
        url, original = found
        canonical, rule, value = self._judge(url)
        if rule:
            self._rejected.add(number, original, rule, value, self._canonical(url))
            return None
        return canonical, None if canonical == original else original

    def _read(self, line: str | bytes, number: int) -> tuple[str, str] | None:
        """(URL, its spelling in the line); None for an empty line, a comment or a rejected line."""
        if isinstance(line, bytes):
            text = line.strip().removeprefix(_MARK_BYTES)
        else:
            text = line.strip(files.SPACE).removeprefix(files.BYTE_ORDER_MARK)
        if not text or text[:1] in ("#", b"#"):
            return None
        try:
            return self._read_text(files.decode(text) if isinstance(text, bytes) else text, number)
        except UnreadableLineError as problem:
            shown = text.decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
            self._first_problem = self._first_problem or f"line {number}: {problem}"
            self._rejected.add(number, shown, problem.rule, f"line {number}: {problem}", None)
            return None

    def _read_text(self, text: str, number: int) -> tuple[str, str] | None:
        """As `_read`, for a URL or a JSON record; None for a submission that breaks a rule."""
        if not self._in_json and not text.startswith("{"):
            return text, text
        record = files.read_record(text)
        original = files.record_url(record)
        if not self._rules.applies(record):
            return original, original
        url = unescaped(original)
        if broken := self._rules.broken(record):
            rule, value = broken
            self._rejected.add(number, original, rule, value, self._canonical(url))
            return None
        return url, original


def _look_away(lines: pa.Array) -> Looked:
    return Looked(np.zeros(len(lines), bool), [])


def _unsplit(lines: pa.Array) -> tuple[pa.Array, pa.Array]:
    return lines, pa.repeat(pa.scalar(0, pa.int8()), len(lines))


def split_lines(block: bytes) -> tuple[pa.Array, dict[int, bytes]]:
    """The lines of a block as a column; those that are no UTF-8 are empty there, and given apart by their row."""
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
