"""The index over all items to search for: GLUE's splits, and targets, which are texts of the user.

The index is a folder with NumPy tables (`dataprep.decontaminate.ngrams`), items.arrow, whose row number identifies the
item, and sources.json with the files it was made of. Its size depends on the items, not on the corpus.

A target is `name=FILE` on the command line, or a file in a folder, named after the file. A JSON line has a `text`; any
other file is UTF-8, and each of its non-blank lines is an item. Items are numbered by line, from 1.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.decontaminate.keys import KEY, NEAR, KeyTable, Windows
from dataprep.decontaminate.near import SeedWriter
from dataprep.decontaminate.offsets import compared_words
from dataprep.dedup.shingles import Words
from dataprep.glue.tables import read_split
from dataprep.text.folding import raw_texts
from pipelines import store
from pipelines.columns import column
from pipelines.command import Part
from pipelines.documents import is_jsonl
from pipelines.errors import ConfigError, UserError
from pipelines.jsonl import MAX_LINE_BYTES, BrokenLineError, read_jsonl
from pipelines.manifest import MANIFEST, Counts, is_published
from pipelines.utf import text_lines

Array = np.ndarray[Any, Any]
Batch = tuple[list[int], dict[str, pa.Array]]
"""A batch of rows of a source: their numbers, and their texts by field."""

ITEMS = "items"
"""The only split of a target."""
_BATCH_ITEMS = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

ITEM_SCHEMA = pa.schema(
    [
        pa.field("task", pa.string()),
        pa.field("split", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("field", pa.string()),
        pa.field("text", pa.string()),
    ]
)
"""One text of a row, or all of them (`sentence1+sentence2`), separated by line feeds."""


@dataclass(frozen=True, slots=True)
class ItemSource:
    """One file of items: a split of a GLUE task, or a target."""

    task: str
    split: str
    sha256: str
    is_glue: bool

    @classmethod
    def of_split(cls, file: Path, sha256: str) -> "ItemSource":
        """Describe a file TASK/SPLIT.parquet."""
        return cls(file.parent.name, file.stem, sha256, is_glue=True)

    @classmethod
    def of_target(cls, name: str, sha256: str) -> "ItemSource":
        """Describe a target's file."""
        return cls(name, ITEMS, sha256, is_glue=False)


def build_index(part: Part, folder: Path, sources: Sequence[ItemSource], windows: Windows) -> Counts:
    """Write the index of all texts in `part.files`, one file per source."""
    with IndexWriter(folder, windows) as index:
        for source, file in zip(sources, part.files, strict=True):
            index.add(source, file)
    return index.counts


class IndexWriter:
    """Collects keys and items source by source, and writes the tables at the end."""

    def __init__(self, folder: Path, windows: Windows) -> None:
        self.counts = Counts()
        self._folder = folder
        self._windows = windows
        self._keys: dict[int, list[Array]] = {}
        self._seeds = SeedWriter(windows) if windows.edits else None
        self._items = 0
        self._sources: list[dict[str, Any]] = []
        self._writer = pa.ipc.new_file(str(folder / "items.arrow"), ITEM_SCHEMA)
        self._broken: list[dict[str, str]] = []

    def add(self, source: ItemSource, file: Path) -> None:
        """Add all items of one source. Raise UserError for a target without words."""
        first, broken = self._items, len(self._broken)
        words = rows = 0
        for indexes, fields in read_split(file) if source.is_glue else self._read_target(source, file):
            rows += len(indexes)
            by_field = {name: compared_words(raw_texts(texts)) for name, texts in fields.items()}
            words += sum(len(each.starts) for each in by_field.values())
            for name, each in by_field.items():
                self._add_field(source, indexes, name, fields[name], each)
            if len(fields) > 1:
                self._add_joined(source, indexes, fields, [np.diff(each.first) for each in by_field.values()])
        if not source.is_glue and not words:
            raise UserError(f"{file}: {_no_words_reason(rows, self._broken[broken:])}")
        record = {**asdict(source), "rows": rows, "broken_lines": len(self._broken) - broken}
        self._sources.append({**record, "first_item": first, "num_items": self._items - first})

    def _read_target(self, source: ItemSource, file: Path) -> Iterator[Batch]:
        indexes: list[int] = []
        texts: list[str] = []
        for number, item in read_target(file):
            if isinstance(item, BrokenLineError):
                self._broken.append({"url": f"{source.task}:{number}", "rule": item.rule, "value": str(item)})
                continue
            indexes.append(number)
            texts.append(item)
            if len(texts) == _BATCH_ITEMS:
                yield indexes, {"text": column(texts, pa.string())}
                indexes, texts = [], []
        yield indexes, {"text": column(texts, pa.string())}

    def _add_field(self, source: ItemSource, indexes: list[int], name: str, texts: pa.Array, words: Words) -> None:
        """Add one text of each row."""
        if self._seeds:
            self._seeds.add(words, self._items)
        self._add(source, indexes, name, texts, self._windows.item_keys(words, self._items))
        self.counts.total("items", len(indexes))
        self.counts.total("items_without_words", int(np.count_nonzero(np.diff(words.first) == 0)))

    def _add_joined(
        self, source: ItemSource, indexes: list[int], fields: dict[str, pa.Array], counts: list[Array]
    ) -> None:
        """Add the joined texts of each row: only runs across two of them are new."""
        rows = zip(*(texts.to_pylist() for texts in fields.values()), strict=True)
        texts = column(["\n".join(text or "" for text in row) for row in rows], pa.string())
        words = compared_words(raw_texts(texts))
        self._add(source, indexes, "+".join(fields), texts, self._windows.joined_keys(words, self._items, counts))
        self.counts.total("joined_items", len(indexes))

    def _add(self, source: ItemSource, indexes: list[int], field: str, texts: pa.Array, keys: dict[int, Array]) -> None:
        for length, of_length in keys.items():
            self._keys.setdefault(length, []).append(of_length)
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
        if self._seeds:
            self.counts.total("common_seeds", self._seeds.save(self._folder))
            near = np.zeros(self._items, KEY)
            near["key"] = near["item"] = np.arange(self._items)
            KeyTable.build(near).save(self._folder, NEAR)
        for length in sorted(self._keys):
            table = KeyTable.build(np.concatenate(self._keys.pop(length)))
            table.save(self._folder, length)
            self.counts.total(f"keys_{self._windows.kind(length)}", len(table.keys))
        self.counts.total("broken_lines", len(self._broken))
        store.write_json(self._folder / "broken.json", self._broken)
        store.write_json(self._folder / "sources.json", self._sources)


def _no_words_reason(rows: int, broken: Sequence[dict[str, str]]) -> str:
    """Return why a target with `rows` items and these broken lines has nothing to search for."""
    if rows:
        return f"none of its {rows} items has a word to look for"
    if broken:
        number = broken[0]["url"].rpartition(":")[2]
        return f"none of its {len(broken)} lines is an item; line {number}: {broken[0]['value']}"
    return "is empty; expected one text to look for in each line"


def find_targets(against: Sequence[str], folder: Path | None) -> dict[str, Path]:
    """Return the file of every target by name. Raise ConfigError for an invalid or repeated name."""
    pairs = [split_name(each) for each in against]
    if folder:
        pairs += [(_stem(file), file) for file in _files_of(folder)]
    targets: dict[str, Path] = {}
    for name, file in pairs:
        if name in targets:
            raise ConfigError(f"decontaminate: two targets are called {name} ({targets[name]}, {file}); rename one")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"decontaminate: {name!r} cannot be a target's name; use letters, digits, - _ . only")
        targets[name] = file
    return targets


def split_name(each: str) -> tuple[str, Path]:
    """Split `name=FILE`. Raise ConfigError for anything else."""
    name, equals, path = each.partition("=")
    if not equals or not path:
        raise ConfigError(f"decontaminate.against: expected name=FILE, got {each!r}")
    file = Path(path)
    if not file.is_file():
        problem = "is a folder; name its files, or pass it with --targets" if file.is_dir() else "no such file"
        raise ConfigError(f"decontaminate.against: {file}: {problem}")
    return name, file


def _files_of(folder: Path) -> list[Path]:
    if not folder.exists():
        raise ConfigError(f"decontaminate.targets: {folder}: no such file or folder")
    files = [folder] if folder.is_file() else sorted(path for path in folder.iterdir() if path.is_file())
    visible = [file for file in files if not file.name.startswith(".")]
    if folder.is_dir() and is_published(folder):  # the request files of score_requests
        visible = [file for file in visible if file.name != MANIFEST]
    if not visible:
        raise UserError(f"{folder}: holds no file of items; put JSON lines or plain text there")
    return visible


def _stem(file: Path) -> str:
    """Return the name without its endings: `a.b.jsonl.gz` -> `a.b`."""
    path = Path(file.stem) if file.suffix in store.COMPRESSED else file
    return path.stem


def read_target(file: Path) -> Iterator[tuple[int, str | BrokenLineError]]:
    """Yield the non-blank lines of a target by number: the item, or the reason why the line is not one."""
    if is_jsonl(file):
        for number, row in read_jsonl(file):
            yield number, row if isinstance(row, BrokenLineError) else row["text"]
        return
    for number, line in enumerate(text_lines(file, MAX_LINE_BYTES), start=1):
        if line.strip():
            yield number, _plain_item(line)


def _plain_item(line: bytes) -> str | BrokenLineError:
    if len(line) > MAX_LINE_BYTES:
        return BrokenLineError("too_large", f"longer than {MAX_LINE_BYTES} bytes")
    if b"\0" in line:
        return BrokenLineError("not_text", f"a zero byte at {line.index(0)}")
    try:
        return line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        return BrokenLineError("invalid_utf8", f"not valid UTF-8 at byte {error.start}")
