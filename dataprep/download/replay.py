"""Answers from an archive instead of the network: the same list and archive give the same bytes anywhere.

A table on disk, for more captures than memory holds, says which capture answers for which URL. The first choice is a
page that our crawler fetched for that URL of a list. Otherwise a capture answers for the canonical form of its own
URL; a page is preferred to a redirect, a redirect to any other response, and unreadable captures come last. Among
equals the last one in the archive counts.

Redirects are followed within the archive; a URL that is missing is `not_in_archive`. With an empty list every capture
of the archive answers for its own URL, in the order of the archive, and one that was superseded is `older_capture`.
Nothing is requested, so rows have no attempts, and no failure is temporary.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from dataprep.download.captures import Capture, archived, message_of, read_captures
from dataprep.download.config import Limits
from dataprep.download.key_table import KEY, KeyTable, Rows, key_of, keys_of
from dataprep.download.opt_outs import PageOptOuts
from dataprep.download.outcomes import NOT_IN_ARCHIVE, Fetched, Outcome, Packed
from dataprep.download.record_log import LogWriter, log_name
from dataprep.download.segments import Answers, plan_line
from dataprep.download.url_list import Listed, listed_urls
from dataprep.download.warc_writer import pack
from dataprep.readers.kinds import find_inputs
from dataprep.web.http import PAGE_STATUSES, HttpError, TooLargeError, escaped_fragment
from dataprep.web.sniffing import why_not_html
from pipelines import store
from pipelines.command import Part
from pipelines.errors import UserError
from pipelines.identity import split_url, without_tracking
from pipelines.manifest import Counts
from pipelines.run import StageRun

OLDER_CAPTURE = "older_capture"
TOO_MANY_REDIRECTS = "too_many_redirects"
UNREADABLE, OTHER, REDIRECT, PAGE, LISTED = range(5)
"""Ranks of captures, the higher the better."""
CAPTURE = np.dtype(
    [*KEY, ("target", "S16"), ("offset", "<u8"), ("file", "<u4"), ("rank", "<u2"), ("own_row", "<u2")],
)
"""A row: key of the URL, key of a redirect's target, position of the capture; `own_row` is 1 in one row of each."""
_NO_KEY = bytes(16)
_BATCH = 1 << 16
_Row = tuple[bytes, bytes, int, int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A URL to answer, and the chain of captures that it leads to; or the rule by which it has no answer."""

    url: str
    """Empty if a capture answers for its own URL."""
    captures: Sequence[Sequence[int]]
    """File number in the archive and offset of each capture."""
    rule: str = ""
    value: str = ""


def answer_from_archive(
    limits: Limits, opt_outs: PageOptOuts, run: StageRun, listed: Sequence[Path], archive: Path, urls_per_segment: int
) -> Answers:
    """Answer every URL of the list, or every capture of the archive."""
    files = archive_files(archive)
    parts = [Part(f"archive-{i:05d}", (file,)) for i, file in enumerate(files)]
    if not run.map(index_archive, parts, limits.max_body_bytes, into="captures").rows_out:
        raise UserError(f"{archive}: holds no HTTP response to answer with; give WARC or ARC files of a crawl")
    rows = [run.scratch / "captures" / f"{part.name}.rows" for part in parts]
    table = capture_table(run.scratch / "capture_table", rows)
    entries = listed_urls(listed)
    first = next(entries, None)
    questions = (
        capture_questions(table, rows)
        if first is None
        else url_questions(table, chain([first], entries), limits.max_redirects)
    )
    plans = write_questions(questions, urls_per_segment, run.scratch / "questions")
    ranges = [Part(plan.stem, (plan,)) for plan in plans]
    names = [str(file) for file in files]
    run.map(answer_range, ranges, names, limits.max_body_bytes, limits.max_redirects, opt_outs, into="answers")
    folder = run.scratch / "answers"
    return Answers([folder / f"{part.name}.jsonl" for part in ranges], folder)


def archive_files(archive: Path) -> list[Path]:
    """Return the WARC and ARC files of `archive`, a file or a folder, in order of name."""
    if not archive.exists():
        raise UserError(f"{archive}: no such file or folder; check download.replay (--replay)")
    files = [file for each in find_inputs(archive, "auto").inputs if each.kind == "warc" for file in each.files]
    if not files:
        raise UserError(f"{archive}: holds no archive of a crawl (.warc or .arc, also .gz or .zst)")
    return files


def index_archive(part: Part, folder: Path, max_bytes: int) -> Counts:
    """Write the rows of one archive, in its order; the part's name ends with the number of the archive."""
    number, counts = int(part.name.rpartition("-")[2]), Counts()
    # One capture at a time, since each holds its page.
    rows = (row for capture in read_captures(part.file, max_bytes) for row in _rows(capture, number))
    with (folder / f"{part.name}.rows").open("wb") as file:
        while chunk := list(islice(rows, _BATCH)):
            batch = np.array(chunk, CAPTURE)
            batch.tofile(file)
            counts.rows_out += int(batch["own_row"].sum())
    return counts


def _rows(capture: Capture, number: int) -> Iterator[_Row]:
    rank, target = _rank(capture)
    own_row = 1
    if rank == PAGE and capture.list_url:
        yield key_of(normal(capture.list_url)), _NO_KEY, capture.offset, number, LISTED, own_row
        own_row = 0
    yield key_of(normal(capture.url)), target, capture.offset, number, rank, own_row


def _rank(capture: Capture) -> tuple[int, bytes]:
    """Return how well a capture answers for its URL, and the key of its redirect target."""
    if capture.fault[0]:
        return UNREADABLE, _NO_KEY
    try:
        message = message_of(capture)
    except HttpError:
        return UNREADABLE, _NO_KEY
    if message.redirect:
        return REDIRECT, key_of(normal(message.redirect))
    return (PAGE if message.response.status in PAGE_STATUSES else OTHER), _NO_KEY


def normal(url: str) -> str:
    """Return the form in which URLs are compared: the canonical form as it is requested, if there is one."""
    address = split_url(url)
    return without_tracking(escaped_fragment(address)).url if address else url


def capture_table(folder: Path, files: Sequence[Path]) -> KeyTable:
    """Build the table of all row files: for each URL the capture that answers."""

    def batches() -> Iterator[Rows]:
        for rank in (UNREADABLE, OTHER, REDIRECT, PAGE, LISTED):
            for rows in read_rows(files):
                yield rows[rows["rank"] == rank]

    return KeyTable.build(folder, CAPTURE, batches())


def read_rows(files: Iterable[Path]) -> Iterator[Rows]:
    """Yield all rows of the row files, in order, in batches."""
    for path in files:
        with path.open("rb") as file:
            while len(rows := np.fromfile(file, CAPTURE, _BATCH)):
                yield rows


def follow(table: KeyTable, rows: Rows, present: Sequence[bool], max_redirects: int) -> list[list[tuple[int, int]]]:
    """Return for each row the chain of captures (file, offset) that it leads to; empty for a row not `present`."""
    chains: list[list[tuple[int, int]]] = [[] for _ in present]
    pending = [index for index, is_present in enumerate(present) if is_present]
    rows = rows[pending]
    for _ in range(max_redirects + 1):
        for index, file, offset in zip(pending, rows["file"].tolist(), rows["offset"].tolist(), strict=True):
            chains[index].append((file, offset))
        redirects = rows["rank"] == REDIRECT
        pending = [index for index, redirected in zip(pending, redirects.tolist(), strict=True) if redirected]
        if not pending:
            break
        rows, has_target = table.find(rows["target"][redirects])
        pending = [index for index, is_present in zip(pending, has_target.tolist(), strict=True) if is_present]
        rows = rows[has_target]
    return chains


def url_questions(table: KeyTable, entries: Iterator[Listed], max_redirects: int) -> Iterator[Question]:
    """Yield a question for each URL of a list, with the captures that answer it."""
    while batch := list(islice(entries, 10_000)):
        rows, present = table.find(keys_of(normal(entry.url) for entry in batch))
        chains = follow(table, rows, present.tolist(), max_redirects)
        for entry, captures in zip(batch, chains, strict=True):
            if entry.rule:
                yield Question(entry.url, [], entry.rule, entry.value)
            elif captures:
                yield Question(entry.url, captures)
            else:
                yield Question(entry.url, [], NOT_IN_ARCHIVE, "")


def capture_questions(table: KeyTable, files: Sequence[Path]) -> Iterator[Question]:
    """Yield a question for each capture of the archive, about its own URL."""
    for rows in read_rows(files):
        captures = rows[rows["own_row"] == 1]
        best = table.find(captures["key"])[0]
        is_best = (best["file"] == captures["file"]) & (best["offset"] == captures["offset"])
        columns = (captures["file"].tolist(), captures["offset"].tolist(), is_best.tolist())
        for file, offset, answers in zip(*columns, strict=True):
            yield Question("", [(file, offset)], "" if answers else OLDER_CAPTURE)


def write_questions(questions: Iterator[Question], size: int, folder: Path) -> list[Path]:
    """Write the questions of each segment, `size` of them, to a file; return the files."""
    files: list[Path] = []
    while batch := list(islice(questions, size)):
        files.append(folder / f"segment-{len(files):05d}.jsonl")
        with store.create(files[-1]) as file:
            for question in batch:
                line = [question.url, question.captures, question.rule, question.value]
                file.write(json.dumps(line).encode() + b"\n")
    return files


def answer_range(
    part: Part, folder: Path, files: list[str], max_bytes: int, max_redirects: int, opt_outs: PageOptOuts
) -> Counts:
    """Write the records of one range in the format of a fetch store's log, and the plan that names them."""
    number = int(part.name.rpartition("-")[2])
    reader = ArchiveReader([Path(file) for file in files], max_bytes, max_redirects, opt_outs)
    log = LogWriter((folder / log_name(number)).open("xb", buffering=0), number)
    with store.create(folder / f"{part.name}.jsonl") as plan:
        for line in store.read_lines(part.file):
            packed = reader.answer(Question(*json.loads(line)))
            plan.write(plan_line(log.append(packed, bytes(16), bytes(8))))
    log.close()
    return Counts(rows_in=log.rows, rows_out=log.rows)


class ArchiveReader:
    """Answers questions from the files of an archive."""

    def __init__(self, files: list[Path], max_bytes: int, max_redirects: int, opt_outs: PageOptOuts) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects
        self._opt_outs = opt_outs

    def answer(self, question: Question) -> Packed:
        """Return the outcome of one URL, with its page if there is one."""
        if not question.captures:
            return Packed(Outcome(url=question.url, rule=question.rule, value=question.value))
        if not question.url:
            return pack(self._own_answer(question))
        redirects: list[str] = []
        visited: set[str] = set()
        fetched, target = Fetched(url=question.url), ""
        for position in question.captures:
            capture = self._capture(position)
            fetched, target = self.judge(capture, question.url)
            if not target:
                return pack(self._after_redirects(fetched, redirects))
            redirects.append(f"{fetched.status} {capture.url}")
            visited.add(capture.url)
            if target in visited:
                return pack(_refused(fetched, "redirect_loop", target, redirects))
        if len(redirects) > self._max_redirects:
            return pack(_refused(fetched, TOO_MANY_REDIRECTS, len(redirects), redirects))
        return pack(_refused(fetched, NOT_IN_ARCHIVE, target, redirects))

    def judge(self, capture: Capture, url: str) -> tuple[Fetched, str]:
        """Judge a capture by the crawler's rules; return its outcome, and the URL that it redirects to."""
        fetched = archived(capture, url)
        if capture.fault[0]:
            return _refused(fetched, *capture.fault), ""
        try:
            message = message_of(capture)
        except HttpError as error:
            return _refused(fetched, "invalid_http", error), ""
        response = message.response
        head = "\r\n".join(message.lines) + "\r\n\r\n"
        fetched = dataclasses.replace(fetched, status=response.status, response_head=head)
        if response.status not in PAGE_STATUSES:
            return _refused(fetched, "http_status", response.status), message.redirect
        try:
            body = response.body(self._max_bytes)
        except TooLargeError as error:
            return _refused(fetched, "too_large", error), ""
        except HttpError as error:
            return _refused(fetched, "bad_encoding", error), ""
        if other := why_not_html(response.content_type, body):
            return _refused(fetched, "not_html", other), ""
        if refusal := self._opt_outs.refusal(message.values, body):
            return _refused(fetched, *refusal), ""
        return dataclasses.replace(fetched, body=body), ""

    def _own_answer(self, question: Question) -> Fetched:
        """Return the outcome of a capture for its own URL."""
        capture = self._capture(question.captures[0])
        fetched, _ = self.judge(capture, capture.list_url or normal(capture.url))
        if question.rule and not capture.fault[0]:
            return _refused(fetched, question.rule, fetched.started)
        return self._after_redirects(fetched, [])

    def _after_redirects(self, fetched: Fetched, redirects: list[str]) -> Fetched:
        """Return the last answer of a chain, adding the redirects that our crawler's archives keep in the answer."""
        redirects = [*redirects, *fetched.redirects]
        if len(redirects) > self._max_redirects:
            return _refused(fetched, TOO_MANY_REDIRECTS, len(redirects), redirects)
        return dataclasses.replace(fetched, redirects=tuple(redirects))

    def _capture(self, position: Sequence[int]) -> Capture:
        file, offset = position
        return next(read_captures(self._files[file], self._max_bytes, offset))


def _refused(fetched: Fetched, rule: str, value: object, redirects: Sequence[str] = ()) -> Fetched:
    return dataclasses.replace(fetched, rule=rule, value=str(value), redirects=tuple(redirects), body=b"")
