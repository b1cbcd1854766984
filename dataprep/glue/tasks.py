"""The GLUE tasks: text columns, labels, published counts, and how a row of their TSV files reads.

Nothing here opens a file. Names of columns, splits and labels are those of the Hub's `nyu-mll/glue`,
whose counts are the published ones (MRPC: 3,668 / 408 / 1,725). A quote in a GLUE file is text.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipelines.errors import UserError, did_you_mean

HIDDEN_LABEL = -1
"""The label of a row whose answer only the benchmark's server knows, as on the Hub."""
MAX_SCORE = 5.0
"""stsb rates similarity from 0 to 5."""

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


def squeeze(name: str) -> str:
    """`STS-B` -> `stsb`: how names of folders, files and columns are compared."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueTask:
    """One task. Column names are squeezed (`#1 String` is `1string`)."""

    name: str
    folders: tuple[str, ...]
    """Names its folder has in the distributions in use."""
    texts: Mapping[str, tuple[str, ...]]
    """Text column on the Hub -> its names in a TSV header."""
    label_columns: tuple[str, ...] = ("label",)
    labels: tuple[str, ...] = ()
    """Names of the classes, by id; none: the label is a score from 0 to 5."""
    published: Mapping[str, int]
    """Split -> rows that GLUE publishes."""
    labelled: tuple[str, ...] = ()
    """Columns of a file with labels and no header, in order, separated by spaces: one entry per layout."""
    unlabelled: tuple[str, ...] = ()
    """The same for a file without labels."""

    @property
    def num_labels(self) -> int:
        """Outputs of a classifier: the classes, or 1 for a score."""
        return len(self.labels) or 1

    @property
    def schema(self) -> pa.Schema:
        """Columns of a published split: the texts, `label` (scores have the Hub's float32), `index`."""
        texts = [pa.field(name, pa.string()) for name in self.texts]
        label = pa.int64() if self.labels else pa.float32()
        return pa.schema([*texts, pa.field("label", label), pa.field("index", pa.int64())])

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
        if text == str(HIDDEN_LABEL) and split.startswith("test"):
            return HIDDEN_LABEL
        if self.labels:
            ids = {name: i for i, name in enumerate(self.labels)} | {str(i): i for i in range(len(self.labels))}
            if text in ids:
                return ids[text]
            raise RowError("unknown_label", f"{text!r}, expected one of {', '.join(ids)}")
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not 0 <= score <= MAX_SCORE:
            raise RowError("unknown_label", f"{text!r}, expected a score from 0 to {MAX_SCORE:g}")
        return score


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
        unlabelled=("index sentence1 sentence2",),
    ),
)
TASKS = {task.name: task for task in _ALL}
"""Every task by name, in GLUE's order."""


def find_task(name: str) -> GlueTask:
    """The task called `name`; UserError with the nearest name when there is none."""
    if name not in TASKS:
        raise UserError(f"{name}: not a GLUE task.{did_you_mean(name, TASKS)}")
    return TASKS[name]
