"""Stage `download`: fetch every URL of a list, politely and safely, into WARC segments.

URLS (the folder of the stage `urls`, or a plain list of URLs) -> segment-*.warc.gz, where segment k
holds the pages of a fixed range of the list in its order; each URL without a page goes to rejected/
with its rule (http_status, robots_denied, private_address, ...) and value. --fetch-log has one row
for every URL.

Every outcome is kept in the fetch store `.fetch_store` beside OUTPUT, so a killed run goes on where
it was, and a changed list fetches only what is new. MILLRACE_REFETCH=failed asks again for what
failed, MILLRACE_REFETCH=all for everything. Private addresses are never contacted.

--replay ARCHIVE (WARC or ARC files, from here or elsewhere) answers every URL from that archive and
nothing from the network, so that the same list and archive give the same bytes anywhere. Redirects are
followed within the archive; of several captures of a URL the last page counts; what is not there is
not_in_archive. With an empty list it takes every page of the archive.

Corpora that are ready are passed on as documents-NNNNN-NAME.*, for `extract` to read; URLS may then be an
empty file. --documents is a file, or a folder with all below it: JSON lines, Parquet, text or HTML files,
WARC, ARC, WET, tars of texts or pages such as openwebtext.tar.xz, Megatron's .bin and .idx.
--hub-repository takes files of a data set on the Hugging Face Hub, at a commit: each goes on where it was
cut and is checked against its digest; HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE mean what they
always do.

Run: python -m dataprep.download URLS OUTPUT [--fetch-log PATH] [--documents PATH] [--replay ARCHIVE]
     python -m dataprep.download EMPTY OUTPUT --hub-repository OWNER/NAME --hub-revision COMMIT --hub-files '*.parquet'
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval

from pipelines.command import Output, Part, Source
from pipelines.config import Count, NonNegative, SourcePath, StageSource, given
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

if TYPE_CHECKING:
    from dataprep.crawl.plans import Answers

VERSION = 2
SHAPED_BY = ("deflate", "pyarrow")

logger = logging.getLogger(__name__)

FETCH_STORE = ".fetch_store"
Seconds = Annotated[float, Interval(gt=0, le=86_400)]
"""A span of time: more than nothing, at most a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadConfig:
    """How to ask for pages, and what to accept."""

    user_agent: str = "millrace/0.1 (research crawler; name your contact in download.user_agent)"
    """Who is asking; the word before the slash is what robots.txt is read for."""
    concurrency: Count = 64
    """Requests under way at once."""
    per_host: Count = 2
    """Requests under way at once for one host; one where its robots.txt sets a Crawl-delay."""
    host_delay_seconds: Annotated[float, Interval(ge=0, le=86_400)] = 0.0
    """Least seconds between two requests to one host; a longer Crawl-delay (up to 60 s) goes first."""
    requests_per_second: Annotated[float, Interval(ge=0, le=1_000_000)] = 0.0
    """Requests per second to all hosts together, those for robots.txt and redirects included; 0 for no limit."""
    connect_seconds: Seconds = 10.0
    """Longest wait for a connection."""
    read_seconds: Seconds = 20.0
    """Longest silence of a server that is sending."""
    total_seconds: Seconds = 60.0
    """Longest time of one request, from its start to its last byte."""
    max_attempts: Count = 4
    """Attempts at a URL that fails in a way that may pass (408, 425, 429, 5xx, connection errors)."""
    backoff_seconds: Seconds = 1.0
    """Wait before the second attempt; doubles with each further one, up to 300 s. Retry-After goes first."""
    max_body_bytes: Count = 10_000_000
    """Largest page, as sent and as decoded."""
    max_expansion: Count = 100
    """Largest ratio of a page as decoded to the page as sent (the highest of 2,163 real pages: 22; a bomb: 1,000)."""
    max_redirects: NonNegative = 5
    """Longest chain of redirects."""
    robots: bool = True
    """Ask robots.txt first."""
    urls_per_segment: Count = 10_000
    """URLs of the list that share a WARC segment."""
    segment_bytes: Count = 1_000_000_000
    """Largest WARC file; a range whose pages need more goes on in segment-00000_0001.warc.gz and so on."""
    local_site: SourcePath = ""
    """Site folder (index.jsonl and files) to serve on loopback under its own host names; empty for none."""
    replay: StageSource = ""
    """WARC or ARC file, or a folder of them, that answers in place of the network; empty for the network."""
    source: Literal["auto", "warc", "wet", "html", "jsonl", "parquet", "text", "tar", "megatron"] = "auto"
    """What --documents holds; "auto" takes every kind, told by names. Another takes files of that kind alone."""
    hub_repository: str = ""
    """Data set on the Hugging Face Hub to take documents from, such as Skylion007/openwebtext; empty for none."""
    hub_revision: str = ""
    """Its commit, 40 hexadecimal digits: a branch could change under us."""
    hub_files: tuple[str, ...] = ()
    """Which of its files, as patterns: plain_text/*.parquet"""


def check_parameters(params: Mapping[str, Any]) -> None:
    """Refuse a corpus that cannot be had from what is named, when parameters are composed."""
    from dataprep.sources.corpus import check_corpus

    check_corpus(params)


def download(
    config: DownloadConfig,
    run: StageRun,
    urls: Source,
    output: Output,
    fetch_log: Output | None,
    documents: Source | None,
) -> None:
    """Pass documents on; find what became of every URL; then write segments and log of it."""
    from dataprep.crawl.segments import write_fetch_log, write_segment
    from dataprep.crawl.url_list import list_parts
    from dataprep.sources.hub import download_hub
    from dataprep.sources.prepared import pass_documents

    passed = pass_documents(run, documents, output, config.source) + download_hub(run, config, output)
    tell_passed(config, run, output, documents)
    answers = find_answers(config, run, list_parts(run, urls), output.final.parent / FETCH_STORE)
    if not answers.plans and not passed:
        raise UserError(f"{urls.path}: holds no URL, and there are no --documents: nothing to do; name one of them")
    parts = [Part(plan.stem, (plan,)) for plan in answers.plans]
    pages = run.map(write_segment, parts, str(answers.logs), config.segment_bytes, into=output)
    refuse_total_failure(run, answers, pages)
    refuse_wrong_archive(config, pages)
    # Without a place of its own the log lies below the output, and its rows are not counted there.
    subfolder = "" if fetch_log else "fetch_log/"
    parts = [Part(plan.stem.replace("segment", "fetch"), (plan,)) for plan in answers.plans]
    run.map(write_fetch_log, parts, str(answers.logs), subfolder, into=fetch_log or output)
    warn_of_transient_failures(run, pages)


def tell_passed(config: DownloadConfig, run: StageRun, output: Output, documents: Source | None) -> None:
    """Say how much was passed on: its rows are not counted here but by `extract`, which reads them."""
    if files := output.counts.totals.get("document_files", 0):
        size = sum(entry.bytes for name, entry in output.files.items() if "/" not in name)
        named = [str(path) for path in (documents and given(documents.path), config.hub_repository) if path]
        what = f"{files:,} {'file' if files == 1 else 'files'} passed on, {size / 1e6:,.1f} MB"
        logger.info("%s: %s: %s", run.name, " and ".join(named), what)


def find_answers(config: DownloadConfig, run: StageRun, listed: Sequence[Path], fetch_store: Path) -> "Answers":
    """From the archive if there is one: then neither the network nor the fetch store is touched."""
    if archive := given(config.replay):
        if given(config.local_site):
            raise ConfigError("download.replay, download.local_site: both would answer the URLs; give one of them")
        from dataprep.crawl.replay import answer_from_archive

        return answer_from_archive(config, run, listed, archive)
    from dataprep.crawl.fetching import fetch_answers

    return fetch_answers(config, run, listed, fetch_store)


def refuse_total_failure(run: StageRun, answers: "Answers", pages: Counts) -> None:
    """Nothing came, and each URL that was asked for failed in a way that may pass: no result but an outage."""
    from dataprep.crawl.fetching import SESSION
    from dataprep.crawl.plans import PlanReader

    if pages.rows_out or not pages.totals.get("transient", 0):
        return
    rules: Counter[str] = Counter()
    example = ""
    with PlanReader(answers.logs) as reader:
        for outcome in (outcome for plan in answers.plans for outcome in reader.outcomes(plan)):
            if outcome.final_url:  # one that a rule of ours refused without asking leads nowhere
                rules[outcome.rule] += 1
                example = example or f"{outcome.url}: {outcome.value}"
    if pages.totals["transient"] < rules.total():
        return
    (run.scratch / SESSION).unlink()  # so that the next run asks again
    reasons = ", ".join(f"{rule} {number:,}" for rule, number in sorted(rules.items()))
    raise UserError(
        f"none of the {rules.total():,} URLs could be fetched ({reasons}; first: {example}); "
        "nothing was published: check the network and run the same command again"
    )


def refuse_wrong_archive(config: DownloadConfig, pages: Counts) -> None:
    """An archive that knows nothing of the list is the archive of something else."""
    from dataprep.crawl.fetched import NOT_IN_ARCHIVE

    if pages.rows_in and pages.rejected.get(NOT_IN_ARCHIVE) == pages.rows_in:
        raise UserError(
            f"{config.replay}: none of the {pages.rows_in:,} URLs is in this archive; nothing was published: give "
            "the archive of these URLs, or an empty list to take all of it"
        )


def warn_of_transient_failures(run: StageRun, pages: Counts) -> None:
    """Say how many URLs may come tomorrow, and how to ask for them."""
    if transient := pages.totals.get("transient", 0):
        logger.warning(
            "%s: %s of %s URLs failed in ways that may pass; to ask for them again, run the same command with "
            "--overwrite (under DVC: dvc repro -f -s download); MILLRACE_REFETCH=failed asks for all that failed",
            run.name,
            f"{transient:,}",
            f"{pages.rows_in:,}",
        )


if __name__ == "__main__":
    stage_main("dataprep.download")
