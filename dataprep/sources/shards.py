"""Document shards of one part of a source: what is kept, what is rejected, and how much of each."""

from pathlib import Path
from types import TracebackType

from dataprep.sources.records import Broken, Skipped, Text
from dataprep.url_lists.domains import registered_domain
from pipelines.documents import DOCUMENT_SCHEMA, REJECTED, REJECTED_SCHEMA, TableWriter
from pipelines.identity import document_id, split_url
from pipelines.manifest import Counts

INGEST_ROWS = 20_000
"""Documents per shard: part of the result, so a constant and not an option."""


class DocumentShards:
    """Writes `<name>-00000.parquet` and so on, at most INGEST_ROWS rows each, and `rejected/<name>.parquet`.

    The first shard is always there, also without rows; rejected rows only when there are any.
    """

    def __init__(self, folder: Path, name: str, source: str) -> None:
        """`source` is where documents come from that have neither a source nor a web address."""
        self.counts = Counts()
        self._folder = folder
        self._name = name
        self._source = source
        self._documents = self._next_shard()
        self._rejected: TableWriter | None = None

    def add(self, record: Text | Broken | Skipped) -> None:
        """Write one record down, and count it."""
        if isinstance(record, Skipped):
            self.counts.total(f"skipped_{record.kind}", 1)
            return
        self.counts.rows_in += 1
        if isinstance(record, Text):
            self._keep(record)
        else:
            self._reject(record)

    def _keep(self, text: Text) -> None:
        if self._documents.rows == INGEST_ROWS:
            self._documents.__exit__(None, None, None)
            self._documents = self._next_shard()
        address = split_url(text.url)
        source = text.source or (registered_domain(address.host) if address else self._source)
        row = {"doc_id": document_id(text.url, text.text), "url": text.url, "text": text.text, "source": source}
        self._documents.write(row)
        self.counts.rows_out += 1
        self.counts.total("text_bytes", len(text.text.encode()))

    def _reject(self, broken: Broken) -> None:
        if self._rejected is None:
            self._rejected = TableWriter(self._folder / REJECTED / f"{self._name}.parquet", REJECTED_SCHEMA)
        self._rejected.write({"doc_id": None, "url": broken.url, "rule": broken.rule, "value": broken.value})
        self.counts.reject(broken.rule)

    def _next_shard(self) -> TableWriter:
        number = self.counts.rows_out // INGEST_ROWS
        return TableWriter(self._folder / f"{self._name}-{number:05d}.parquet", DOCUMENT_SCHEMA)

    def __enter__(self) -> "DocumentShards":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in (self._documents, self._rejected):
            if writer:
                writer.__exit__(kind, error, trace)
