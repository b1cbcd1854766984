"""Stage `urls`: the list of pages to fetch: canonical, free of what the blacklists name, each once.

LISTS (a file of one URL per line, JSON lines with a `url`, Reddit submissions as pushshift publishes them;
compressed or not; or a folder of such, also in its folders) -> part-*.parquet with `url` (canonical), `original`,
`file` and `line`, sorted by `url`. Lines that differ in spelling or in http and https only are one page, and the
first of them stays. Each line that is left out goes to rejected/ with its rule and the value seen.

Rules in order: invalid_utf8, invalid_json, no_url; for submissions invalid_submission, self_post, over_18,
low_karma, out_of_range; domain_blacklist, url_blacklist, extension_blacklist, too_short, malformed, duplicate.
The canonical form is described in pipelines/identity.py. An empty file gives an empty list;
one of which no line is a URL is refused. In a folder, a file without suffix is a list when its first line is a URL.

Run: python -m dataprep.urls LISTS OUTPUT
     python -m dataprep.urls RS_2017-01.zst OUTPUT --date-to 2017-01-15 --blacklist ut1/ --memory-budget 2GB
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dataprep.url_lists import merging
from dataprep.url_lists.files import url_lists
from dataprep.url_lists.merging import merge_range, plan, write_duplicates, write_urls
from dataprep.url_lists.pieces import Piece, cut
from dataprep.url_lists.submissions import DateError, SubmissionRules, submission_rules
from pipelines import store
from pipelines.command import Output, Part, Source, Table
from pipelines.config import Count, NonNegative, StageSource, given
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

logger = logging.getLogger(__name__)

VERSION = 2
SHAPED_BY = ("tldextract", "pyarrow")

SMALLEST, LARGEST_RUN, LARGEST_RANGE = 4 << 20, 64 << 20, 256 << 20
"""Bytes of rows that are sorted at once, within a worker's share of the memory budget."""
PROCESS_BYTES = 150 << 20
"""What a worker, and the parent, takes beside rows: Python, Arrow, the public suffixes, hosts that it remembers."""
ROW_COPIES = 12
"""Memory of a worker that sorts rows, in multiples of them: measured 5, and what the allocator holds back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlsConfig:
    """What a URL must be like to be fetched."""

    blacklists: StageSource = ""
    """Blacklists in place of the built-in ones: a file or folder in any format of `blacklist`."""
    blacklist: StageSource = ""
    """More blacklists: a file or folder; lists of domains, hosts files, UT1's folders or .tar.gz, or files named
    domains-<category>.txt and extensions-<category>.txt."""
    compat: Literal["none", "megatron"] = "none"
    """megatron: match and compare as Megatron-LM's blacklist_urls.py did (labels, not domains; no canonical form)."""
    kind: Literal["auto", "lists", "submissions"] = "auto"
    """JSON records: lists, only their `url` counts; submissions, they are Reddit's; auto: their keys tell."""
    min_karma: int = 3
    """Submissions only: lowest score (votes up less votes down)."""
    date_from: str = ""
    """Submissions only: first day, such as 2005-06-23, UTC; empty: no limit."""
    date_to: str = ""
    """Submissions only: last day, UTC; empty: no limit. (WebText ends with 2017-12-31.)"""
    longest_short: NonNegative = 8
    """Characters; a line of at most so many is too short to be a URL."""
    rows_per_part: Count = 100_000
    """URLs in each part of the output."""


def urls(config: UrlsConfig, run: StageRun, lists: Source, output: Table) -> None:
    """Judge every line in pieces of the lists, then merge the sorted survivors and drop those seen before."""
    submissions = checked_submission_rules(config)
    refuse_output_among_lists(lists.path, output.final)
    files = url_lists(lists.path)
    names = [list_name(file, lists.path) for file in files]
    tables = compile_lists(config, run)
    rows_bytes = memory_for_rows(run)

    pieces = cut(files)
    parts = [Part(f"lines-{piece.number:05d}", (piece.file, *tables)) for piece in pieces]
    judged = Output(run.scratch / "judged", Path("judged"))
    run_bytes = min(max(rows_bytes, SMALLEST), LARGEST_RUN)
    run.map(judge_piece, parts, pieces, names, config, submissions, run_bytes, into=judged)
    take_over(judged, output)

    merged = Output(run.scratch / "merged", Path("merged"))
    run.map(merge_range, plan_ranges(run, judged, names, rows_bytes), into=merged)
    output.counts.add(merged.counts)
    rows = config.rows_per_part
    kept, starts = cut_rows(merged, "part", merging.KEPT, rows, at_least=1)
    run.map(write_urls, kept, starts, names, rows, into=output)
    duplicates, starts = cut_rows(merged, "duplicates", merging.DUPLICATES, rows, at_least=0)
    run.map(write_duplicates, duplicates, starts, names, rows, into=output)


def memory_for_rows(run: StageRun) -> int:
    """Bytes of rows that a worker may sort at once; SMALLEST at least, with a warning where the budget is less."""
    least = (run.workers + 1) * PROCESS_BYTES + run.workers * ROW_COPIES * SMALLEST
    if run.memory_budget < least:
        logger.warning(
            "urls: %d workers take about %d MB: give that much, or fewer --workers", run.workers, least >> 20
        )
    return max(run.memory_budget - (run.workers + 1) * PROCESS_BYTES, 0) // (run.workers * ROW_COPIES)


def checked_submission_rules(config: UrlsConfig) -> SubmissionRules:
    """The rules for submissions; ConfigError for a date that is none."""
    try:
        return submission_rules(config.kind, config.min_karma, config.date_from, config.date_to)
    except DateError as error:
        raise ConfigError(f"urls.{error}") from None


def refuse_output_among_lists(lists: Path, output: Path) -> None:
    """The next run would read its own output as a list."""
    if lists.is_dir() and lists.resolve() in output.resolve().parents:
        raise UserError(f"{output}: lies in the folder of the lists, {lists}; choose another output")


def list_name(file: Path, lists: Path) -> str:
    """How a list is called in the output: its path within the folder that was given."""
    name = file.relative_to(lists).as_posix() if file != lists else file.name
    return name.encode("utf-8", "backslashreplace").decode()


def compile_lists(config: UrlsConfig, run: StageRun) -> list[Path]:
    """Tables of all blacklists. They are files of the pieces' parts, so that a changed list makes receipts void."""
    from dataprep.url_lists import blacklists

    files = blacklists.list_files(given(config.blacklists) or blacklists.LISTS)
    if more := given(config.blacklist):
        files += blacklists.list_files(more)
    tables = Output(run.scratch / "blacklists", Path("blacklists"))
    run.step(blacklists.compile_blacklists, "blacklists", files, config.compat, into=tables)
    return [tables.folder / name for name in sorted(tables.files)]


def judge_piece(
    part: Part,
    folder: Path,
    pieces: Sequence[Piece],
    names: Sequence[str],
    config: UrlsConfig,
    submissions: SubmissionRules,
    run_bytes: int,
) -> Counts:
    """One piece of a list: sorted runs of its canonical URLs, and its rejected lines."""
    from dataprep.url_lists.judging import PieceJudge, RejectedLines, open_judge
    from dataprep.url_lists.runs import RunWriter

    piece = pieces[int(part.name.rpartition("-")[2])]
    judge = open_judge(part.files[1:], config.compat, config.longest_short)
    rejected = RejectedLines(folder / merging.REJECTED / f"{part.name}.parquet", names[piece.list_number])
    return PieceJudge(piece, judge, submissions, RunWriter(folder, part.name, run_bytes), rejected).run()


def take_over(judged: Output, output: Output) -> None:
    """The counts of the judged lines, and the rejected ones."""
    output.counts.add(judged.counts)
    for name, entry in judged.files.items():
        if name.startswith(f"{merging.REJECTED}/"):
            store.link_or_copy(judged.folder / name, output.folder / name)
            output.files[name] = entry


def plan_ranges(run: StageRun, judged: Output, names: Sequence[str], rows_bytes: int) -> list[Part]:
    """The ranges to merge: small enough for a worker's share of the memory, and enough of them for all workers."""
    runs = sorted(judged.folder / name for name in judged.files if name.endswith(".ipc"))
    range_bytes = min(max(rows_bytes, SMALLEST), LARGEST_RANGE)
    layout = plan(runs, [run.sha256(file) for file in runs], names, range_bytes, run.workers)
    file = run.scratch / "plan.json"
    store.write_json(file, layout)
    return [Part(f"range-{i:05d}", (file,)) for i in range(len(layout["splitters"]) + 1)]


def cut_rows(merged: Output, name: str, kind: str, rows: int, *, at_least: int) -> tuple[list[Part], dict[str, int]]:
    """Parts of `rows` rows each, with the merged files that hold them; and the first row of each of those files."""
    from dataprep.url_lists.runs import Run

    files = sorted(merged.folder / file for file in merged.files if file.startswith(kind))
    sizes = [Run(file).rows for file in files]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    parts: list[Part] = []
    for i in range(max(-(-sum(sizes) // rows), at_least)):
        spans = zip(files, starts, sizes, strict=True)
        inside = [file for file, start, size in spans if start < (i + 1) * rows and start + size > i * rows]
        parts.append(Part(f"{name}-{i:05d}", tuple(inside)))
    return parts, {file.name: start for file, start in zip(files, starts, strict=True)}


if __name__ == "__main__":
    stage_main("dataprep.urls")
