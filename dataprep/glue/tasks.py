"""GLUE tasks: what a task is (text columns, labels, splits, how a row becomes an example), and GLUE's ten.

Names of columns, splits and labels are those of the Hub's `nyu-mll/glue`, whose row counts are the published ones
(MRPC: 3,668 / 408 / 1,725). Nothing here opens a file. A user's own task is made by `dataprep.glue_download.custom`.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pipelines.errors import RejectedRowError, UserError, did_you_mean

HIDDEN_LABEL = -1
"""The label of a row whose answer only the benchmark's server knows; the Hub uses the same."""

_SPLIT_FILES = {
    "train": ("train",),
    "validation": ("dev", "validation", "valid", "val"),
    "test": ("test",),
    "validation_matched": ("devmatched", "validationmatched"),
    "validation_mismatched": ("devmismatched", "validationmismatched"),
    "test_matched": ("testmatched",),
    "test_mismatched": ("testmismatched",),
}


class RowError(RejectedRowError):
    """A row that is not a valid example."""


Rows = Iterator[dict[str, Any] | RowError]
"""Each row as an example, or as an error that names FILE:LINE and the reason."""


def squeeze(name: str) -> str:
    """Return a name in the form in which folders, files and columns are compared: `STS-B` -> `stsb`."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True, slots=True)
class TaskMeta:
    """A task as its published tables describe it: name, text columns, names of the classes (none: a score)."""

    name: str
    texts: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def num_labels(self) -> int:
        """Return the number of a classifier's outputs: the classes, or 1 for a score."""
        return len(self.labels) or 1

    @classmethod
    def of_schema(cls, schema: pa.Schema) -> "TaskMeta":
        """Read the schema of a table from glue_download; raise KeyError for any other table."""
        value = json.loads((schema.metadata or {})[_METADATA])
        return cls(value["name"], tuple(value["texts"]), tuple(value["labels"]))

    def to_schema(self) -> dict[bytes, str]:
        """Return the task as Arrow schema metadata."""
        return {_METADATA: json.dumps({"name": self.name, "texts": self.texts, "labels": self.labels})}


_METADATA = b"millrace.task"


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTask:
    """One task. Column names are squeezed (`#1 String` is `1string`)."""

    name: str
    folders: tuple[str, ...]
    """Names of its folder in the common distributions."""
    texts: Mapping[str, tuple[str, ...]]
    """Our text column -> its possible names in a header."""
    label_columns: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ()
    """Names of the classes, by id; none: the label is a score."""
    scores: tuple[float, float] = (-3e38, 3e38)
    """The lowest and the highest score; by default, those of a float32."""
    published: Mapping[str, int | None]
    """Split -> rows that GLUE publishes; None for a user's own task."""
    labelled: tuple[str, ...] = ()
    """Columns, in order and separated by spaces, of files with labels but no header: one entry per layout."""
    unlabelled: tuple[str, ...] = ()
    """The same for files without labels."""
    trained_as: str = ""
    """For a task without a train split: the task whose train split its model is trained on."""
    original_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Split -> squeezed names of the files that make it up in the corpus from which GLUE took it."""

    @property
    def meta(self) -> TaskMeta:
        """Return the description in its tables."""
        return TaskMeta(self.name, tuple(self.texts), self.labels)

    @property
    def schema(self) -> pa.Schema:
        """Return the columns of a published split: the texts, `label` (float32 for scores, as on the Hub), `index`."""
        texts = [pa.field(name, pa.string()) for name in self.texts]
        label = pa.int64() if self.labels else pa.float32()
        fields = [*texts, pa.field("label", label), pa.field("index", pa.int64())]
        return pa.schema(fields, metadata=self.meta.to_schema())

    @property
    def required(self) -> list[str]:
        """Return the splits that must be there for training and scoring: all but the tests (ax has only a test)."""
        return [split for split in self.published if not split.startswith("test")] or list(self.published)

    def files_of(self, split: str) -> tuple[str, ...]:
        """Return the possible names of the file of `split`, squeezed and without suffix; the first is preferred."""
        return ("diagnostic", "ax", "test", "diagnosticfull") if self.name == "ax" else _SPLIT_FILES[split]

    def header(self, cells: Sequence[str]) -> dict[str, int] | None:
        """Return the position of each of our columns if `cells` is a header, else None."""
        names = [squeeze(cell) for cell in cells]
        wanted = {**self.texts, "label": self.label_columns}
        columns = {
            column: names.index(alias)
            for column, aliases in wanted.items()
            if (alias := next((alias for alias in aliases if alias in names), None)) is not None
        }
        return columns if set(self.texts) <= set(columns) else None

    def positional(self, num_columns: int, split: str) -> dict[str, int] | None:
        """Return the position of each column in a file without header; None for an unknown layout."""
        layouts = (*self.unlabelled, *self.labelled) if split.startswith("test") else self.labelled
        for layout in layouts:
            if len(layout.split()) == num_columns:
                return self.header(layout.split())
        return None

    def example(self, cells: Sequence[str], columns: Mapping[str, int], split: str) -> dict[str, Any]:
        """Return the texts and the label of one row, without `index`; raise RowError for a broken row.

        A pair with one empty text is kept (qqp has such rows); a row without any text is not.
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
        """Return the label in a cell as class id or score; raise RowError if it is neither."""
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


CUSTOM = "custom"
"""The name of a user's own task."""

_PAIR = {"sentence1": ("sentence1",), "sentence2": ("sentence2",)}
_NLI = {"premise": ("sentence1", "premise"), "hypothesis": ("sentence2", "hypothesis")}
_NLI_LABELS = ("entailment", "neutral", "contradiction")
_MNLI_COLUMNS = (
    "index promptid pairid genre sentence1binaryparse sentence2binaryparse sentence1parse sentence2parse "
    "sentence1 sentence2"
)
_STSB_COLUMNS = "index genre filename year oldindex source1 source2 sentence1 sentence2"


def _splits(train: int, validation: int, test: int) -> dict[str, int]:
    return {"train": train, "validation": validation, "test": test}


_ALL = (
    GlueTask(
        name="cola",
        folders=("cola",),
        texts={"sentence": ("sentence",)},
        labels=("unacceptable", "acceptable"),
        published=_splits(8551, 1043, 1063),
        labelled=("source label star sentence",),
        unlabelled=("index sentence",),
        original_files={"train": ("indomaintrain",), "validation": ("indomaindev", "outofdomaindev")},
    ),
    GlueTask(
        name="sst2",
        folders=("sst2", "sst"),
        texts={"sentence": ("sentence",)},
        labels=("negative", "positive"),
        published=_splits(67349, 872, 1821),
        labelled=("sentence label",),
        unlabelled=("index sentence",),
    ),
    GlueTask(
        name="mrpc",
        folders=("mrpc", "msrp"),
        texts={"sentence1": ("1string", "sentence1"), "sentence2": ("2string", "sentence2")},
        label_columns=("quality", "label"),
        labels=("not_equivalent", "equivalent"),
        published=_splits(3668, 408, 1725),
        labelled=("quality 1id 2id 1string 2string",),
        unlabelled=("index 1id 2id 1string 2string",),
    ),
    GlueTask(
        name="qqp",
        folders=("qqp", "qqpclean"),
        texts={"question1": ("question1",), "question2": ("question2",)},
        label_columns=("isduplicate", "label"),
        labels=("not_duplicate", "duplicate"),
        published=_splits(363846, 40430, 390965),
        labelled=("id qid1 qid2 question1 question2 isduplicate",),
        unlabelled=("id question1 question2",),
    ),
    GlueTask(
        name="stsb",
        folders=("stsb", "stsbenchmark"),
        texts=_PAIR,
        label_columns=("score", "label"),
        scores=(0.0, 5.0),
        published=_splits(5749, 1500, 1379),
        labelled=(f"{_STSB_COLUMNS} score",),
        unlabelled=(_STSB_COLUMNS,),
    ),
    GlueTask(
        name="mnli",
        folders=("mnli", "multinli"),
        texts=_NLI,
        label_columns=("goldlabel", "label"),
        labels=_NLI_LABELS,
        published={
            "train": 392702,
            "validation_matched": 9815,
            "validation_mismatched": 9832,
            "test_matched": 9796,
            "test_mismatched": 9847,
        },
        labelled=(
            f"{_MNLI_COLUMNS} label1 goldlabel",
            f"{_MNLI_COLUMNS} label1 label2 label3 label4 label5 goldlabel",
        ),
        unlabelled=(_MNLI_COLUMNS,),
    ),
    GlueTask(
        name="qnli",
        folders=("qnli", "qnliv2"),
        texts={"question": ("question",), "sentence": ("sentence",)},
        labels=("entailment", "not_entailment"),
        published=_splits(104743, 5463, 5463),
        labelled=("index question sentence label",),
        unlabelled=("index question sentence",),
    ),
    GlueTask(
        name="rte",
        folders=("rte",),
        texts=_PAIR,
        labels=("entailment", "not_entailment"),
        published=_splits(2490, 277, 3000),
        labelled=("index sentence1 sentence2 label",),
        unlabelled=("index sentence1 sentence2",),
    ),
    GlueTask(
        name="wnli",
        folders=("wnli",),
        texts=_PAIR,
        labels=("not_entailment", "entailment"),
        published=_splits(635, 71, 146),
        labelled=("index sentence1 sentence2 label",),
        unlabelled=("index sentence1 sentence2",),
    ),
    GlueTask(
        name="ax",
        folders=("ax", "diagnostic", "diagnostics"),
        texts=_NLI,
        labels=_NLI_LABELS,
        published={"test": 1104},
        trained_as="mnli",
        unlabelled=("index sentence1 sentence2",),
    ),
)
TASKS = {task.name: task for task in _ALL}
"""Every task by name, in GLUE's order."""


def find_task(name: str) -> GlueTask:
    """Return the task called `name`; raise UserError with the nearest name if there is none."""
    if name not in TASKS:
        raise UserError(f"{name}: not a GLUE task.{did_you_mean(name, [*TASKS, CUSTOM])}")
    return TASKS[name]
