"""Stage `finetune`: the exported model as a classifier, fine-tuned on one GLUE task.

Hugging Face folder + tokenized task -> model/ (a Hugging Face folder), scores.json, predictions.jsonl,
curve.csv, epochs.csv

    python -m trainer.finetune mrpc export/ glue_tokenize/mrpc finetune/mrpc --contamination contamination/

A padding token is added (id = old vocabulary size), unless glue_tokenize chose end-of-text for it; the last real token
of a row is classified, and the validation rows are scored, each once. With a contamination folder two subsets are
scored too: `validation_clean`, the rows that no document held before decontamination, and `validation_kept_clean`,
those that none of the documents holds that it kept, from which the training corpus is made.
"""

import dataclasses
import json
import logging
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
from trainer.config import (
    FinetuneConfig,
    ParallelConfig,
    check_finetune,
    check_warmup,
    check_watched_steps,
    data_ranks,
    layout,
    micro_batch,
)
from trainer.exported import check_weights, read_sizes
from trainer.glue_scores import predict, score
from trainer.process import Process
from trainer.records import newest_checkpoint, summary

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.loader.batch import Batch
    from trainer.loader.glue import GlueRows
    from trainer.loop import Training

logger = logging.getLogger(__name__)

VERSION = 4
SHAPED_BY = ("torch", "numpy", "safetensors", "tokenizers", "scikit-learn")

SUBSETS = ("clean", "kept_clean")
"""Folders of contamination/: rows that no document held before decontamination, and that none holds after it."""


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
    watch: Path | None = None
    """Folder for what is only looked at; None: nothing is."""

    @property
    def checkpoints(self) -> Path:
        """Where the run's own checkpoints lie."""
        return self.scratch / "checkpoints"

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
    check_layout(config, parallel, export.path)
    job = Job(
        config=config,
        parallel=parallel,
        task=task,
        export=export.path,
        glue=glue.path,
        scratch=run.scratch,
        output=output.folder,
        watch=output.final.with_name(f"{output.final.name}.watch"),
    )
    if not job.splits:
        raise UserError(f"{glue.path}: has no validation*.arrow to score on; run glue_tokenize on the task")
    check_rows(job)
    store.remove(output.folder)
    # With receipts scratch stays after an error too, as the checkpoints in it must.
    (run.scratch / "receipts").mkdir(exist_ok=True)
    trained = launch.launch(train_in_process, parallel, job, logs=run.scratch / "logs")
    run.provenance["segments"] = store.read_json(run.scratch / "segments.json")
    scores = score_splits(task, trained.pop("predictions"), contamination, output.folder)
    for name in ("curve.csv", "epochs.csv"):
        store.link_or_copy(run.scratch / name, output.folder / name)
    run.adopt(output, Counts(trained["rows"], trained["rows"], totals={"tokens": trained["tokens"]}))
    return {**trained, **scores, **summary(run.scratch / "curve.csv")}


def check_layout(config: FinetuneConfig, parallel: ParallelConfig, export: Path) -> None:
    """Refuse a layout that the exported model or the batch does not allow, before any process starts."""
    sizes = read_sizes(export)
    check_weights(export)
    check_finetune(config, parallel, sizes["n_layer"], sizes["n_head"], n_embd=sizes["n_embd"])
    rows_per_pass(config, parallel, launch.count_processes(parallel))


def check_rows(job: Job) -> None:
    """Refuse rows that the model cannot be tuned or scored on, and steps that they do not make, likewise."""
    from trainer.huggingface import require_same_tokenizer
    from trainer.loader.glue import GlueBatches, GlueRows

    config, n_positions = job.config, read_sizes(job.export)["n_positions"]
    rows = GlueRows(job.glue / "train.arrow")
    require_same_tokenizer(job.export, rows.meta.tokenizer_sha256, job.glue)
    rows.check(n_positions)
    for path in job.splits:
        GlueRows(path).check(n_positions)
    steps = config.in_steps(GlueBatches(rows, config.global_batch_size, rows.pad, config.seed).steps_per_epoch).steps
    check_warmup("finetune", config, steps)
    check_watched_steps("finetune", config, steps)


def rows_per_pass(config: FinetuneConfig, parallel: ParallelConfig, processes: int) -> int:
    """Rows per forward pass of a process: without a pipeline any number will do."""
    share = -(-config.global_batch_size // data_ranks(parallel, processes))
    if parallel.pp == 1:
        return config.micro_batch_size or share
    return micro_batch(parallel, "finetune", share, config.micro_batch_size)


def train_in_process(process: Process, job: Job) -> dict[str, Any]:
    """One process's part: train, predict the validation rows, and save the model once."""
    from trainer import hooks
    from trainer.loader.glue import GlueRows
    from trainer.loop import train
    from trainer.watch import watching

    config = job.config
    rows = GlueRows(job.glue / "train.arrow")
    training = prepare(process, job, rows)
    training.watch = job.watch
    around = [
        hooks.Curve(job.scratch / "curve.csv"),
        hooks.Epochs(job.scratch / "epochs.csv", job.scratch / "curve.csv", lambda _: validate(training, job, rows)),
        hooks.Progress(f"finetune {job.task}", config.log_every, phases=config.log_phases),
        hooks.Speeds(job.scratch / "segments.json", layout(job.parallel, process.place.size)),
        hooks.Checkpoints(job.checkpoints, keep=1, in_background=config.async_save),
        *watching("finetune", config, job.parallel, job.watch),
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
    from trainer.loader.glue import GlueBatches
    from trainer.loop import assemble
    from trainer.model import Classifier
    from trainer.optimizer import Recipe

    config = job.config
    shape = huggingface.read_architecture(job.export)
    classifier = dataclasses.replace(
        shape,
        vocab_size=max(shape.vocab_size, rows.pad + 1),
        num_labels=rows.num_labels,
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
    )
    batches = GlueBatches(rows, config.global_batch_size, rows.pad, config.seed)
    run = config.in_steps(batches.steps_per_epoch)
    training = assemble(
        process,
        lambda stage: Classifier(classifier, stage),
        classifier,
        Recipe.of(config, run.steps, run.warmup_steps),
        batches,
        {"finetune": config.identity(), "task": job.task, "tokenizer": dataclasses.asdict(rows.meta)},
        config=config,
        parallel=job.parallel,
        micro_batch_size=rows_per_pass(config, job.parallel, process.place.size),
    )
    if training.mesh.is_first:
        logger.info("finetune %s: %d steps, %d of them warm-up", job.task, run.steps, run.warmup_steps)
    if not training.resume(job.checkpoints):
        weights = huggingface.read_weights(job.export)
        body = {name: weight for name, weight in training.model.weights.items() if name != "score.weight"}
        huggingface.fill(body, weights, job.export)  # the padding token's row becomes 0, the head stays as it was made
    return training


def predict_split(training: "Training", path: Path, train_rows: "GlueRows") -> dict[str, Any]:
    """Index, label and outputs of each row of a validation split, in order."""
    from trainer.loader.glue import GlueRows
    from trainer.validation import classify

    rows = GlueRows(path)
    if rows.meta != train_rows.meta:
        raise UserError(f"{path}: made by another tokenizer than {train_rows.path}; run glue_tokenize again")
    rows.check(training.model.shape.n_positions)
    model, mesh = training.model, training.mesh
    model.train(mode=False)

    def forward(batch: "Batch") -> "Tensor | None":
        assert batch.last is not None
        return model.forward(batch, last_B=batch.last)

    logits = classify(
        forward,
        rows.num_labels,
        mesh.device,
        rows,
        rows.pad,
        training.micro_batch_size or 32,
        mesh,
    )
    return {"index": rows.indexes.tolist(), "label": rows.labels.tolist(), "logits": logits}


def validate(training: "Training", job: Job, train_rows: "GlueRows") -> dict[str, float]:
    """Loss and scores on the validation rows, by split and name of the score; in the first process."""
    import torch

    from trainer.loss import class_loss

    found: dict[str, float] = {}
    for path in job.splits:
        rows, task = predict_split(training, path, train_rows), job.task
        if training.mesh.is_first:
            num_labels = train_rows.num_labels
            loss = class_loss(torch.tensor(rows["logits"]), torch.tensor(rows["label"])) / len(rows["label"])
            found[f"{path.stem}_loss"] = float(loss)
            scores = score(task, rows["label"], predict(rows["logits"], num_labels), num_labels)
            found |= {
                f"{path.stem}_{name}": value for name, value in scores.items() if name not in ("rows", "majority")
            }
    return found


def save_model(training: "Training", job: Job, rows: "GlueRows") -> None:
    """The fine-tuned model, whole from its last checkpoint, and its tokenizer as a Hugging Face folder."""
    from trainer import huggingface
    from trainer.checkpoint import load, model_tensors
    from trainer.model import Classifier

    shape = training.model.shape
    weights = {name: weight.detach() for name, weight in Classifier(shape).named_parameters()}
    load(newest_checkpoint(job.checkpoints), model_tensors(weights, shape.vocab_size), alone=True)
    end = rows.meta.end_of_text
    labels = {str(i): f"LABEL_{i}" for i in range(shape.num_labels)}
    settings = {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": rows.pad,
        "id2label": labels,
        "label2id": {label: int(i) for i, label in labels.items()},
        "problem_type": "regression" if shape.num_labels == 1 else "single_label_classification",
    }
    folder = job.output / "model"
    huggingface.save_folder(folder, shape, weights, settings)
    padding = "added" if rows.pad >= rows.meta.vocab_size else "end_of_text"
    huggingface.save_tokenizer(job.export, folder, shape.n_positions, padding=padding)


def score_splits(
    task: str, predictions: dict[str, Any], contamination: Source | None, folder: Path
) -> dict[str, dict[str, float]]:
    """Scores per split, and on its rows that are clean before and after decontamination; written beside predictions."""
    scores: dict[str, dict[str, float]] = {}
    lines: list[str] = []
    for split, rows in predictions.items():
        num_labels = len(rows["logits"][0])
        answers = predict(rows["logits"], num_labels)
        scores[split] = score(task, rows["label"], answers, num_labels)
        for subset in SUBSETS:
            clean = clean_rows(task, split, subset, contamination)
            if clean is None:
                continue
            kept = [i for i, index in enumerate(rows["index"]) if index in clean]
            labels = [rows["label"][i] for i in kept]
            found: dict[str, float] = (
                score(task, labels, [answers[i] for i in kept], num_labels) if kept else {"rows": 0}
            )
            scores[f"{split}_{subset}"] = found
        lines += [
            json.dumps({"split": split, "index": index, "label": label, "prediction": answer, "logits": logits})
            for index, label, answer, logits in zip(rows["index"], rows["label"], answers, rows["logits"], strict=True)
        ]
    store.write_json(folder / "scores.json", scores)
    with store.create(folder / "predictions.jsonl") as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return scores


def clean_rows(task: str, split: str, subset: str, contamination: Source | None) -> set[int] | None:
    """Indexes of the split's rows in one of SUBSETS; None where they are not known."""
    file = contamination.path / subset / f"{task}.json" if contamination else None
    if file is None or not file.exists():
        return None
    rows = store.read_json(file)
    return set(rows[split]) if split in rows else None


if __name__ == "__main__":
    # Under torchrun or Slurm only the first process is the stage.
    if not launch.served():
        stage_main("trainer.finetune")
