"""Stage `glue_score`: score a fine-tuned model on a tokenized GLUE task that it was not trained on.

finetune's output (or any folder with such a model) + tokenized task -> the files that finetune writes: scores.json,
predictions.jsonl, worst.jsonl, confusion.svg, submission/

    python -m trainer.glue_score ax finetune/mnli glue_tokenize/ax glue_score/ax

This is for ax, which has no training rows and is scored with MNLI's model. The task must have classes of the same names
as the model; if their order differs, the model's outputs are reordered. Runs in one process, on `parallel.device`.
"""

import dataclasses
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.command import Limit, Output, Source, StageSpec
from pipelines.config import Count
from pipelines.errors import ConfigError, UserError, did_you_mean
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from pipelines.unchanged import require_unchanged
from trainer.checks import check_portable
from trainer.config import ParallelConfig
from trainer.glue.results import metrics_of, score_splits, submit
from trainer.glue.table import GlueTable, named_classes, require_task
from trainer.processes import portable
from trainer.weights.exported import CONFIG, read_config

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.data.batch import Batch
    from trainer.model import Classifier

VERSION = 1
SHAPED_BY = ("torch", "numpy", "matplotlib")


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueScoreConfig:
    """Scoring a fine-tuned model on another task with the same classes."""

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
    """Predict every split but train in this process, and score those with labels."""
    check_portable(parallel)
    portable.require(parallel)
    for source, suffix in ((glue, ".arrow"), (model, ".safetensors")):
        if source.manifest:
            require_unchanged(source.path, suffix)
    splits = [path for path in sorted(glue.path.glob("*.arrow")) if path.stem != "train"]
    if not splits:
        raise UserError(f"{glue.path}: has no validation*.arrow or test*.arrow to predict; run glue_tokenize")
    folder = model.path / "model" if (model.path / "model").is_dir() else model.path
    tables = [GlueTable(path) for path in splits]
    require_task(tables, task)
    order = [class_order(folder, table) for table in tables]
    classifier, pad = open_classifier(folder, parallel.device)
    predictions = {
        path.stem: predict_split(classifier, pad, path, indices, config.batch_size)
        for path, indices in zip(splits, order, strict=True)
    }
    scores = score_splits(task, predictions, contamination, output.folder, glue.path)
    submission = submit(task, predictions, output.folder, glue.path)
    rows = sum(len(rows["index"]) for rows in predictions.values())
    run.register_outputs(output, Counts(rows, rows))
    return {**metrics_of(scores), **submission}


def class_order(folder: Path, table: GlueTable) -> list[int]:
    """Return, for each class of the table, its index in the model's outputs.

    Raises UserError if the model has other classes or another tokenizer.
    """
    from trainer.weights.huggingface import require_same_tokenizer

    require_same_tokenizer(folder, table.meta, table.path)
    model_classes = read_classes(folder)
    if table.num_labels == 1:
        if len(model_classes) != 1:
            raise UserError(
                f"{folder}: distinguishes {len(model_classes)} classes, but the labels of {table.path} are scores; "
                "name another task"
            )
        return [0]
    classes = named_classes(table.label_names, table.num_labels)
    if sorted(model_classes) != sorted(classes):
        raise UserError(
            f"{folder}: its classes are {', '.join(model_classes)}, those of {table.path} are "
            f"{', '.join(classes)}; score a task with the classes that the model was fine-tuned on"
        )
    return [model_classes.index(name) for name in classes]


def read_classes(folder: Path) -> list[str]:
    """Return the names of a model's classes, in the order of its outputs. Raises UserError if config.json has none."""
    names = read_config(folder).get("id2label")
    if not isinstance(names, dict) or not names or names.keys() != {str(i) for i in range(len(names))}:
        raise UserError(
            f"{folder / CONFIG}: id2label is {reprlib.repr(names)}, expected the name of each class by its number; "
            "name a model that finetune published"
        )
    return [str(names[str(i)]) for i in range(len(names))]


def open_classifier(folder: Path, device: str) -> "tuple[Classifier, int]":
    """Return the model in a Hugging Face folder of finetune, and its padding token."""
    import torch

    from trainer.model import Classifier
    from trainer.processes.process import set_arithmetic
    from trainer.weights import huggingface

    set_arithmetic(exact=True, threads=1)
    shape = dataclasses.replace(huggingface.read_architecture(folder), num_labels=len(read_classes(folder)))
    model = Classifier(shape)
    huggingface.fill(dict(model.named_parameters()), huggingface.read_weights(folder), folder)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    # Any token will do: what follows a row is never read.
    given = read_config(folder).get("pad_token_id") is not None
    pad = huggingface.token_id(folder, "pad_token_id", shape.vocab_size) if given else shape.vocab_size - 1
    return model.eval().to(device), pad


def predict_split(model: "Classifier", pad: int, path: Path, order: Sequence[int], batch_size: int) -> dict[str, Any]:
    """Return index, label and outputs of each row of a split, in order; outputs in the order of the task's classes."""
    from trainer.data.glue import GlueRows
    from trainer.loop.validation import classify

    rows = GlueRows(path)
    rows.check(model.shape.n_positions, labelled=not path.stem.startswith("test"))

    def forward(batch: "Batch") -> "Tensor":
        assert batch.last is not None
        return model(batch.ids, batch.last)

    device = next(model.parameters()).device
    logits = classify(forward, rows.num_labels, device, rows, pad, batch_size)
    outputs = [[row[index] for index in order] for row in logits]
    return {"index": rows.indexes.tolist(), "label": rows.labels.tolist(), "logits": outputs}


def check_parameters(params: Mapping[str, Any]) -> None:
    """Refuse tasks to fine-tune on or to score that no stage downloads or trains a model for."""
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


STAGE = StageSpec.of(
    glue_score,
    VERSION,
    SHAPED_BY,
    sources={
        "task": "its name, such as mrpc",
        "model": "the output of finetune, or a Hugging Face folder of such a model",
        "glue": "the task, as glue_tokenize wrote it",
        "contamination": "the folder CONTAMINATION of decontaminate: scores the rows that it did not find apart, too",
    },
    limit=Limit("rows of each split", "glue"),
    check_parameters=check_parameters,
    environment=portable.environment,
)

if __name__ == "__main__":
    stage_main("trainer.glue_score")
