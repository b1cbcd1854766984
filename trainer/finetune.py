"""Stage `finetune`: the exported model as a classifier, fine-tuned on one GLUE task.

Hugging Face folder + tokenized task -> model/ (a Hugging Face folder), scores.json, predictions.jsonl, curve.csv

    python -m trainer.finetune mrpc export/ glue_tokenize/mrpc finetune/mrpc --contamination contamination/

A padding token is added (id = old vocabulary size), the last real token of a row is classified, and the validation
rows are scored, each once; with a contamination folder, also those of them that the training corpus does not hold.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import store
from pipelines.command import Output, Source
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from trainer import launch
from trainer.config import FinetuneConfig, ParallelConfig, check_finetune, layout
from trainer.glue_scores import predict, score
from trainer.process import Process
from trainer.records import summary

if TYPE_CHECKING:
    from trainer.batches import GlueRows
    from trainer.loop import Training

VERSION = 2
SHAPED_BY = ("torch", "numpy", "safetensors", "tokenizers", "scikit-learn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What each training process has to know."""

    config: FinetuneConfig
    parallel: ParallelConfig
    task: str
    export: Path
    glue: Path
    scratch: Path
    output: Path

    @property
    def splits(self) -> list[Path]:
        """The validation splits: one, or mnli's matched and mismatched."""
        return sorted(self.glue.glob("validation*.arrow"))


def finetune(
    config: FinetuneConfig,
    parallel: ParallelConfig,
    run: StageRun,
    task: str,
    export: Source,
    glue: Source,
    contamination: Source | None,
    output: Output,
) -> dict[str, Any]:
    """Train in processes, then score what they predicted."""
    check_finetune(config, parallel)
    job = Job(
        config=config,
        parallel=parallel,
        task=task,
        export=export.path,
        glue=glue.path,
        scratch=run.scratch,
        output=output.folder,
    )
    if not job.splits:
        raise UserError(f"{glue.path}: has no validation*.arrow to score on; run glue_tokenize on the task")
    store.remove(output.folder)
    trained = launch.launch(train_in_process, parallel, job)
    run.provenance["segments"] = store.read_json(run.scratch / "segments.json")
    scores = score_splits(task, trained.pop("predictions"), contamination, output.folder)
    store.link_or_copy(run.scratch / "curve.csv", output.folder / "curve.csv")
    run.adopt(output, Counts(trained["rows"], trained["rows"], totals={"tokens": trained["tokens"]}))
    return {**trained, **scores, **summary(run.scratch / "curve.csv")}


def train_in_process(process: Process, job: Job) -> dict[str, Any]:
    """One process's part: train, predict the validation rows, and save the model once."""
    from trainer import hooks
    from trainer.batches import GlueRows
    from trainer.loop import train

    config = job.config
    rows = GlueRows(job.glue / "train.arrow")
    training = prepare(process, job, rows)
    around = [
        hooks.Curve(job.scratch / "curve.csv"),
        hooks.Progress(f"finetune {job.task}", config.log_every),
        hooks.Speeds(job.scratch / "segments.json", layout(job.parallel, process.place.size)),
        hooks.Checkpoints(job.scratch / "checkpoints", keep=1),
    ]
    train(training, around)
    predictions = {path.stem: predict_split(training, path, rows) for path in job.splits}
    if training.mesh.is_first:
        save_model(training, job, rows)
    return {
        "rows": len(rows),
        "steps": training.step,
        "tokens": training.tokens,
        "num_labels": rows.num_labels,
        "predictions": predictions,
    }


def prepare(process: Process, job: Job, rows: "GlueRows") -> "Training":
    """The classifier as it stands: the run's own newest checkpoint, else the exported weights and a new head."""
    from trainer import huggingface
    from trainer.batches import GlueBatches
    from trainer.loop import assemble
    from trainer.loss import class_loss
    from trainer.model import Classifier
    from trainer.optimizer import Recipe

    config = job.config
    shape = huggingface.read_architecture(job.export)
    huggingface.require_same_tokenizer(job.export, rows.meta.tokenizer_sha256, job.glue)
    rows.check(shape.n_positions)
    pad = shape.vocab_size
    classifier = dataclasses.replace(
        shape,
        vocab_size=pad + 1,
        num_labels=rows.num_labels,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )
    batches = GlueBatches(rows, config.global_batch_size, pad, config.seed)
    steps = config.epochs * batches.steps_per_epoch
    training = assemble(
        process,
        lambda: Classifier(classifier),
        Recipe.of(config, steps, int(config.warmup_share * steps)),
        batches,
        lambda model, batch: class_loss(model(batch.ids, batch.last, batch.rows), batch.targets),
        {"finetune": config.identity(), "task": job.task, "tokenizer": dataclasses.asdict(rows.meta)},
        config=config,
        parallel=job.parallel,
    )
    if not training.resume(job.scratch / "checkpoints"):
        fill_body(training.model, huggingface.read_weights(job.export), job.export)
    return training


def fill_body(model: Any, weights: dict[str, Any], source: Path) -> None:
    """All exported weights; the head stays as it was initialised, the padding token's row becomes 0."""
    import torch

    from trainer import huggingface

    with torch.no_grad():
        model.transformer.wte.weight.zero_()
    huggingface.fill(model, {**weights, "score.weight": model.score.weight.detach()}, source)


def predict_split(training: "Training", path: Path, train_rows: "GlueRows") -> dict[str, Any]:
    """Index, label and outputs of each row of a validation split, in order."""
    from trainer.batches import GlueRows
    from trainer.validation import classify

    rows = GlueRows(path)
    if rows.meta != train_rows.meta:
        raise UserError(f"{path}: made by another tokenizer than {train_rows.path}; run glue_tokenize again")
    rows.check(training.model.shape.n_positions)
    model: Any = training.model
    pad = model.shape.vocab_size - 1
    logits = classify(model, rows, pad, training.micro_batch_size or 32, training.mesh)
    return {"index": rows.indexes.tolist(), "label": rows.labels.tolist(), "logits": logits}


def save_model(training: "Training", job: Job, rows: "GlueRows") -> None:
    """The fine-tuned model and its tokenizer as a Hugging Face folder."""
    from trainer import huggingface

    shape = training.model.shape
    weights = {name: weight.detach().cpu() for name, weight in training.model.named_parameters()}
    end = rows.meta.end_of_text
    labels = {str(i): f"LABEL_{i}" for i in range(shape.num_labels)}
    settings = {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": shape.vocab_size - 1,
        "id2label": labels,
        "label2id": {label: int(i) for i, label in labels.items()},
        "problem_type": "regression" if shape.num_labels == 1 else "single_label_classification",
    }
    folder = job.output / "model"
    huggingface.save_folder(folder, shape, weights, settings)
    huggingface.save_tokenizer(job.export, folder, shape.n_positions, pad=True)


def score_splits(
    task: str, predictions: dict[str, Any], contamination: Source | None, folder: Path
) -> dict[str, dict[str, float]]:
    """Scores per split, and per split without contaminated rows; written beside the predictions."""
    scores: dict[str, dict[str, float]] = {}
    lines: list[str] = []
    for split, rows in predictions.items():
        num_labels = len(rows["logits"][0])
        answers = predict(rows["logits"], num_labels)
        scores[split] = score(task, rows["label"], answers, num_labels)
        clean = clean_rows(task, split, contamination)
        if clean is not None:
            kept = [i for i, index in enumerate(rows["index"]) if index in clean]
            labels = [rows["label"][i] for i in kept]
            found: dict[str, float] = (
                score(task, labels, [answers[i] for i in kept], num_labels) if kept else {"rows": 0}
            )
            scores[f"{split}_clean"] = found
        lines += [
            json.dumps({"split": split, "index": index, "label": label, "prediction": answer, "logits": logits})
            for index, label, answer, logits in zip(rows["index"], rows["label"], answers, rows["logits"], strict=True)
        ]
    store.write_json(folder / "scores.json", scores)
    with store.create(folder / "predictions.jsonl") as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return scores


def clean_rows(task: str, split: str, contamination: Source | None) -> set[int] | None:
    """Indexes of the split's rows that the training corpus does not hold; None where that is not known."""
    file = contamination.path / "clean" / f"{task}.json" if contamination else None
    if file is None or not file.exists():
        return None
    rows = store.read_json(file)
    return set(rows[split]) if split in rows else None


if __name__ == "__main__":
    # Under torchrun or Slurm only the first process is the stage.
    if not launch.served():
        stage_main("trainer.finetune")
