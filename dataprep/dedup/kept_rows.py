"""Documents that are kept as they are, from Arrow to Arrow.

The same bytes as `pipelines.documents.ShardWriter` makes of the same rows one by one, in a third of its time.
"""

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dataprep.dedup.arrays import to_numpy
from pipelines import documents

Array = np.ndarray[Any, Any]


class KeptRows:
    """Writes batches of rows to one Parquet file, in row groups that end where those of `TableWriter` do."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.rows = 0
        self.text_bytes = 0
        """UTF-8 bytes of the column `text` in all rows written so far."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._schema = schema
        self._writer = pq.ParquetWriter(str(path), schema, **documents.parquet_options())
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._held_size = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows; every column of the schema must be in them."""
        table = pa.Table.from_batches([rows]).select(self._schema.names).cast(self._schema)
        while len(table):
            some = table.slice(0, documents.ROW_GROUP_ROWS - self._held_rows)
            ends = self._held_size + np.cumsum(self._sizes(some))
            count = min(len(some), int(np.searchsorted(ends, documents.ROW_GROUP_BYTES)) + 1)
            self._held.append(some.slice(0, count))
            self._held_rows += count
            self._held_size = int(ends[count - 1])
            if self._held_rows == documents.ROW_GROUP_ROWS or self._held_size >= documents.ROW_GROUP_BYTES:
                self._flush()
            table = table.slice(count)

    def _sizes(self, table: pa.Table) -> Array:
        """What each row counts towards the size of a row group: characters of its texts and bytes of its data."""
        sizes = np.zeros(len(table), np.int64)
        for field in self._schema:
            if field.type in (pa.string(), pa.binary()):
                length = "utf8_length" if field.type == pa.string() else "binary_length"
                sizes += np.nan_to_num(to_numpy(pc.call_function(length, [table[field.name]]))).astype(np.int64)
        return sizes

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.concat_tables(self._held).combine_chunks()
        self._writer.write_table(table, documents.ROW_GROUP_ROWS)
        self.rows += len(table)
        self.text_bytes += int(to_numpy(pc.call_function("binary_length", [table["text"]])).sum(dtype=np.int64))
        self._held = []
        self._held_rows = self._held_size = 0

    def __enter__(self) -> "KeptRows":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._flush()
        self._writer.close()
