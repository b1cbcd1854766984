"""GLUE from the Hugging Face Hub: the data set `nyu-mll/glue` at a commit, whose names are ours."""

from collections.abc import Iterator
from typing import Any

from dataprep.glue.task import HIDDEN_LABEL, GlueTask, RowError, Rows
from pipelines.errors import UserError

HUB_DATASET = "nyu-mll/glue"


def read_hub(task: GlueTask, revision: str) -> Iterator[tuple[str, str, Rows]]:
    """(split, where it is from, rows) for each split of `task`; UserError for anything but the data set we know."""
    import datasets
    from datasets.exceptions import DatasetsError

    origin = f"{HUB_DATASET} at {revision}"
    try:
        splits: Any = datasets.load_dataset(HUB_DATASET, task.name, revision=revision)
    except (OSError, ValueError, DatasetsError) as error:
        raise UserError(
            f"{origin}: cannot load {task.name} ({' '.join(str(error).split())}); "
            "check the network, or give a folder of TSV files with --source"
        ) from None
    for split in task.published:
        if split not in splits:
            raise UserError(f"{origin}: {task.name} has no {split} split; check the revision")
        names = tuple(getattr(splits[split].features["label"], "names", task.labels))
        if names != task.labels:
            raise UserError(
                f"{origin}: the labels of {task.name} are {', '.join(names)}, expected {', '.join(task.labels)}; "
                "check the revision"
            )
        yield split, origin, _rows(splits[split], task, split)


def _rows(rows: Any, task: GlueTask, split: str) -> Rows:
    """The Hub's rows with our columns; what is broken in a file is broken here too."""
    for number, row in enumerate(rows):
        texts = {name: row[name] or "" for name in task.texts}
        hidden = row["label"] == HIDDEN_LABEL and split.startswith("test")
        try:
            if not any(text.strip() for text in texts.values()):
                raise RowError("empty_text", "its texts are empty")
            label = HIDDEN_LABEL if hidden else task.label(str(row["label"]), split)
            yield {**texts, "label": label, "index": row["idx"]}
        except RowError as problem:
            yield RowError(problem.rule, f"{task.name}/{split}:{number}: {problem}")
