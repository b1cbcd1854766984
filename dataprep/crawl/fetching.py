"""Answers from the network: what the fetch store lacks is fetched, then every URL's outcome lies in the store."""

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from dataprep.crawl.fetch_store import FetchStore, Places, Refetch
from dataprep.crawl.fetched import Outcome
from dataprep.crawl.plans import Answers, plan_line
from dataprep.crawl.record_log import Place
from dataprep.crawl.url_list import Listed, listed_urls
from pipelines import store
from pipelines.config import given
from pipelines.errors import ConfigError
from pipelines.manifest import content_hash
from pipelines.progress import track
from pipelines.run import StageRun

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig

logger = logging.getLogger(__name__)

SESSION = "session"
"""File in scratch that names this piece of work."""
_USER_AGENT = re.compile("[A-Za-z][ -~]*")
LOOKUPS = 10_000
"""URLs looked up in the fetch store at once."""


def fetch_answers(config: "DownloadConfig", run: StageRun, listed: Sequence[Path], folder: Path) -> Answers:
    """Fetch what the store in `folder` lacks; then say where in it each outcome lies."""
    if not _USER_AGENT.fullmatch(config.user_agent):
        raise ConfigError(
            f"download.user_agent {config.user_agent!r}: expected the crawler's name and more in plain characters, "
            "such as millrace/0.1 (you@example.org)"
        )
    scratch = run.scratch / "places"
    with FetchStore(folder, request_identity(config), session_of(run), refetch_wanted()) as fetch_store:
        places = fetch_store.places(scratch)
        if missing := sum(1 for _ in missing_urls(listed, places)):
            fetch_missing(config, run, missing_urls(listed, places), missing, fetch_store)
            places = fetch_store.places(scratch)
        return Answers(plan_segments(config.urls_per_segment, run.scratch / "plan", listed, places), folder)


def request_identity(config: "DownloadConfig") -> str:
    """What a kept response depends on beside its URL: not how many at once or how patiently."""
    shaping = ("user_agent", "max_body_bytes", "max_expansion", "max_redirects", "robots")
    values: dict[str, object] = {name: getattr(config, name) for name in shaping}
    site = given(config.local_site)
    values["local_site"] = content_hash(site) if site else ""
    return json.dumps(values, sort_keys=True)


def session_of(run: StageRun) -> str:
    """The name of this piece of work: the same for a resumed run, another for a new one."""
    file = run.scratch / SESSION
    if not file.exists():
        with store.create(file) as new:
            new.write(os.urandom(16).hex().encode())
    return file.read_text()


def keep_session(run: StageRun) -> None:
    """From the first request on the session outlives any error: without receipts an error removes the scratch."""
    (run.scratch / "receipts").mkdir(exist_ok=True)


def refetch_wanted() -> Refetch:
    """MILLRACE_REFETCH: it changes when URLs are asked, never what is made of the answers."""
    value = os.environ.get("MILLRACE_REFETCH", "")
    choices: dict[str, Refetch] = {"": "", "0": "", "failed": "failed", "all": "all", "1": "all"}
    if value not in choices:
        raise ConfigError(f"MILLRACE_REFETCH={value}: expected failed or all")
    return choices[value]


def looked_up(listed: Sequence[Path], places: Places, size: int) -> Iterator[list[tuple[Listed, Place | None]]]:
    """The list in chunks of `size`, each URL with the place of its outcome; None where it has none yet."""
    entries = listed_urls(listed)
    while chunk := list(islice(entries, size)):
        yield list(zip(chunk, places.find([entry.url for entry in chunk]), strict=True))


def missing_urls(listed: Sequence[Path], places: Places) -> Iterator[str]:
    """The URLs that are still to be fetched, in the order of the list."""
    for chunk in looked_up(listed, places, LOOKUPS):
        yield from (entry.url for entry, place in chunk if place is None and not entry.rule)


def fetch_missing(
    config: "DownloadConfig", run: StageRun, urls: Iterator[str], total: int, fetch_store: FetchStore
) -> None:
    """Fetch URLs that the store has no outcome for; each outcome is kept as it comes."""
    from dataprep.crawl.crawler import crawl
    from dataprep.crawl.local_site import load_site, serve
    from dataprep.crawl.tally import Tally

    folder = given(config.local_site)
    site = load_site(folder) if folder else None
    logger.info("%s: fetching %s URLs", run.name, f"{total:,}")
    keep_session(run)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve(site)) if site else None
        outcomes = crawl(urls, config, server, processes=run.workers, scratch=run.scratch / "crawl")
        stack.enter_context(contextlib.closing(outcomes))
        for packed in track(outcomes, what=f"{run.name}: fetch", total=total, unit="URLs", detail=Tally()):
            fetch_store.append(packed)


def plan_segments(size: int, folder: Path, listed: Sequence[Path], places: Places) -> list[Path]:
    """One file per segment of `size` URLs that says, for each URL of its range, where its outcome lies in the store."""
    plans: list[Path] = []
    for chunk in looked_up(listed, places, size):
        plan = folder / f"segment-{len(plans):05d}.jsonl"
        with store.create(plan) as file:
            for entry, place in chunk:
                if entry.rule:
                    file.write(plan_line(Outcome(url=entry.url, rule=entry.rule, value=entry.value)))
                else:
                    assert place, f"{entry.url}: the crawl gave no outcome"
                    file.write(plan_line(place))
        plans.append(plan)
    return plans
