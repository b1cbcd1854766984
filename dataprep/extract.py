"""Stage `extract`: the main text of every page of an archive, as document shards.

DOWNLOAD (the folder of the stage `download`; or a WARC file, or a folder of them) -> part-*.parquet
with `doc_id, url, text, source`: first one shard per WARC file, in order, then the documents that
came ready-made (documents-*.jsonl*). `source` is the registered domain. Every record that gives no
document goes to rejected/ with its rule (not_html, http_status, empty_text, truncated_record,
too_large, too_deep, extractor_error, ...) and the value seen.

Run: python -m dataprep.extract DOWNLOAD OUTPUT
"""

from dataclasses import dataclass
from pathlib import Path

from pipelines.command import Part, Source, Table
from pipelines.config import Count, Positive
from pipelines.documents import ShardWriter, ingest_jsonl, is_jsonl
from pipelines.errors import UserError
from pipelines.identity import canonical_url, document_id, split_url
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("trafilatura", "lxml", "charset-normalizer", "fastwarc", "tldextract", "pyarrow")

WARC_SUFFIXES = (".warc", ".warc.gz")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractConfig:
    """Which pages are worked on, and for how long."""

    max_page_bytes: Count = 10_000_000
    """Largest page, decoded from its HTTP encodings."""
    max_elements: Count = 50_000
    """Most elements of a page; real articles have some hundreds to a few thousand."""
    max_depth: Count = 200
    """Deepest nesting of elements; real pages stay below 100, and the parser drops what lies below 256."""
    page_seconds: Positive = 30.0
    """CPU seconds of one page before its process is ended; it is given ten times as much once more."""
    tables: bool = True
    """Keep the text of tables."""


def extract(config: ExtractConfig, run: StageRun, download: Source, output: Table) -> None:
    """Archives first, then ready-made documents, each file a shard."""
    archives, documents = find_inputs(download.path)
    files = [*archives, *documents]
    parts = [Part(f"part-{i:05d}", (file,)) for i, file in enumerate(files)]
    run.map(extract_archive, parts[: len(archives)], config, into=output)
    run.map(ingest_documents, parts[len(archives) :], into=output)


def find_inputs(path: Path) -> tuple[list[Path], list[Path]]:
    """The WARC files and the document files that `path` stands for, in order of name."""
    if path.is_file():
        return ([], [path]) if is_jsonl(path) else ([path], [])
    files = sorted(file for file in path.iterdir() if file.is_file())
    archives = [file for file in files if file.name.endswith(WARC_SUFFIXES)]
    documents = [file for file in files if file.name.startswith("documents-") and is_jsonl(file)]
    if not archives and not documents:
        raise UserError(f"{path}: holds neither WARC files (.warc, .warc.gz) nor documents-*.jsonl")
    return archives, documents


def extract_archive(part: Part, folder: Path, config: ExtractConfig) -> Counts:
    """One WARC file as one shard."""
    from dataprep.pages.page_child import ChildOptions, shared_child
    from dataprep.pages.sniffing import why_not_html
    from dataprep.pages.warc_reader import read_pages
    from dataprep.url_lists.domains import registered_domain

    child = shared_child(ChildOptions(config.max_elements, config.max_depth, config.tables, config.page_seconds))
    with ShardWriter(folder, part.name) as shard:
        for page in read_pages(part.file, config.max_page_bytes):
            url = canonical_url(page.url) or page.url
            rule, value, text = page.rule, page.value, ""
            if not rule and (value := why_not_html(page.content_type, page.body)):
                rule = "not_html"
            if not rule:
                extracted = child.extract(page.body, page.charset)
                rule, value, text = extracted.rule, extracted.value, extracted.text
            if rule:
                shard.reject({"doc_id": None, "url": url}, rule, value)
                continue
            address = split_url(url)
            source = registered_domain(address.host) if address else ""
            shard.keep({"doc_id": document_id(url, text), "url": url, "text": text, "source": source})
    return shard.counts


def ingest_documents(part: Part, folder: Path) -> Counts:
    """One JSONL file as document shards."""
    return ingest_jsonl(part.file, folder, part.name)


if __name__ == "__main__":
    stage_main("dataprep.extract")
