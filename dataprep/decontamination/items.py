"""The index over all items to look for: GLUE's splits and the user's own texts.

The index is a folder of NumPy tables (`dataprep.decontamination.ngrams`), items.arrow, whose row number is the item,
and sources.json, which says what it was made of. It is as large as the items, whatever the corpus.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.decontamination.ngrams import KeyTable, Windows
from dataprep.decontamination.targets import ITEMS, read_target
from dataprep.dedup.shingles import Words, find_words
from dataprep.glue.items import read_split
from dataprep.text.folding import fold_case, raw_texts
from pipelines import store
from pipelines.columns import column
from pipelines.command import Part
from pipelines.errors import UserError
from pipelines.jsonl import BrokenLineError
from pipelines.manifest import Counts

Array = np.ndarray[Any, Any]
Batch = tuple[list[int], dict[str, pa.Array]]
"""Some rows of a source: their numbers, and their texts by field."""

_BATCH_ITEMS = 1024

ITEM_SCHEMA = pa.schema(
    [
        pa.field("task", pa.string()),
        pa.field("split", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("field", pa.string()),
        pa.field("text", pa.string()),
    ]
)
"""One text of one row, or all of them (`sentence1+sentence2`) with line feeds between."""


@dataclass(frozen=True, slots=True)
class ItemSource:
    """One file of items: a split of a GLUE task, or a target of the user's own."""

    task: str
    split: str
    sha256: str
    is_glue: bool

    @classmethod
    def of_split(cls, file: Path, sha256: str) -> "ItemSource":
        """A file TASK/SPLIT.parquet."""
        return cls(file.parent.name, file.stem, sha256, is_glue=True)

    @classmethod
    def of_target(cls, name: str, sha256: str) -> "ItemSource":
        """A file of the user's."""
        return cls(name, ITEMS, sha256, is_glue=False)


def build_index(part: Part, folder: Path, sources: Sequence[ItemSource], windows: Windows) -> Counts:
    """The index of all texts in `part.files`, one file per source."""
    with IndexWriter(folder, windows) as index:
        for source, file in zip(sources, part.files, strict=True):
            index.add(source, file)
    return index.counts


class IndexWriter:
    """Gathers keys and items source by source; writes the tables at the end."""

    def __init__(self, folder: Path, windows: Windows) -> None:
        self.counts = Counts()
        self._folder = folder
        self._windows = windows
        self._keys: dict[int, list[Array]] = {}
        self._items = 0
        self._sources: list[dict[str, Any]] = []
        self._writer = pa.ipc.new_file(str(folder / "items.arrow"), ITEM_SCHEMA)
        self._broken: list[dict[str, str]] = []

    def add(self, source: ItemSource, file: Path) -> None:
        """All items of one source. Raises UserError for a target without any word."""
        first, broken = self._items, len(self._broken)
        words = rows = 0
        for indexes, fields in read_split(file) if source.is_glue else self._read_target(source, file):
            rows += len(indexes)
            found = {name: find_words(fold_case(raw_texts(texts))) for name, texts in fields.items()}
            words += sum(len(each.starts) for each in found.values())
            for name, each in found.items():
                self._add_field(source, indexes, name, fields[name], each)
            if len(fields) > 1:
                self._add_joined(source, indexes, fields, [np.diff(each.first) for each in found.values()])
        if not source.is_glue and not words:
            raise UserError(f"{file}: {_why_none(rows, self._broken[broken:])}")
        record = {**asdict(source), "rows": rows, "broken_lines": len(self._broken) - broken}
        self._sources.append({**record, "first_item": first, "num_items": self._items - first})

    def _read_target(self, source: ItemSource, file: Path) -> Iterator[Batch]:
        indexes: list[int] = []
        texts: list[str] = []
        for number, item in read_target(file):
            if isinstance(item, BrokenLineError):
                place = f"{source.task}:{number}"
                self._broken.append({"url": place, "rule": item.rule, "value": str(item)})
                continue
            indexes.append(number)
            texts.append(item)
            if len(texts) == _BATCH_ITEMS:
                yield indexes, {"text": column(texts, pa.string())}
                indexes, texts = [], []
        yield indexes, {"text": column(texts, pa.string())}

    def _add_field(self, source: ItemSource, indexes: list[int], name: str, texts: pa.Array, words: Words) -> None:
        """One text of each row."""
        self._add(source, indexes, name, texts, self._windows.item_keys(words, self._items))
        self.counts.total("items", len(indexes))
        self.counts.total("items_without_words", int(np.count_nonzero(np.diff(words.first) == 0)))

    def _add_joined(
        self, source: ItemSource, indexes: list[int], fields: dict[str, pa.Array], counts: list[Array]
    ) -> None:
        """The texts of each row one after the other: only what lies across two of them is new."""
        rows = zip(*(texts.to_pylist() for texts in fields.values()), strict=True)
        texts = column(["\n".join(text or "" for text in row) for row in rows], pa.string())
        words = find_words(fold_case(raw_texts(texts)))
        self._add(source, indexes, "+".join(fields), texts, self._windows.joined_keys(words, self._items, counts))
        self.counts.total("joined_items", len(indexes))

    def _add(self, source: ItemSource, indexes: list[int], field: str, texts: pa.Array, keys: dict[int, Array]) -> None:
        for length, found in keys.items():
            self._keys.setdefault(length, []).append(found)
        rows = len(indexes)
        columns = [[source.task] * rows, [source.split] * rows, indexes, [field] * rows]
        arrays = [column(values, each.type) for values, each in zip(columns, ITEM_SCHEMA, strict=False)]
        self._writer.write_batch(pa.record_batch([*arrays, texts], schema=ITEM_SCHEMA))
        self._items += rows

    def __enter__(self) -> "IndexWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._writer.close()
        if kind is not None:
            return
        for length in sorted(self._keys):
            table = KeyTable.build(np.concatenate(self._keys.pop(length)))
            table.save(self._folder, length)
            self.counts.total(f"keys_{self._windows.kind(length)}", len(table.keys))
        self.counts.total("broken_lines", len(self._broken))
        store.write_json(self._folder / "broken.json", self._broken)
        store.write_json(self._folder / "sources.json", self._sources)


def _why_none(rows: int, broken: Sequence[dict[str, str]]) -> str:
    """Why there is nothing to look for in a target of so many items and these broken lines."""
    if rows:
        return f"none of its {rows} items has a word to look for"
    if broken:
        number = broken[0]["url"].rpartition(":")[2]
        return f"none of its {len(broken)} lines is an item; line {number}: {broken[0]['value']}"
    return "is empty; expected one text to look for in each line"
