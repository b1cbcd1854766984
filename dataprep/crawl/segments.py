"""WARC segments and fetch log of a range of the URL list, written from the fetch store.

A plan says, for each URL of a range in order, where its outcome lies in the store, or why it was
never fetched. Equal plans give equal files.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from dataprep.crawl.fetched import Fetched
from pipelines import store
from pipelines.command import Part
from pipelines.documents import REJECTED, REJECTED_SCHEMA, TableWriter
from pipelines.manifest import Counts

FETCH_LOG_SCHEMA = pa.schema(
    [
        ("url", pa.string()),
        ("rule", pa.string()),
        ("value", pa.string()),
        ("status", pa.int32()),
        ("final_url", pa.string()),
        ("redirects", pa.list_(pa.string())),
        ("bytes", pa.int64()),
        ("sha256", pa.binary(32)),
        ("attempts", pa.int32()),
        ("address", pa.string()),
        ("started", pa.string()),
        ("elapsed_ms", pa.int64()),
        ("note", pa.string()),
    ]
)


def planned(plan: Path, folder: str) -> Iterator[Fetched]:
    """The outcomes of one segment's URLs, in order."""
    from dataprep.crawl.fetch_store import Place, read_record

    for line in store.read_lines(plan):
        entry = json.loads(line)
        if entry["place"]:
            yield read_record(Path(folder), Place(**entry["place"]))
        else:
            yield Fetched(**entry["listed"])


def write_segment(part: Part, folder: Path, fetch_store: str) -> Counts:
    """One WARC segment, and the rejected rows of its range."""
    from dataprep.crawl.warc_writer import write_page, write_warcinfo

    counts = Counts()
    name = f"{part.name}.warc.gz"
    rejected: TableWriter | None = None
    with store.create(folder / name) as file:
        for fetched in planned(part.file, fetch_store):
            counts.rows_in += 1
            if fetched.rule:
                rejected = rejected or TableWriter(folder / REJECTED / f"{part.name}.parquet", REJECTED_SCHEMA)
                rejected.write({"doc_id": None, "url": fetched.url, "rule": fetched.rule, "value": fetched.value})
                counts.reject(fetched.rule)
                counts.total("transient", int(fetched.transient))
                continue
            if not counts.rows_out:
                write_warcinfo(file, name, fetched.started)
            write_page(file, fetched)
            counts.rows_out += 1
            counts.total("page_bytes", len(fetched.body))
    if rejected:
        rejected.__exit__(None, None, None)
    return counts


def write_fetch_log(part: Part, folder: Path, fetch_store: str, subfolder: str) -> Counts:
    """One row for every URL of a segment's range: what was asked, what came, how long it took."""
    rows = 0
    with TableWriter(folder / f"{subfolder}{part.name}.parquet", FETCH_LOG_SCHEMA) as table:
        for fetched in planned(part.file, fetch_store):
            row = dataclasses.asdict(fetched)
            digest = hashlib.sha256(fetched.body).digest() if fetched.body else None
            table.write({**row, "bytes": len(fetched.body), "sha256": digest})
            rows += 1
    return Counts() if subfolder else Counts(rows_in=rows, rows_out=rows)
