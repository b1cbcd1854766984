"""The rows of the ledger: what each table of rejected rows, and each shard of documents, says of its documents."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dataprep.ledger.members import Members
from dataprep.web.domains import registered_domain
from pipelines.command import Part
from pipelines.documents import Row, TableWriter, read_rows, read_schema
from pipelines.errors import UserError
from pipelines.identity import split_url
from pipelines.manifest import Counts

LEDGER_SCHEMA = pa.schema(
    [
        pa.field("doc_id", pa.string()),
        pa.field("url", pa.string()),
        pa.field("domain", pa.string()),
        pa.field("source", pa.string()),
        pa.field("fate", pa.string()),
        pa.field("stage", pa.string()),
        pa.field("rule", pa.string()),
        pa.field("value", pa.string()),
        pa.field("threshold", pa.string()),
        pa.field("number", pa.float64()),
        pa.field("language", pa.string()),
        pa.field("cluster", pa.int64()),
        pa.field("survivor", pa.string()),
        pa.field("characters", pa.int64()),
        pa.field("url_date", pa.string()),
        pa.field("shard", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("text_start", pa.string()),
    ]
)
"""Ids in hex, as every viewer can show and search them, and `explain` takes them. `number` is the first number of
`value`. `offset` is a row of `shard`, a path in the folder of the corpus: where the text is, or the rejected row if no
stage has one. Null: not known at the stage that decided."""

REJECTED_FATE = "rejected"
KEPT_FATE = "kept"
"""Of a document that no stage has rejected so far, in a ledger that was made before `split`."""
LANGUAGE_RULES = ("language", "language_probability")
_NUMBER = re.compile(r"(?:^|^[a-z-]+ |jaccard=)(-?\d+(?:\.\d+)?(?:e-?\d+)?)(?![\w.])")
_DATE = re.compile(r"[/-]((?:19[89]|20[0-4])\d)(?:[/-](0[1-9]|1[0-2]))?(?=[/-])")


@dataclass(frozen=True, slots=True)
class Origin:
    """What the rows of some tables have in common."""

    stage: str
    fate: str
    names: Mapping[Path, str]
    """A file -> its path in the folder of the corpus."""
    paired: bool = False
    """Whether each table of rejected rows is followed by the shard of documents that its stage read."""


def write_rows(part: Part, folder: Path, origin: Origin, members: Path | None, characters: int, limit: int) -> Counts:
    """Write the ledger's rows for the tables of one part; `members`: the folder of `Members`; `limit` 0: all rows."""
    known = Members.open(members) if members else None
    with TableWriter(folder / f"{part.name}.parquet", LEDGER_SCHEMA) as writer:
        for row in itertools.islice(_rows(part, origin), limit or None):
            doc_id = row["doc_id"]
            cluster, survivor = known.find(doc_id) if known and doc_id else (None, None)
            text = row.get("text")
            writer.write(
                {
                    **_described(row),
                    "doc_id": doc_id.hex() if doc_id else None,
                    "source": row.get("source") or None,
                    "fate": origin.fate,
                    "stage": origin.stage,
                    "cluster": cluster,
                    "survivor": survivor.hex() if survivor else None,
                    "characters": None if text is None else len(text),
                    "shard": row["shard"],
                    "offset": row["offset"],
                    "text_start": None if text is None else text[:characters],
                }
            )
    counts = Counts(rows_in=writer.rows, rows_out=writer.rows)
    counts.total(origin.fate, writer.rows)
    return counts


def _rows(part: Part, origin: Origin) -> Iterator[Row]:
    """Yield the rows of all tables of a part, each with the location of its text, or of itself if it has none."""
    if origin.paired:
        for table, documents in zip(part.files[::2], part.files[1::2], strict=True):
            yield from with_texts(table, documents, origin.names[documents])
        return
    for table in part.files:
        wanted = ("doc_id", "url", "source", "rule", "value", "threshold", "text")
        names = [name for name in wanted if name in read_schema(table).names]
        for offset, row in enumerate(read_rows(table, names)):
            # The fetch log lists what was rejected too; those rows come from the rejected ones.
            if origin.fate == REJECTED_FATE or not row.get("rule"):
                yield {"doc_id": None, **row, "shard": origin.names[table], "offset": offset}


def with_texts(rejected: Path, documents: Path, shard: str) -> Iterator[Row]:
    """Yield rejected rows with the text, the source and the row of their document, in whose order they are.

    Raises UserError if `documents` are not those that were read.
    """
    texts = enumerate(read_rows(documents, ["doc_id", "text", "source"]))
    for row in read_rows(rejected):
        for offset, document in texts:
            if document["doc_id"] == row["doc_id"]:
                yield {**row, **document, "shard": shard, "offset": offset}
                break
        else:
            raise UserError(f"{rejected}: was not made from {documents}; give the folder that its stage read")


def _described(row: Row) -> Row:
    """Return what follows from a row's URL, rule and value."""
    url, rule, value = row["url"] or "", row.get("rule") or "", row.get("value") or ""
    address = split_url(url)
    date = _DATE.search(url)
    return {
        "url": url,
        "domain": registered_domain(address.host) if address else None,
        "rule": rule,
        "value": value,
        "threshold": row.get("threshold"),
        "number": number_of(value),
        "language": value.partition(" ")[0] if rule in LANGUAGE_RULES else None,
        "url_date": "-".join(filter(None, date.groups())) if date else None,
    }


def number_of(value: str) -> float | None:
    """Return the number that a rule saw, from the value as rejected rows show it: `79 pre-tokens`, `de 0.98`."""
    match = _NUMBER.search(value)
    return float(match[1]) if match else None
