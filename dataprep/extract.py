"""Stage `extract`: the main text of every page, and documents of any other source, as document shards.

PATH is the folder of the stage `download`, or a file or folder (with all below it) of WARC, ARC or WET
archives (plain, .gz, .zst), of HTML pages, of JSON lines, Parquet, text, tar archives of texts or pages
(and archives of such), or a Megatron .bin with its .idx. Kinds are told by names, or said with --source;
what is not read is named, and of several files one that cannot be read costs itself alone. OUTPUT gets
part-*.parquet with `doc_id, url, text, source`: archives first, then pages, then ready documents, each by
name; `source` is the registered domain where there is one. Every record that gives no document goes to
rejected/ with its rule (not_html, http_status, empty_text, damaged_record, truncated_record, too_large,
too_deep, extractor_error, unreadable_file, ...) and the value seen; requests, metadata and the like are
counted as skipped_*. A page file is called by its path below PATH.

Run: python -m dataprep.extract PATH OUTPUT
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Interval

from pipelines.command import Part, Source, Table
from pipelines.config import Count, NonNegative, TokenizerPath, given
from pipelines.documents import UNREADABLE_FILE, rejected_rows
from pipelines.errors import UserError, describe
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

if TYPE_CHECKING:
    from dataprep.pages.contract import PageOptions
    from dataprep.pages.page_child import PageChild
    from dataprep.sources.records import Broken, Page, Text

VERSION = 2
SHAPED_BY = ("trafilatura", "lxml", "resiliparse", "tldextract", "pyarrow", "brotli", "zstandard")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractConfig:
    """What is read, which pages are worked on, and for how long."""

    source: Literal["auto", "warc", "wet", "html", "jsonl", "parquet", "text", "tar", "megatron"] = "auto"
    """What PATH holds; "auto" tells by names. "warc" is WARC and ARC archives. "html" and "text" also read files
    whose names say nothing."""
    text_key: str = "text"
    """Where JSON lines and Parquet files have the text; in Parquet `a.b` is field b of column a."""
    url_key: str = "url"
    """Where they have the URL, if they have one."""
    tokenizer: TokenizerPath = ""
    """For a Megatron .bin: a tokenizer.json, or a folder with a tokenizer's files; empty for those beside it."""
    max_page_bytes: Count = 10_000_000
    """Largest page, decoded from its HTTP encodings; largest text file."""
    max_elements: Count = 50_000
    """Most elements of a page; real articles have some hundreds to a few thousand."""
    max_depth: Count = 200
    """Deepest nesting of elements; real pages stay below 100, and the parser drops what lies below 256."""
    page_seconds: Annotated[float, Interval(gt=0, le=3600)] = 30.0
    """CPU seconds of one page before its process is ended; it is given ten times as much once more."""
    extractor: Literal["routed", "trafilatura", "precision", "resiliparse"] = "routed"
    """What finds the text: "trafilatura" (its fast mode), "precision" (its slower one that leaves out more),
    "resiliparse" (a quarter of the time, more boilerplate), or "routed": resiliparse inside the element that says
    it is the article, where that agrees with the page, and trafilatura elsewhere."""
    fallback_chars: NonNegative = 1000
    """A text with fewer characters is compared with the other library's, which is taken when five times as long."""
    tables: bool = True
    """Keep the text of tables: a line for each row, a tab between cells."""


def extract(config: ExtractConfig, run: StageRun, path: Source, output: Table) -> None:
    """Find the inputs, divide them into parts, work on each."""
    from dataprep.sources.finding import find_inputs
    from dataprep.sources.parts import make_parts

    found = find_inputs(path.path, config.source)
    if found.unread:
        logger.warning("extract: not read, %d file(s): %s", len(found.unread), describe(found.unread))
    parts = make_parts(run, found.inputs, path.path, config.max_page_bytes)
    counts = run.map(extract_part, parts, config, into=output)
    if UNREADABLE_FILE in counts.rejected:
        refuse_unreadable(path.path, rejected_rows(output.folder, UNREADABLE_FILE), len(found.inputs), counts)


def refuse_unreadable(path: Path, unreadable: Sequence[tuple[str, str]], files: int, counts: Counts) -> None:
    """One file of several that cannot be read is named; the only one, or all without a document, are an error."""
    if files == 1 or not counts.rows_out:
        name, why = unreadable[0]
        raise UserError(f"{(path if path.is_dir() else path.parent) / name}: {why}")
    logger.warning("extract: %d file(s) could not be read: %s", len(unreadable), describe(unreadable))


def extract_part(part: Part, folder: Path, config: ExtractConfig) -> Counts:
    """The records of one part as document shards."""
    from dataprep.pages.page_child import shared_child
    from dataprep.sources.parts import Reading, read_part
    from dataprep.sources.records import Page
    from dataprep.sources.shards import DocumentShards

    reading = Reading.load(part.files[0])
    child = shared_child(page_options(config))
    keys, tokenizer = (config.text_key, config.url_key), given(config.tokenizer)
    records = read_part(reading, part.files[1:], config.max_page_bytes, keys, tokenizer)
    with DocumentShards(folder, part.name, reading.source) as shards:
        for record in records:
            shards.add(extract_page(child, record, shards.counts) if isinstance(record, Page) else record)
    return shards.counts


def page_options(config: ExtractConfig) -> "PageOptions":
    """The part of the section that a page's extractor is told."""
    from dataprep.pages.contract import PageOptions

    return PageOptions(
        extractor=config.extractor,
        fallback_chars=config.fallback_chars,
        max_elements=config.max_elements,
        max_depth=config.max_depth,
        tables=config.tables,
        seconds=config.page_seconds,
    )


def extract_page(child: "PageChild", page: "Page", counts: Counts) -> "Text | Broken":
    """The text of a page, or why it gives none; the library that made the text is counted."""
    from dataprep.pages.sniffing import why_not_html
    from dataprep.sources.records import Broken, Text

    if why := why_not_html(page.content_type, page.body):
        return Broken(page.url, "not_html", why)
    found = child.extract(page.body, page.charset)
    if found.rule:
        return Broken(page.url, found.rule, found.value)
    counts.total(f"pages_by_{found.extractor}", 1)
    return Text(page.url, found.text)


if __name__ == "__main__":
    stage_main("dataprep.extract")
