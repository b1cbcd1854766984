"""The other columns of Parquet files as documents' metadata.

Carried are numbers, booleans and text, also in lists and structs, and dates, timestamps (UTC) and decimal numbers as
text; not binary columns, maps, and names that occur twice. A row's nulls, texts that are not UTF-8 and days after the
year 9999 are left out. Of document shards, the keys of the column `metadata` are taken out of it again.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pipelines.documents import DOCUMENT_SCHEMA
from pipelines.metadata import METADATA, METADATA_FIELD, object_text, with_keys


@dataclass(frozen=True, slots=True)
class OtherColumns:
    """The columns of a file that become metadata."""

    names: list[str]
    has_metadata: bool
    """Whether the last of them is the column `metadata` of a document shard."""

    @classmethod
    def find(cls, schema: pa.Schema, used: Collection[str]) -> "OtherColumns":
        """Return the columns beside those in `used`, in order."""
        fields = [each for each in schema if schema.names.count(each.name) == 1 and each.name not in used]
        ours = all(field in fields for field in (DOCUMENT_SCHEMA.field("doc_id"), METADATA_FIELD))
        names = [each.name for each in fields if _is_carried(each.type) and not (ours and each.name == METADATA)]
        return cls([*names, METADATA] if ours else names, ours)

    def metadata(self, batch: pa.RecordBatch) -> list[str | None]:
        """Return the metadata of each row of a batch."""
        names = self.names[:-1] if self.has_metadata else self.names
        columns = [_values(batch.column(name)) for name in names]
        rows = zip(*columns, strict=True) if columns else itertools.repeat((), batch.num_rows)
        values = _values(batch.column(METADATA)) if self.has_metadata else itertools.repeat(None, batch.num_rows)
        return [_metadata(names, row, metadata) for row, metadata in zip(rows, values, strict=True)]


def _metadata(names: Sequence[str], row: Sequence[Any], metadata: str | None) -> str | None:
    kept = {name: value for name, value in zip(names, row, strict=True) if value is not None}
    if not kept:
        return metadata
    text = object_text(kept)
    return text if metadata is None else with_keys(text.encode(), list(kept), metadata)[0].decode()


def _is_carried(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_date(kind) or types.is_timestamp(kind) or types.is_decimal(kind) or _is_plain(kind)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether the values of a type are those of JSON."""
    types = pa.types
    if types.is_dictionary(kind) or types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    text = types.is_string(kind) or types.is_large_string(kind)
    return text or types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column as those of JSON; None where they are null or not UTF-8."""
    if pa.types.is_timestamp(column.type):  # those in nanoseconds would come as those of pandas
        column = column.cast(pa.timestamp("us", "UTC" if column.type.tz else None), safe=False)
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):  # not UTF-8, or a day after the year 9999
        values = [_value(each) for each in column]
    return [str(value) if isinstance(value, Decimal) else value for value in values]


def _value(each: pa.Scalar) -> Any:
    try:
        return each.as_py()
    except (ValueError, OverflowError):
        return None
