"""What a GLUE task is: text columns, labels, splits, and how one row becomes an example.

Nothing here opens a file. The ten tasks are in `dataprep.glue.tasks`; one of the user's own is made by
`dataprep.glue.custom`. A published table says in its schema's metadata of which task it is.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

HIDDEN_LABEL = -1
"""The label of a row whose answer only the benchmark's server knows, as on the Hub."""

_SPLIT_FILES = {
    "train": ("train",),
    "validation": ("dev", "validation", "valid", "val"),
    "test": ("test",),
    "validation_matched": ("devmatched", "validationmatched"),
    "validation_mismatched": ("devmismatched", "validationmismatched"),
    "test_matched": ("testmatched",),
    "test_mismatched": ("testmismatched",),
}


class RowError(ValueError):
    """What makes a row no example; `rule` is its counted reason."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


Rows = Iterator[dict[str, Any] | RowError]
"""Each row as an example, or as what is wrong with it: FILE:LINE, and the reason."""


def squeeze(name: str) -> str:
    """`STS-B` -> `stsb`: how names of folders, files and columns are compared."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True, slots=True)
class TaskMeta:
    """What a published table says of its task: name, text columns, names of the classes (none: a score)."""

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def num_labels(self) -> int:
        """Outputs of a classifier: the classes, or 1 for a score."""
        return len(self.labels) or 1

    @classmethod
    def of_schema(cls, schema: pa.Schema) -> "TaskMeta":
        """From the schema of a table of glue_download; raises KeyError for any other."""
        value = json.loads((schema.metadata or {})[_METADATA])
        return cls(value["name"], tuple(value["texts"]), tuple(value["labels"]))

    def to_schema(self) -> dict[bytes, str]:
        """As Arrow schema metadata."""
        return {_METADATA: json.dumps({"name": self.name, "texts": self.texts, "labels": self.labels})}


_METADATA = b"millrace.task"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTask:
    """One task. Column names are squeezed (`#1 String` is `1string`)."""

    name: str
    folders: tuple[str, ...]
    """Names its folder has in the distributions in use."""
    texts: Mapping[str, tuple[str, ...]]
    """Text column of ours -> its names in a header."""
    label_columns: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ()
    """Names of the classes, by id; none: the label is a score."""
    scores: tuple[float, float] = (-3e38, 3e38)
    """The lowest and the highest score; without limits of a task's own, those of a float32."""
    published: Mapping[str, int | None]
    """Split -> rows that GLUE publishes; None for a task of the user's own."""
    labelled: tuple[str, ...] = ()
    """Columns of a file with labels and no header, in order, separated by spaces: one entry per layout."""
    unlabelled: tuple[str, ...] = ()
    """The same for a file without labels."""
    trained_as: str = ""
    """The task whose train split its model is trained on, where it has none of its own."""
    pieces: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Split -> squeezed names of the files that make it up in the corpus that GLUE took it from."""

    @property
    def meta(self) -> TaskMeta:
        """What its tables say of it."""
        return TaskMeta(self.name, tuple(self.texts), self.labels)

    @property
    def schema(self) -> pa.Schema:
        """Columns of a published split: the texts, `label` (scores have the Hub's float32), `index`."""
        texts = [pa.field(name, pa.string()) for name in self.texts]
        label = pa.int64() if self.labels else pa.float32()
        fields = [*texts, pa.field("label", label), pa.field("index", pa.int64())]
        return pa.schema(fields, metadata=self.meta.to_schema())

    @property
    def required(self) -> list[str]:
        """Splits without which there is nothing to train or score: all but the tests (ax has only one)."""
        return [split for split in self.published if not split.startswith("test")] or list(self.published)

    def files_of(self, split: str) -> tuple[str, ...]:
        """Squeezed names, without suffix, that the file of `split` may have; the first is preferred."""
        return ("diagnostic", "ax", "test", "diagnosticfull") if self.name == "ax" else _SPLIT_FILES[split]

    def header(self, cells: Sequence[str]) -> dict[str, int] | None:
        """Where each column of ours is, if `cells` is a header; else None."""
        names = [squeeze(cell) for cell in cells]
        wanted = {**self.texts, "label": self.label_columns}
        found = {
            column: names.index(alias)
            for column, aliases in wanted.items()
            if (alias := next((alias for alias in aliases if alias in names), None)) is not None
        }
        return found if set(self.texts) <= set(found) else None

    def positional(self, num_columns: int, split: str) -> dict[str, int] | None:
        """Where each column is in a file of `num_columns` columns without header; None: no known layout."""
        layouts = (*self.unlabelled, *self.labelled) if split.startswith("test") else self.labelled
        for layout in layouts:
            if len(layout.split()) == num_columns:
                return self.header(layout.split())
        return None

    def example(self, cells: Sequence[str], columns: Mapping[str, int], split: str) -> dict[str, Any]:
        """Texts and label of one row, `index` left to the caller; raises RowError.

        One empty text of a pair stays (qqp has such rows); a row without any text goes.
        """
        texts = {name: cells[columns[name]] for name in self.texts}
        if not any(text.strip() for text in texts.values()):
            raise RowError("empty_text", "its texts are empty")
        if "label" not in columns:
            if not split.startswith("test"):
                raise RowError("no_label", "has no label")
            return {**texts, "label": HIDDEN_LABEL}
        return {**texts, "label": self.label(cells[columns["label"]], split)}

    def label(self, cell: str, split: str) -> int | float:
        """The label that a cell names, as class id or score; raises RowError."""
        text = cell.strip()
        if split.startswith("test") and text == str(HIDDEN_LABEL) and text not in self.labels:
            return HIDDEN_LABEL
        return self._class(text) if self.labels else self._score(text)

    def _class(self, text: str) -> int:
        ids = {name: i for i, name in enumerate(self.labels)}
        if not any(re.fullmatch(r"-?\d+", name) for name in self.labels):
            ids |= {str(i): i for i in range(len(self.labels))}
        if text not in ids:
            raise RowError("unknown_label", f"{text!r}, expected one of {', '.join(ids)}")
        return ids[text]

    def _score(self, text: str) -> float:
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        low, high = self.scores
        if not low <= score <= high:
            raise RowError("unknown_label", f"{text!r}, expected a score from {low:g} to {high:g}")
        return score
