"""Stage `glue_score`: a fine-tuned model on a tokenized GLUE task that it was not trained on.

finetune's folder (or any folder with such a model) + tokenized task -> the files of finetune's scoring: scores.json,
predictions.jsonl, worst.jsonl, confusion.svg, submission/

    python -m trainer.glue_score ax finetune/mnli glue_tokenize/ax glue_score/ax

For ax, which has no rows to train on, with MNLI's model. The task must have the model's classes by name; where their
order differs, the model's outputs are put into the task's. One process, on `parallel.device`.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import store
from pipelines.command import Output, Source
from pipelines.config import Count
from pipelines.errors import ConfigError, UserError, did_you_mean
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from trainer.config import ParallelConfig
from trainer.glue_results import metrics_of, score_splits, submit
from trainer.glue_table import GlueTable, named_classes, require_task

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.loader.batch import Batch
    from trainer.model import Classifier

VERSION = 1
SHAPED_BY = ("torch", "numpy", "matplotlib")


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueScoreConfig:
    """A fine-tuned model on another task of its kind."""

    batch_size: Count = 32
    """Rows per forward pass."""


def glue_score(
    config: GlueScoreConfig,
    parallel: ParallelConfig,
    run: StageRun,
    task: str,
    model: Source,
    glue: Source,
    contamination: Source | None,
    output: Output,
) -> dict[str, Any]:
    """Predict every split but train, in this process; score what has labels."""
    splits = [path for path in sorted(glue.path.glob("*.arrow")) if path.stem != "train"]
    if not splits:
        raise UserError(f"{glue.path}: has no validation*.arrow or test*.arrow to predict; run glue_tokenize")
    folder = model.path / "model" if (model.path / "model").is_dir() else model.path
    tables = [GlueTable(path) for path in splits]
    require_task(tables, task)
    order = [class_order(folder, table) for table in tables]
    classifier, pad = open_classifier(folder, parallel.device)
    predictions = {
        path.stem: predict_split(classifier, pad, path, places, config.batch_size)
        for path, places in zip(splits, order, strict=True)
    }
    scores = score_splits(task, predictions, contamination, output.folder, glue.path)
    submission = submit(task, predictions, output.folder, glue.path)
    rows = sum(len(rows["index"]) for rows in predictions.values())
    run.adopt(output, Counts(rows, rows))
    return {**metrics_of(scores), **submission}


def class_order(folder: Path, table: GlueTable) -> list[int]:
    """For each class of the table, its place in the model's outputs.

    Raises UserError where the model has other classes, or was made with another tokenizer.
    """
    from trainer.huggingface import require_same_tokenizer

    config = store.read_json(folder / "config.json")
    require_same_tokenizer(folder, table.meta, table.path)
    names = config.get("id2label") or {}
    theirs = [str(names.get(str(i))) for i in range(len(names))]
    if table.num_labels == 1:
        if len(theirs) != 1:
            raise UserError(f"{folder}: tells {len(theirs)} classes apart, but {table.path} has scores; another task")
        return [0]
    ours = named_classes(table.label_names, table.num_labels)
    if sorted(theirs) != sorted(ours):
        raise UserError(
            f"{folder}: its classes are {', '.join(theirs) or 'not named'}, those of {table.path} are "
            f"{', '.join(ours)}; score a task with the classes that the model was fine-tuned on"
        )
    return [theirs.index(name) for name in ours]


def open_classifier(folder: Path, device: str) -> "tuple[Classifier, int]":
    """The model in a folder of finetune, and its padding token."""
    import torch

    from trainer import huggingface
    from trainer.model import Classifier
    from trainer.process import set_arithmetic

    set_arithmetic(exact=True, threads=1)
    config = store.read_json(folder / "config.json")
    shape = dataclasses.replace(huggingface.read_architecture(folder), num_labels=len(config["id2label"]))
    model = Classifier(shape)
    huggingface.fill(dict(model.named_parameters()), huggingface.read_weights(folder), folder)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    pad = config.get("pad_token_id")
    # Any token pads: nothing looks at what stands right of a row.
    return model.eval().to(device), shape.vocab_size - 1 if pad is None else pad


def predict_split(model: "Classifier", pad: int, path: Path, order: Sequence[int], batch_size: int) -> dict[str, Any]:
    """Index, label and outputs of each row of a split, in order; the outputs in the order of the task's classes."""
    from trainer.loader.glue import GlueRows
    from trainer.validation import classify

    rows = GlueRows(path)
    rows.check(model.shape.n_positions, labelled=not path.stem.startswith("test"))

    def forward(batch: "Batch") -> "Tensor":
        assert batch.last is not None
        return model(batch.ids, batch.last)

    device = next(model.parameters()).device
    logits = classify(forward, rows.num_labels, device, rows, pad, batch_size)
    outputs = [[row[place] for place in order] for row in logits]
    return {"index": rows.indexes.tolist(), "label": rows.labels.tolist(), "logits": outputs}


def check_parameters(params: dict[str, Any]) -> None:
    """Refuse tasks to score, or to fine-tune on, that nothing makes."""
    tasks, scored, downloaded = params["glue"]["tasks"], params["glue"]["scored"], params["glue_download"]["tasks"]
    for task in (*tasks, *scored):
        if task not in downloaded:
            raise ConfigError(
                f"glue: {task} is not in glue_download.tasks; add it there.{did_you_mean(task, downloaded)}"
            )
    for task, trained in scored.items():
        if trained not in tasks or task in tasks:
            raise ConfigError(
                f"glue.scored: {task}: {trained}: expected a task that is not in glue.tasks, and the one of them whose "
                f"model scores it: {', '.join(tasks) or 'there are none'}; with glue=hub nothing is scored besides them"
            )


if __name__ == "__main__":
    stage_main("trainer.glue_score")
