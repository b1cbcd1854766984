"""Stage `download`: fetch every URL of a list, politely and safely, into WARC segments.

URLS (the folder of the stage `urls`, or a plain list of URLs) -> segment-*.warc.gz, where segment k
holds the pages of a fixed range of the list in its order; each URL without a page goes to rejected/
with its rule (http_status, robots_denied, private_address, ...) and value. --fetch-log has one row
for every URL. --documents (JSONL, a corpus that is ready) is passed on as documents-*.jsonl.

Every outcome is kept in the fetch store `.fetch_store` beside OUTPUT, so a killed run goes on where
it was, and a changed list fetches only what is new. MILLRACE_REFETCH=failed asks again for what
failed, MILLRACE_REFETCH=all for everything. Private addresses are never contacted.

Run: python -m dataprep.download URLS OUTPUT [--fetch-log PATH] [--documents PATH]
"""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from dataprep.crawl.segments import planned, write_fetch_log, write_segment
from dataprep.url_lists.files import UnreadableLineError, numbered_lines, read_url, url_lists
from pipelines import store
from pipelines.command import Output, Part, Source
from pipelines.config import Count, NonNegative, Positive, SourcePath, given
from pipelines.documents import is_jsonl, jsonl_files, part_files, read_rows
from pipelines.errors import ConfigError, UserError
from pipelines.identity import canonical_url
from pipelines.manifest import Counts, content_hash
from pipelines.progress import track
from pipelines.run import StageRun
from pipelines.stage import stage_main

if TYPE_CHECKING:
    from dataprep.crawl.fetch_store import FetchStore, Refetch

VERSION = 1
SHAPED_BY = ("pyarrow",)

logger = logging.getLogger(__name__)

FETCH_STORE = ".fetch_store"


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadConfig:
    """How to ask for pages, and what to accept."""

    user_agent: str = "millrace/0.1 (research crawler; name your contact in download.user_agent)"
    """Who is asking; the word before the slash is what robots.txt is read for."""
    concurrency: Count = 64
    """Requests under way at once."""
    per_host: Count = 2
    """Requests under way at once for one host; one where its robots.txt sets a Crawl-delay."""
    host_delay_seconds: Annotated[float, Ge(0)] = 0.0
    """Least seconds between two requests to one host; a longer Crawl-delay (up to 60 s) goes first."""
    connect_seconds: Positive = 10.0
    """Longest wait for a connection."""
    read_seconds: Positive = 20.0
    """Longest silence of a server that is sending."""
    total_seconds: Positive = 60.0
    """Longest time of one request, from its start to its last byte."""
    max_attempts: Count = 4
    """Attempts at a URL that fails in a way that may pass (408, 425, 429, 5xx, connection errors)."""
    backoff_seconds: Positive = 1.0
    """Wait before the second attempt; doubles with each further one, up to 300 s. Retry-After goes first."""
    max_body_bytes: Count = 10_000_000
    """Largest page, as sent and as decoded."""
    max_redirects: NonNegative = 5
    """Longest chain of redirects."""
    robots: bool = True
    """Ask robots.txt first."""
    urls_per_segment: Count = 10_000
    """URLs of the list that share a WARC segment."""
    local_site: SourcePath = ""
    """Site folder (index.jsonl and files) to serve on loopback under its own host names; empty for none."""


def download(
    config: DownloadConfig,
    run: StageRun,
    urls: Source,
    output: Output,
    fetch_log: Output | None,
    documents: Source | None,
) -> None:
    """Pass documents on; fetch what the store lacks; then write segments and log from the store."""
    from dataprep.crawl.fetch_store import FetchStore

    passed = pass_documents(run, documents, output)
    folder = output.final.parent / FETCH_STORE
    with FetchStore(folder, request_identity(config), session_of(run), refetch_wanted()) as fetch_store:
        fetch_missing(config, run, urls, fetch_store)
        plans = plan_segments(config, run, urls, fetch_store)
    if not plans and not passed:
        raise UserError(f"{urls.path}: holds no URL, and there are no --documents: nothing to do; name one of them")
    pages = run.map(write_segment, [Part(plan.stem, (plan,)) for plan in plans], str(folder), into=output)
    refuse_total_failure(run, plans, pages)
    # Without a place of its own the log lies below the output, and its rows are not counted there.
    subfolder = "" if fetch_log else "fetch_log/"
    parts = [Part(plan.stem.replace("segment", "fetch"), (plan,)) for plan in plans]
    run.map(write_fetch_log, parts, str(folder), subfolder, into=fetch_log or output)


def pass_documents(run: StageRun, documents: Source | None, output: Output) -> int:
    """Link the JSONL files of a ready corpus into the output; their number."""
    path = given(documents.path) if documents else None
    if path is None:
        return 0
    files = jsonl_files(path) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path}: holds no JSONL file (.jsonl, .json or .ndjson, also .gz, .zst, .xz)")
    parts = [Part(f"documents-{i:05d}", (file,)) for i, file in enumerate(files)]
    run.map(pass_document_file, parts, into=output)
    return len(parts)


def pass_document_file(part: Part, folder: Path) -> Counts:
    """One file of documents, under the name that `extract` looks for."""
    compression = part.file.suffix if part.file.suffix in store.COMPRESSED else ""
    store.link_or_copy(part.file, folder / f"{part.name}.jsonl{compression}")
    return Counts(totals={"document_files": 1})


def request_identity(config: DownloadConfig) -> str:
    """What a kept response depends on beside its URL: not how many at once or how patiently."""
    shaping = ("user_agent", "max_body_bytes", "max_redirects", "robots")
    values: dict[str, object] = {name: getattr(config, name) for name in shaping}
    site = given(config.local_site)
    values["local_site"] = content_hash(site) if site else ""
    return json.dumps(values, sort_keys=True)


def session_of(run: StageRun) -> str:
    """The name of this piece of work: the same for a resumed run, another for a new one."""
    file = run.scratch / "session"
    if not file.exists():
        with store.create(file) as new:
            new.write(os.urandom(16).hex().encode())
    return file.read_text()


def refetch_wanted() -> "Refetch":
    """MILLRACE_REFETCH: it changes when URLs are asked, never what is made of the answers."""
    value = os.environ.get("MILLRACE_REFETCH", "")
    choices: dict[str, Refetch] = {"": "", "0": "", "failed": "failed", "all": "all", "1": "all"}
    if value not in choices:
        raise ConfigError(f"MILLRACE_REFETCH={value}: expected failed or all")
    return choices[value]


@dataclass(frozen=True, slots=True)
class Listed:
    """One URL of the list; `rule` when a plain list holds something that cannot be fetched."""

    url: str
    rule: str = ""
    value: str = ""


def listed_urls(urls: Source) -> Iterator[Listed]:
    """The list in its order: our own parts as they are, a plain list made canonical and unique."""
    if urls.manifest:
        for part in part_files(urls.path):
            yield from (Listed(row["url"]) for row in read_rows(part, ["url"]))
    else:
        yield from _plain_urls(urls.path)


def _plain_urls(path: Path) -> Iterator[Listed]:
    seen: set[bytes] = set()
    for file in url_lists(path):
        for _, line in numbered_lines(file):
            try:
                original = read_url(line, in_json=is_jsonl(file))
            except UnreadableLineError as problem:
                yield Listed(line.decode("utf-8", "backslashreplace"), problem.rule, str(problem))
                continue
            url = canonical_url(original)
            key = hashlib.blake2b((url or "").encode(), digest_size=16).digest()
            if url is None:
                yield Listed(original, "malformed", "not an http or https URL with a valid host")
            elif key in seen:
                yield Listed(original, "duplicate", url)
            else:
                yield Listed(url)
            seen.add(key)


def fetch_missing(config: DownloadConfig, run: StageRun, urls: Source, fetch_store: "FetchStore") -> None:
    """Fetch every URL that the store has no outcome for; each outcome is kept as it comes."""
    from dataprep.crawl.crawler import crawl
    from dataprep.crawl.local_site import load_site

    missing = [item.url for item in listed_urls(urls) if not item.rule and fetch_store.find(item.url) is None]
    if not missing:
        return
    folder = given(config.local_site)
    site = load_site(folder) if folder else None
    logger.info("%s: fetching %s URLs", run.name, f"{len(missing):,}")
    for fetched in track(crawl(missing, config, site), what=f"{run.name}: fetch", total=len(missing), unit="URLs"):
        fetch_store.append(fetched)


def plan_segments(config: DownloadConfig, run: StageRun, urls: Source, fetch_store: "FetchStore") -> list[Path]:
    """One file per segment that says, for each URL of its range, where its outcome lies in the store."""
    plans: list[Path] = []
    listed = listed_urls(urls)
    while chunk := list(islice(listed, config.urls_per_segment)):
        plan = run.scratch / "plan" / f"segment-{len(plans):05d}.jsonl"
        with store.create(plan) as file:
            for item in chunk:
                place = None if item.rule else fetch_store.find(item.url)
                entry = {"listed": dataclasses.asdict(item), "place": place and dataclasses.asdict(place)}
                file.write(json.dumps(entry).encode() + b"\n")
        plans.append(plan)
    return plans


def refuse_total_failure(run: StageRun, plans: list[Path], pages: Counts) -> None:
    """A list of which nothing came, each URL for a reason that may pass, is no result but an outage."""
    if not pages.rows_in or pages.rows_out or pages.totals.get("transient", 0) < pages.rows_in:
        return
    (run.scratch / "session").unlink()  # so that the next run asks again
    reasons = ", ".join(f"{rule} {number:,}" for rule, number in sorted(pages.rejected.items()))
    example = next(iter(planned(plans[0], str(next(iter(run.outputs.values())).final.parent / FETCH_STORE))))
    raise UserError(
        f"none of the {pages.rows_in:,} URLs could be fetched ({reasons}; first: {example.url}: {example.value}); "
        "nothing was published: check the network and run the same command again"
    )


if __name__ == "__main__":
    stage_main("dataprep.download")
