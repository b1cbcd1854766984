"""WARC segments and fetch log of a range of the URL list, written from its plan.

Nothing is compressed or decompressed here: a segment is a `warcinfo` record, then the members of its
pages as they were packed. Equal plans give equal files.
"""

from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from dataprep.crawl.fetched import PAGE, Outcome, Packed
from dataprep.crawl.plans import PlanReader
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


def write_segment(part: Part, folder: Path, logs: str, segment_bytes: int) -> Counts:
    """The WARC files of one range, and its rejected rows."""
    with PlanReader(Path(logs)) as reader, SegmentWriter(folder, part.name, segment_bytes) as segment:
        for packed in reader.packed(part.file):
            segment.write(packed)
    return segment.counts


class SegmentWriter:
    """Writes `<name>.warc.gz`, and `<name>_0001.warc.gz` and so on where one file would be too large."""

    def __init__(self, folder: Path, name: str, segment_bytes: int) -> None:
        self.counts = Counts()
        self._folder = folder
        self._name = name
        self._segment_bytes = segment_bytes
        self._files = 0
        self._file: BinaryIO | None = None
        self._rejected: TableWriter | None = None

    def write(self, packed: Packed) -> None:
        """Append a page, or reject a URL that has none."""
        self.counts.rows_in += 1
        if packed.outcome.rule != PAGE:
            self._reject(packed.outcome)
            return
        if self._file and self._file.tell() + len(packed.members) > self._segment_bytes:
            self._file.close()
            self._file = None
        self._file = self._file or self._open_file(packed.outcome.started)
        self._file.write(packed.members)
        self.counts.rows_out += 1
        self.counts.total("page_bytes", packed.outcome.bytes)

    def _open_file(self, date: str) -> BinaryIO:
        from dataprep.crawl.warc_writer import warcinfo

        # "_" sorts after ".", so the files are in the order of the list.
        name = f"{self._name}_{self._files:04d}.warc.gz" if self._files else f"{self._name}.warc.gz"
        file = (self._folder / name).open("wb")
        file.write(warcinfo(name, date))
        self._files += 1
        return file

    def _reject(self, outcome: Outcome) -> None:
        self._rejected = self._rejected or TableWriter(
            self._folder / REJECTED / f"{self._name}.parquet", REJECTED_SCHEMA
        )
        self._rejected.write({"doc_id": None, "url": outcome.url, "rule": outcome.rule, "value": outcome.value})
        self.counts.reject(outcome.rule)
        self.counts.total("transient", int(outcome.transient))

    def __enter__(self) -> "SegmentWriter":
        return self

    def __exit__(self, *trace: object) -> None:
        if self._rejected:
            self._rejected.__exit__(None, None, None)
        if self._file or not self._files:
            (self._file or (self._folder / f"{self._name}.warc.gz").open("wb")).close()


def write_fetch_log(part: Part, folder: Path, logs: str, subfolder: str) -> Counts:
    """One row for every URL of a range: what was asked, what came, how long it took."""
    with (
        PlanReader(Path(logs)) as reader,
        TableWriter(folder / f"{subfolder}{part.name}.parquet", FETCH_LOG_SCHEMA) as table,
    ):
        for outcome in reader.outcomes(part.file):
            row = {name: getattr(outcome, name) for name in FETCH_LOG_SCHEMA.names}
            table.write({**row, "sha256": bytes.fromhex(outcome.sha256) or None})
    return Counts() if subfolder else Counts(rows_in=table.rows, rows_out=table.rows)
