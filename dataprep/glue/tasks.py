"""The ten GLUE tasks: text columns, labels, published counts, and the layouts of their TSV files.

Names of columns, splits and labels are those of the Hub's `nyu-mll/glue`, whose counts are the published
ones (MRPC: 3,668 / 408 / 1,725).
"""

from dataprep.glue.task import GlueTask
from pipelines.errors import UserError, did_you_mean

CUSTOM = "custom"
"""The name of a task of the user's own."""

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
        pieces={"train": ("indomaintrain",), "validation": ("indomaindev", "outofdomaindev")},
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
    """The task called `name`; UserError with the nearest name when there is none."""
    if name not in TASKS:
        raise UserError(f"{name}: not a GLUE task.{did_you_mean(name, [*TASKS, CUSTOM])}")
    return TASKS[name]
