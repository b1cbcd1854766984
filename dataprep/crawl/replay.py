"""Answers from an archive in place of the network: the same list and archive give the same bytes anywhere.

Each URL of the list is answered by the capture that `archive_index` finds for it, over redirects that
are in the archive too; what is not there is `not_in_archive`. With an empty list every capture of the
archive stands for its own URL, in the order of the archive; one that is not the one that answers for
its URL is `older_capture`. Nothing is asked for, so rows have no attempts and no failure may pass.
"""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.crawl.archive_index import capture_table, follow, index_archive, normal, read_rows
from dataprep.crawl.captures import Capture, archived, message_of, read_captures
from dataprep.crawl.fetched import NOT_IN_ARCHIVE, Fetched, Outcome, Packed
from dataprep.crawl.key_table import KeyTable, keys_of
from dataprep.crawl.plans import Answers, plan_line
from dataprep.crawl.record_log import LogWriter, log_name
from dataprep.crawl.url_list import Listed, listed_urls
from dataprep.crawl.warc_writer import pack
from dataprep.pages.sniffing import why_not_html
from dataprep.sources.finding import find_inputs
from dataprep.sources.http_message import HttpError, TooLargeError
from dataprep.sources.warc_reader import PAGE_STATUSES
from pipelines import store
from pipelines.command import Part
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig

OLDER_CAPTURE = "older_capture"
TOO_MANY_REDIRECTS = "too_many_redirects"


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A URL to answer, and the captures it leads over; or why it is not to be answered."""

    url: str
    """Empty where a capture stands for its own URL."""
    captures: Sequence[Sequence[int]]
    """Number of the archive's file, and offset."""
    rule: str = ""
    value: str = ""


def answer_from_archive(config: "DownloadConfig", run: StageRun, listed: Sequence[Path], archive: Path) -> Answers:
    """Answer every URL of the list, or every capture of the archive."""
    files = archive_files(archive)
    parts = [Part(f"archive-{i:05d}", (file,)) for i, file in enumerate(files)]
    if not run.map(index_archive, parts, config.max_body_bytes, into="captures").rows_out:
        raise UserError(f"{archive}: holds no HTTP response, so it answers nothing; give WARC or ARC files of a crawl")
    rows = [run.scratch / "captures" / f"{part.name}.rows" for part in parts]
    table = capture_table(run.scratch / "capture_table", rows)
    entries = listed_urls(listed)
    first = next(entries, None)
    questions = every_capture(table, rows) if first is None else asked(table, chain([first], entries), config)
    plans = write_questions(questions, config.urls_per_segment, run.scratch / "questions")
    ranges = [Part(plan.stem, (plan,)) for plan in plans]
    limits = (config.max_body_bytes, config.max_redirects)
    run.map(answer_range, ranges, [str(file) for file in files], *limits, into="answers")
    folder = run.scratch / "answers"
    return Answers([folder / f"{part.name}.jsonl" for part in ranges], folder)


def archive_files(archive: Path) -> list[Path]:
    """The WARC and ARC files that `archive`, a file or a folder, stands for, in order of name."""
    if not archive.exists():
        raise UserError(f"{archive}: no such file or folder; check download.replay (--replay)")
    files = [file for each in find_inputs(archive, "auto").inputs if each.kind == "warc" for file in each.files]
    if not files:
        raise UserError(f"{archive}: holds no archive of a crawl (.warc or .arc, also .gz or .zst)")
    return files


def asked(table: KeyTable, entries: Iterator[Listed], config: "DownloadConfig") -> Iterator[Question]:
    """Each URL of a list with the captures that answer it."""
    while some := list(islice(entries, 10_000)):
        rows, found = table.find(keys_of(normal(entry.url) for entry in some))
        chains = follow(table, rows, found.tolist(), config.max_redirects)
        for entry, captures in zip(some, chains, strict=True):
            if entry.rule:
                yield Question(entry.url, [], entry.rule, entry.value)
            elif captures:
                yield Question(entry.url, captures)
            else:
                yield Question(entry.url, [], NOT_IN_ARCHIVE, "")


def every_capture(table: KeyTable, files: Sequence[Path]) -> Iterator[Question]:
    """Each capture of the archive, for itself."""
    for rows in read_rows(files):
        own = rows[rows["own_row"] == 1]
        best = table.find(own["key"])[0]
        answers = (best["file"] == own["file"]) & (best["offset"] == own["offset"])
        for file, offset, counts in zip(own["file"].tolist(), own["offset"].tolist(), answers.tolist(), strict=True):
            yield Question("", [(file, offset)], "" if counts else OLDER_CAPTURE)


def write_questions(questions: Iterator[Question], size: int, folder: Path) -> list[Path]:
    """One file for each segment, of `size` questions."""
    files: list[Path] = []
    while some := list(islice(questions, size)):
        files.append(folder / f"segment-{len(files):05d}.jsonl")
        with store.create(files[-1]) as file:
            for question in some:
                line = [question.url, question.captures, question.rule, question.value]
                file.write(json.dumps(line).encode() + b"\n")
    return files


def answer_range(part: Part, folder: Path, files: list[str], max_bytes: int, max_redirects: int) -> Counts:
    """The records of one range, as a log of the fetch store has them, and the plan that names them."""
    number = int(part.name.rpartition("-")[2])
    reader = ArchiveReader([Path(file) for file in files], max_bytes, max_redirects)
    log = LogWriter((folder / log_name(number)).open("xb", buffering=0), number)
    with store.create(folder / f"{part.name}.jsonl") as plan:
        for line in store.read_lines(part.file):
            packed = reader.answer(Question(*json.loads(line)))
            plan.write(plan_line(log.append(packed, bytes(16), bytes(8))))
    log.close()
    return Counts(rows_in=log.rows, rows_out=log.rows)


class ArchiveReader:
    """Answers questions from the files of an archive."""

    def __init__(self, files: list[Path], max_bytes: int, max_redirects: int) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._max_redirects = max_redirects

    def answer(self, question: Question) -> Packed:
        """The outcome of one URL, with the page where there is one."""
        if not question.captures:
            return Packed(Outcome(url=question.url, rule=question.rule, value=question.value))
        if not question.url:
            return pack(self._own_answer(question))
        redirects: list[str] = []
        met: set[str] = set()
        fetched, target = Fetched(url=question.url), ""
        for place in question.captures:
            capture = self._capture(place)
            fetched, target = self.judge(capture, question.url)
            if not target:
                return pack(self._after_redirects(fetched, redirects))
            redirects.append(f"{fetched.status} {capture.url}")
            met.add(capture.url)
            if target in met:
                return pack(_refused(fetched, "redirect_loop", target, redirects))
        if len(redirects) > self._max_redirects:
            return pack(_refused(fetched, TOO_MANY_REDIRECTS, len(redirects), redirects))
        return pack(_refused(fetched, NOT_IN_ARCHIVE, target, redirects))

    def judge(self, capture: Capture, url: str) -> tuple[Fetched, str]:
        """What a capture says, by the crawler's own rules, and where it redirects to."""
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
        return dataclasses.replace(fetched, body=body), ""

    def _own_answer(self, question: Question) -> Fetched:
        """What a capture says of its own URL."""
        capture = self._capture(question.captures[0])
        fetched, _ = self.judge(capture, capture.list_url or normal(capture.url))
        if question.rule and not capture.fault[0]:
            return _refused(fetched, question.rule, fetched.started)
        return self._after_redirects(fetched, [])

    def _after_redirects(self, fetched: Fetched, redirects: list[str]) -> Fetched:
        """The last answer of a chain; in an archive of ours it has more redirects in itself."""
        redirects = [*redirects, *fetched.redirects]
        if len(redirects) > self._max_redirects:
            return _refused(fetched, TOO_MANY_REDIRECTS, len(redirects), redirects)
        return dataclasses.replace(fetched, redirects=tuple(redirects))

    def _capture(self, place: Sequence[int]) -> Capture:
        file, offset = place
        return next(read_captures(self._files[file], self._max_bytes, offset))


def _refused(fetched: Fetched, rule: str, value: object, redirects: Sequence[str] = ()) -> Fetched:
    return dataclasses.replace(fetched, rule=rule, value=str(value), redirects=tuple(redirects), body=b"")
