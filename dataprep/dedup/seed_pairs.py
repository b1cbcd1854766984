"""The pairs of an output of find_duplicates as Megatron's find_duplicates.py writes them.

Any number of them: what has to be looked up, the exact copies of a document and whether an id is of one text,
stands in an SQLite database in scratch; in memory are the pairs of one document.
"""

import contextlib
import itertools
import json
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dataprep.dedup.pairs import PAIR_SCHEMA, read_tables
from pipelines import store
from pipelines.documents import part_files, read_rows

PAIRS_ABOVE = 0.5
"""Similarities that their find_duplicates.py records are above this."""

_ROWS = 1024
_COLUMNS = [
    *(f"{name}_{side}" for side in "ab" for name in ("corpus", "shard", "row", "doc_id", "url")),
    "jaccard",
    "kind",
]
_TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE ids (name TEXT UNIQUE, doc_id BLOB, ambiguous INTEGER DEFAULT FALSE);
CREATE TABLE copies (corpus TEXT, shard INTEGER, row INTEGER, name TEXT);
CREATE INDEX copies_of ON copies (corpus, shard, row);
"""
_ADD_ID = """
INSERT INTO ids (name, doc_id) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET ambiguous = ambiguous OR doc_id <> excluded.doc_id
"""
_CHECK_ID = "UPDATE ids SET ambiguous = TRUE WHERE name = ? AND doc_id <> ?"
_IS_UNIQUE = "SELECT 1 FROM ids WHERE name = ? AND NOT ambiguous"
_COPIES_OF = "SELECT name FROM copies WHERE corpus = ? AND shard = ? AND row = ? ORDER BY rowid"


def write_seed_pairs(folder: Path, fingerprints: Sequence[Path], scratch: Path, output: Path) -> int:
    """Their file of pairs from the pairs in `folder` and the fingerprint folders that they name.

    The first of several exact copies stands for all in our pairs; here each has its own. An id that several
    different texts have names none of them; returns how many such ids there are among the pairs.
    """
    documents = [*part_files(folder / "signatures"), *(file for old in fingerprints for file in part_files(old))]
    with contextlib.closing(sqlite3.connect(scratch / "ids.sqlite")) as database:
        database.executescript(_TABLES)
        for row in _read_pairs(folder):
            database.executemany(_ADD_ID, [(row[f"url_{side}"], row[f"doc_id_{side}"]) for side in ("a", "b")])
            if row["kind"] == "exact":
                database.execute("INSERT INTO copies VALUES (?, ?, ?, ?)", (*_place(row, "a"), row["url_b"]))
        for file in documents:
            rows = read_rows(file, ["url", "doc_id"])
            database.executemany(_CHECK_ID, ((row["url"], row["doc_id"]) for row in rows))
        _write_lines(database, folder, output)
        return database.execute("SELECT count(*) FROM ids WHERE ambiguous").fetchone()[0]


def _read_pairs(folder: Path) -> Iterator[dict[str, Any]]:
    """All pairs, those of one first document together."""
    for file in part_files(folder):
        for table in read_tables(file, PAIR_SCHEMA):
            for batch in table.select(_COLUMNS).to_batches(_ROWS):
                yield from batch.to_pylist()


def _place(row: dict[str, Any], side: str) -> tuple[str, int, int]:
    return row[f"corpus_{side}"], row[f"shard_{side}"], row[f"row_{side}"]


def _write_lines(database: sqlite3.Connection, folder: Path, output: Path) -> None:
    with store.create(output) as file:
        for _, rows in itertools.groupby(_read_pairs(folder), lambda row: _place(row, "a")):
            main, others = "", dict[str, float]()
            for row in rows:
                main = row["url_a"]
                for name in _names(database, row) if row["jaccard"] > PAIRS_ABOVE else ():
                    others[name] = row["jaccard"]
            others.pop(main, None)
            if others and _is_unique(database, main):
                line = {main: [{other: similarity} for other, similarity in others.items()]}
                file.write(json.dumps(line).encode() + b"\n")


def _names(database: sqlite3.Connection, row: dict[str, Any]) -> list[str]:
    """The ids of the second document of a pair and of its exact copies, so far as they are of one text."""
    names = [row["url_b"]]
    if row["kind"] != "exact":
        names += (name for (name,) in database.execute(_COPIES_OF, _place(row, "b")))
    return [name for name in names if _is_unique(database, name)]


def _is_unique(database: sqlite3.Connection, name: str) -> bool:
    return database.execute(_IS_UNIQUE, (name,)).fetchone() is not None
