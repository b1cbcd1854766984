"""The files between Megatron's three deduplication scripts, to and from our tables.

Pairs: one JSON line `{id: [{other id: similarity}, ...]}` per document that has duplicates. Groups: one line
`{"0": [id, ...]}` per group, the id that stays first. An id is what a document has under the key that
find_duplicates was given.
"""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from dataprep.dedup.pairs import GROUP_SCHEMA, PAIR_SCHEMA, read_tables
from pipelines import store
from pipelines.documents import part_files
from pipelines.errors import UserError

_ROW_GROUP = 1 << 12


def first_line(path: Path) -> Any:
    """The first line of a JSONL file that is not blank, parsed; None where there is none or it is no JSON."""
    try:
        line = next((line for line in store.read_lines(path) if line.strip()), b"null")
        return json.loads(line)
    except (UserError, OSError, ValueError):
        return None


def is_pair_line(value: Any) -> bool:
    """Whether a parsed line is of their pairs."""
    return _is_lists_of(value, dict)


def is_group_line(value: Any) -> bool:
    """Whether a parsed line is of their groups."""
    return _is_lists_of(value, str)


def _is_lists_of(value: Any, kind: type) -> bool:
    if not isinstance(value, dict) or len(cast(dict[str, Any], value)) != 1:
        return False
    (items,) = cast(dict[str, Any], value).values()
    return isinstance(items, list) and all(isinstance(item, kind) for item in cast(list[Any], items))


def read_objects(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """Number and bytes of each line that is not blank, and what it says, if that is an object."""
    for number, line in enumerate(store.read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        yield number, line, cast(dict[str, Any], value) if isinstance(value, dict) else None


def id_of(row: dict[str, Any] | None, key: str) -> str | None:
    """What a document is called; None where it is not."""
    value = row.get(key) if row else None
    return str(value) if isinstance(value, str | int) else None


def write_documents(source: Path, key: str, target: Path) -> int:
    """Their JSONL with text and `key` as ours, the id in the place of the URL; returns how many lines are none."""
    skipped = 0
    with store.create(target) as file:
        for _, _, row in read_objects(source):
            name, text = id_of(row, key), (row or {}).get("text")
            if name is None or not isinstance(text, str):
                skipped += 1
                continue
            file.write(json.dumps({"text": text, "url": name}).encode() + b"\n")
    return skipped


def write_pair_table(source: Path, target: Path) -> None:
    """Their file of pairs as ours; documents stand in the order in which they are named, and all ids in memory."""
    target.parent.mkdir(parents=True, exist_ok=True)
    rows = _pair_rows(source)
    with pq.ParquetWriter(str(target), PAIR_SCHEMA, compression="zstd") as writer:
        while some := list(itertools.islice(rows, _ROW_GROUP)):
            writer.write_table(pa.Table.from_pylist(some, PAIR_SCHEMA))


def _pair_rows(source: Path) -> Iterator[dict[str, Any]]:
    places: dict[str, int] = {}
    for number, _, line in read_objects(source):
        if not is_pair_line(line):
            raise UserError(f"{source}:{number}: expected {{id: [{{other: similarity}}, ...]}}; make the file again")
        ((main, others),) = cast(dict[str, list[dict[str, Any]]], line).items()
        for other, similarity in (item for each in others for item in each.items()):
            if not isinstance(similarity, int | float):
                raise UserError(f"{source}:{number}: similarity of {other!r}: expected a number, got {similarity!r}")
            sides = {**_named(main, places, "a"), **_named(other, places, "b")}
            yield {**sides, "jaccard": float(similarity), "kind": "near"}


def _named(name: str, places: dict[str, int], side: str) -> dict[str, Any]:
    row = places.setdefault(name, len(places))
    doc_id = xxhash.xxh3_128_digest(name.encode())
    values = {
        "corpus": "",
        "shard": 0,
        "row": row,
        "doc_id": doc_id,
        "url": name,
        "source": "",
        "length": 0,
        "start": "",
    }
    return {f"{key}_{side}": value for key, value in values.items()}


def write_seed_groups(folder: Path, target: Path) -> int:
    """An output of group_duplicates as their file of groups; returns how many there are."""
    groups: dict[int, list[str]] = defaultdict(list)
    for file in part_files(folder):
        for table in read_tables(file, GROUP_SCHEMA):
            for row in table.select(["group", "url", "is_survivor"]).to_pylist():
                members = groups[row["group"]]
                members.insert(0 if row["is_survivor"] else len(members), row["url"])
    with store.create(target) as file:
        for number, group in enumerate(sorted(groups)):
            file.write(json.dumps({str(number): groups[group]}).encode() + b"\n")
    return len(groups)


def read_seed_groups(path: Path) -> dict[str, str]:
    """Of each id that goes, the one that stays."""
    survivors: dict[str, str] = {}
    for number, _, line in read_objects(path):
        if not is_group_line(line):
            raise UserError(f'{path}:{number}: expected {{"0": [id, ...]}}; make the file again')
        ((_, members),) = cast(dict[str, list[str]], line).items()
        survivors |= dict.fromkeys(members[1:], members[0]) if members else {}
    return survivors


def find_key(data: Path, survivors: dict[str, str]) -> str:
    """The key under which documents have the ids that go; UserError when there is none."""
    hits: Counter[str] = Counter()
    for _, _, row in read_objects(data):
        hits.update(key for key in row or {} if key != "text" and id_of(row, key) in survivors)
    if not hits:
        raise UserError(
            f"{data}: no document has any of the {len(survivors):,} ids that are to go; give the data that "
            "find_duplicates read, or the key by --key"
        )
    return min(hits, key=lambda key: (-hits[key], key != "url", key))
