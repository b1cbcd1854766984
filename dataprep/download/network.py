"""Answers from the network: fetch what the fetch store lacks, and plan the segments from the outcomes in the store."""

import contextlib
import json
import logging
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from dataprep.download.config import CrawlOptions, Identity, Limits
from dataprep.download.fetch_store import FetchStore, RecordIndex, Refetch
from dataprep.download.outcomes import PAGE, Outcome, Packed
from dataprep.download.record_log import RecordRef
from dataprep.download.segments import Answers, plan_line
from dataprep.download.url_list import Listed, listed_urls
from pipelines import store
from pipelines.errors import ConfigError
from pipelines.manifest import content_hash
from pipelines.progress import track
from pipelines.run import StageRun

logger = logging.getLogger(__name__)

SESSION = "session"
"""File in scratch with the name of the session: a run, with all runs that resume it."""
_USER_AGENT = re.compile("[A-Za-z][ -~]*")
_MOST_RULES = 4
"""Rules that the progress line names; all others are counted as `other`."""
LOOKUPS = 10_000
"""URLs looked up in the fetch store at once."""


def fetch_answers(
    options: CrawlOptions,
    run: StageRun,
    listed: Sequence[Path],
    folder: Path,
    site: Path | None,
    urls_per_segment: int,
) -> Answers:
    """Fetch what the store in `folder` lacks, from the local site if there is one; return plans over the store."""
    user_agent = options.identity.user_agent
    if not _USER_AGENT.fullmatch(user_agent):
        raise ConfigError(
            f"download.user_agent {user_agent!r}: expected the crawler's name and contact in ASCII, "
            "such as millrace/0.1 (you@example.org)"
        )
    scratch = run.scratch / "places"
    request = request_identity(options.identity, options.limits, site)
    with FetchStore(folder, request, session_of(run), refetch_wanted()) as fetch_store:
        index = fetch_store.index(scratch)
        if missing := sum(1 for _ in missing_urls(listed, index)):
            fetch_missing(options, site, run, missing_urls(listed, index), missing, fetch_store)
            index = fetch_store.index(scratch)
        return Answers(plan_segments(urls_per_segment, run.scratch / "plan", listed, index), folder)


def request_identity(identity: Identity, limits: Limits, site: Path | None) -> str:
    """Return what a stored response depends on, beside its URL: not concurrency, delays or timeouts.

    It is part of every key of the fetch store, so its text must not change.
    """
    values: dict[str, object] = {
        "user_agent": identity.user_agent,
        "robots": identity.robots,
        "max_body_bytes": limits.max_body_bytes,
        "max_expansion": limits.max_expansion,
        "max_redirects": limits.max_redirects,
        "local_site": content_hash(site) if site else "",
    }
    if identity.opt_outs:
        values["opt_outs"] = sorted(identity.opt_outs)
    return json.dumps(values, sort_keys=True)


def session_of(run: StageRun) -> str:
    """Return the name of the session: the same for a resumed run, another for a new run."""
    file = run.scratch / SESSION
    if not file.exists():
        with store.create(file) as new:
            new.write(os.urandom(16).hex().encode())
    return file.read_text()


def keep_session(run: StageRun) -> None:
    """Make the session survive any error from now on: after an error, a scratch folder without receipts is removed."""
    (run.scratch / "receipts").mkdir(exist_ok=True)


def refetch_wanted() -> Refetch:
    """Read MILLRACE_REFETCH, which changes which URLs are requested again, never how answers are processed."""
    value = os.environ.get("MILLRACE_REFETCH", "")
    choices: dict[str, Refetch] = {"": "", "0": "", "failed": "failed", "all": "all", "1": "all"}
    if value not in choices:
        raise ConfigError(f"MILLRACE_REFETCH={value}: expected failed or all")
    return choices[value]


def looked_up(listed: Sequence[Path], index: RecordIndex, size: int) -> Iterator[list[tuple[Listed, RecordRef | None]]]:
    """Yield the list in chunks of `size`: each URL with the ref of its outcome, or None if it has none yet."""
    entries = listed_urls(listed)
    while chunk := list(islice(entries, size)):
        yield list(zip(chunk, index.find([entry.url for entry in chunk]), strict=True))


def missing_urls(listed: Sequence[Path], index: RecordIndex) -> Iterator[str]:
    """Yield the URLs that are still to be fetched, in the order of the list."""
    for chunk in looked_up(listed, index, LOOKUPS):
        yield from (entry.url for entry, ref in chunk if ref is None and not entry.rule)


def fetch_missing(
    options: CrawlOptions,
    site_folder: Path | None,
    run: StageRun,
    urls: Iterator[str],
    total: int,
    fetch_store: FetchStore,
) -> None:
    """Fetch the `total` URLs without an outcome in the store, and store each outcome as it arrives."""
    from dataprep.download.crawler.crawl import crawl
    from dataprep.download.crawler.local_site import load_site, serve

    site = load_site(site_folder) if site_folder else None
    logger.info("%s: fetching %s URLs", run.name, f"{total:,}")
    keep_session(run)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve(site)) if site else None
        processes = run.workers // run.machines
        outcomes = crawl(urls, options, server, processes=processes, scratch=run.scratch / "crawl")
        stack.enter_context(contextlib.closing(outcomes))
        for packed in track(outcomes, what=f"{run.name}: fetch", total=total, unit="URLs", detail=Tally()):
            fetch_store.append(packed)


class Tally:
    """Counts the bytes, pages, and failures by rule of a crawl, for its progress line."""

    def __init__(self) -> None:
        self._rules: Counter[str] = Counter()
        self._bytes = 0

    def add(self, packed: Packed, /) -> None:
        """Count one outcome."""
        self._rules[packed.outcome.rule] += 1
        self._bytes += packed.outcome.bytes

    def text(self, seconds: float, /) -> str:
        """Return the counts as `3.6 MB/s, 100 pages, http_status 20, timeout 1`."""
        failed = [(rule, number) for rule, number in self._rules.most_common() if rule != PAGE]
        rules = [f"{rule} {number:,}" for rule, number in failed[:_MOST_RULES]]
        if others := sum(number for _, number in failed[_MOST_RULES:]):
            rules.append(f"other {others:,}")
        return ", ".join([f"{self._bytes / seconds / 1e6:.1f} MB/s", f"{self._rules[PAGE]:,} pages", *rules])


def plan_segments(size: int, folder: Path, listed: Sequence[Path], index: RecordIndex) -> list[Path]:
    """Write one plan per segment of `size` URLs: for each URL of its range, where its outcome is in the store."""
    plans: list[Path] = []
    for chunk in looked_up(listed, index, size):
        plan = folder / f"segment-{len(plans):05d}.jsonl"
        with store.create(plan) as file:
            for entry, ref in chunk:
                if entry.rule:
                    file.write(plan_line(Outcome(url=entry.url, rule=entry.rule, value=entry.value)))
                else:
                    assert ref, f"{entry.url}: the crawl gave no outcome"
                    file.write(plan_line(ref))
        plans.append(plan)
    return plans
