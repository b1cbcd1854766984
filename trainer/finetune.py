"""Stage `finetune`: a GPT-2 as a classifier, fine-tuned on one GLUE task, once or with several seeds.

Hugging Face folder, or checkpoint, + tokenized task -> model/ (a Hugging Face folder), scores.json (with 95 % intervals
and the confusion matrix), predictions.jsonl, worst.jsonl, curve.csv, epochs.csv, pictures, submission/ (GLUE's format)

    python -m trainer.finetune mrpc export/ glue_tokenize/mrpc finetune/mrpc --contamination contamination/
    python -m trainer.finetune mrpc pretrain/ glue_tokenize/mrpc finetune/mrpc --tokenizer tokenizer/ --seeds 5

With several seeds each has a folder of its own (seed-1234/), scores.json holds means and standard deviations, seeds.csv
every score, and model/ is that of the best seed.

A padding token is added (id = old vocabulary size), unless glue_tokenize chose end-of-text for it; the last real token
of a row is classified, and the validation rows are scored, each once; a test is only predicted. With a contamination
folder two subsets are scored too: `validation_clean`, the rows that no document held before decontamination, and
`validation_kept_clean`, those that none of the documents holds that it kept, from which the training corpus is made.
"""

import dataclasses
import gc
import logging
import statistics
from collections.abc import Sequence
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
from trainer.base_model import BaseModel, open_base_model
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
from trainer.glue_results import Scores, metrics_of, score_splits, submit
from trainer.glue_scores import predict, score
from trainer.glue_table import GlueTable, named_classes, require_task
from trainer.process import Process
from trainer.records import newest_checkpoint, read_record, summary
from trainer.seed_runs import best_seed, seed_name, write_spread

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.loader.batch import Batch
    from trainer.loader.glue import GlueRows
    from trainer.loop import Training
    from trainer.parallel.mesh import Mesh

logger = logging.getLogger(__name__)

VERSION = 5
SHAPED_BY = ("torch", "numpy", "safetensors", "tokenizers", "matplotlib")


EVALUATED_ROWS = 32
"""Rows of a process in a pass that only predicts, at least: a training pass keeps more, so its rows may be fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What each training process has to know."""

    config: FinetuneConfig
    parallel: ParallelConfig
    task: str
    base: BaseModel
    glue: Path
    scratch: Path
    splits: tuple[Path, ...] = ()
    """The validation splits: one, or mnli's matched and mismatched."""
    tests: tuple[Path, ...] = ()
    """The splits that are only predicted."""
    watch: Path | None = None
    """Folder for what is only looked at; None: nothing is."""

    @property
    def checkpoints(self) -> Path:
        """Where the run's own checkpoints lie."""
        return self.scratch / "checkpoints"

    @property
    def result(self) -> Path:
        """What the run came to, once it is over: a kill in a later seed's run does not make it predict again."""
        return self.scratch / "result.json"

    @property
    def runs(self) -> "dict[int, Job]":
        """Seed -> the job with this seed alone; more than one seed have a folder each in scratch."""
        config = self.config
        if config.seeds == 1:
            return {config.seed: self}
        return {
            seed: dataclasses.replace(
                self,
                config=dataclasses.replace(config, seed=seed, seeds=1),
                scratch=self.scratch / seed_name(seed),
                watch=self.watch and self.watch / seed_name(seed),
            )
            for seed in range(config.seed, config.seed + config.seeds)
        }


def finetune(
    config: FinetuneConfig,
    parallel: ParallelConfig,
    run: StageRun,
    task: str,
    base: Source,
    glue: Source,
    contamination: Source | None,
    tokenizer: Source | None,
    output: Output,
) -> dict[str, Any]:
    """Train in processes, then score what they predicted."""
    rows = open_train(glue.path)
    job = Job(
        config=config,
        parallel=parallel,
        task=task,
        base=open_base_model(base.path, tokenizer and tokenizer.path, rows.meta, glue.path, run.scratch),
        glue=glue.path,
        scratch=run.scratch,
        splits=tuple(sorted(glue.path.glob("validation*.arrow"))),
        tests=tuple(sorted(glue.path.glob("test*.arrow"))),
        watch=output.final.with_name(f"{output.final.name}.watch"),
    )
    check_layout(config, parallel, job.base.folder)
    if not job.splits:
        raise UserError(f"{glue.path}: has no validation*.arrow to score on; run glue_tokenize on the task")
    check_rows(job)
    # With receipts scratch stays after an error too, as the checkpoints in it must.
    (run.scratch / "receipts").mkdir(exist_ok=True)
    trained = launch.launch(train_in_process, parallel, job, logs=run.scratch / "logs")
    store.remove(output.folder)
    scores: dict[int, Scores] = {}
    for seed, own in job.runs.items():
        folder = output.folder if config.seeds == 1 else output.folder / seed_name(seed)
        scores[seed] = score_splits(task, trained[seed]["predictions"], contamination, folder, glue.path)
        write_curves(own, folder)
    best = best_seed(scores)
    save_model(job.runs[best], rows, output.folder / "model")
    submission = submit(task, trained[best]["predictions"], output.folder, glue.path)
    found = scores[best] if config.seeds == 1 else write_spread(scores, best, output.folder)
    segments = {seed: store.read_json(own.scratch / "segments.json") for seed, own in job.runs.items()}
    run.provenance["segments"] = segments[best] if config.seeds == 1 else segments
    losses = [summary(own.scratch / "curve.csv") for own in job.runs.values()]
    tokens = sum(each["tokens"] for each in trained.values())
    run.adopt(output, Counts(len(rows.table), len(rows.table), totals={"tokens": tokens}))
    return {
        **{name: trained[best][name] for name in ("rows", "steps", "tokens", "num_labels")},
        **{name: round(statistics.fmean(each[name] for each in losses), 6) for name in losses[0]},
        **({} if config.seeds == 1 else {"best_seed": best}),
        **metrics_of(found),
        **submission,
    }


def open_train(glue: Path) -> GlueTable:
    """The rows to train on; UserError, with what may be meant, where there are none."""
    path = glue / "train.arrow"
    if not path.exists():
        if inside := sorted(each.parent.name for each in glue.glob("*/train.arrow")):
            raise UserError(f"{glue}: a folder of tasks ({', '.join(inside)}); name that of one task")
        if any(glue.glob("test*.arrow")):
            raise UserError(f"{path}: no such file; a task without rows to train on, as ax, is for glue_score")
    return GlueTable(path)


def check_layout(config: FinetuneConfig, parallel: ParallelConfig, export: Path) -> None:
    """Refuse a layout that the exported model or the batch does not allow, before any process starts."""
    sizes = read_sizes(export)
    check_weights(export)
    check_finetune(config, parallel, sizes["n_layer"], sizes["n_head"], n_embd=sizes["n_embd"])
    rows_per_pass(config, parallel, launch.count_processes(parallel))


def check_labels(tables: Sequence[GlueTable]) -> None:
    """Refuse a split whose classes are not those of the first one, before any process starts."""
    train, *others = tables
    for table in others:
        if (table.num_labels, table.label_names) != (train.num_labels, train.label_names):
            raise UserError(
                f"{table.path}: its labels are {table.labels_in_words}, those of {train.path} "
                f"{train.labels_in_words}; run glue_tokenize again on one task"
            )


def check_rows(job: Job) -> None:
    """Refuse rows that the model cannot be tuned or scored on, and steps that they do not make, likewise."""
    from trainer.loader.glue import GlueBatches, GlueRows

    config, n_positions = job.config, read_sizes(job.base.folder)["n_positions"]
    train = job.glue / "train.arrow"
    tables = [GlueTable(path) for path in (train, *job.splits, *job.tests)]
    require_task(tables, job.task)
    check_labels(tables)
    rows = GlueRows(train)
    rows.check(n_positions)
    for path in (*job.splits, *job.tests):
        GlueRows(path).check(n_positions, labelled=path in job.splits)
    steps = config.in_steps(GlueBatches(rows, config.global_batch_size, rows.pad, config.seed).steps_per_epoch).steps
    check_warmup("finetune", config, steps)
    check_watched_steps("finetune", config, steps)


def rows_per_pass(config: FinetuneConfig, parallel: ParallelConfig, processes: int) -> int:
    """Rows per forward pass of a process: without a pipeline any number will do."""
    share = -(-config.global_batch_size // data_ranks(parallel, processes))
    if parallel.pp == 1:
        return config.micro_batch_size or share
    return micro_batch(parallel, "finetune", share, config.micro_batch_size)


def train_in_process(process: Process, job: Job) -> dict[int, dict[str, Any]]:
    """One process's part, for each seed in turn: train, and predict the validation rows."""
    from trainer.parallel.mesh import Mesh

    mesh, found = Mesh(job.parallel, process.device), dict[int, dict[str, Any]]()
    for seed, own in job.runs.items():
        if mesh.from_first(own.result.exists):
            found[seed] = store.read_json(own.result) if mesh.is_first else {}
        else:
            found[seed] = train_once(process, mesh, own)
        gc.collect()  # a run's parts know each other: its memory is wanted for the next one
    return found


def train_once(process: Process, mesh: "Mesh", job: Job) -> dict[str, Any]:
    """Train with one seed, or what is left of it, and predict the validation rows."""
    from trainer import hooks
    from trainer.loader.glue import GlueRows
    from trainer.loop import train
    from trainer.watch import watching

    config = job.config
    rows = GlueRows(job.glue / "train.arrow")
    training = prepare(process, mesh, job, rows)
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
    predictions = {path.stem: predict_split(training, path, rows) for path in (*job.splits, *job.tests)}
    if not mesh.is_first:
        return {}
    counts = {"rows": len(rows), "steps": training.step, "tokens": training.tokens, "num_labels": rows.num_labels}
    store.write_json(job.result, {**counts, "predictions": predictions})
    return {**counts, "predictions": predictions}


def prepare(process: Process, mesh: "Mesh", job: Job, rows: "GlueRows") -> "Training":
    """The classifier as it stands: the run's own newest checkpoint, else the base model's weights and a new head."""
    from trainer import huggingface
    from trainer.loader.glue import GlueBatches
    from trainer.loop import assemble
    from trainer.model import Classifier
    from trainer.optimizer import Recipe

    config = job.config
    shape = job.base.shape
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
        mesh,
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
        logger.info(
            "finetune %s: %d steps, %d of them warm-up, seed %d", job.task, run.steps, run.warmup_steps, config.seed
        )
    if not training.resume(job.checkpoints):
        weights = huggingface.read_weights(job.base.folder)
        body = {name: weight for name, weight in training.model.weights.items() if name != "score.weight"}
        huggingface.fill(
            body, weights, job.base.folder
        )  # the padding token's row becomes 0, the head stays as it was made
    return training


def predict_split(
    training: "Training", path: Path, train_rows: "GlueRows", at_most: int | None = None
) -> dict[str, Any]:
    """Index, label and outputs of each row of a split, in order; of so many rows, evenly spread, with `at_most`."""
    from trainer.loader.glue import GlueRows
    from trainer.validation import classify

    rows = GlueRows(path, at_most)
    if rows.meta != train_rows.meta:
        raise UserError(f"{path}: made by another tokenizer than {train_rows.path}; run glue_tokenize again")
    rows.check(training.model.shape.n_positions, labelled=not path.stem.startswith("test"))
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
        max(training.micro_batch_size, EVALUATED_ROWS),
        mesh,
    )
    return {"index": rows.indexes.tolist(), "label": rows.labels.tolist(), "logits": logits}


def validate(training: "Training", job: Job, train_rows: "GlueRows") -> dict[str, float]:
    """Loss and scores on training and validation rows, by split and name of the score; in the first process."""
    import torch

    from trainer.loss import class_loss

    found: dict[str, float] = {}
    measured = {train_rows.path: job.config.scored_train_rows} if job.config.scored_train_rows else {}
    for path, at_most in {**measured, **dict.fromkeys(job.splits)}.items():
        rows, num_labels = predict_split(training, path, train_rows, at_most), train_rows.num_labels
        if training.mesh.is_first:
            loss = class_loss(torch.tensor(rows["logits"]), torch.tensor(rows["label"])) / len(rows["label"])
            scores = score(job.task, rows["label"], predict(rows["logits"], num_labels), num_labels)
            found[f"{path.stem}_loss"] = float(loss)
            found |= {
                f"{path.stem}_{name}": value
                for name, value in scores.items()
                if name not in ("headline", "majority", "rows")
            }
    return found


def save_model(job: Job, rows: GlueTable, folder: Path) -> None:
    """The fine-tuned model, whole from its last checkpoint, and its tokenizer as a Hugging Face folder."""
    from trainer import huggingface
    from trainer.export import read_checkpoint
    from trainer.model import Classifier

    checkpoint = newest_checkpoint(job.checkpoints)
    shape, weights = read_checkpoint(checkpoint, read_record(checkpoint), Classifier)
    end = rows.meta.end_of_text
    names = named_classes(rows.label_names, shape.num_labels) or ["LABEL_0"]
    settings = {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": rows.pad,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        huggingface.TOKENIZER_SHA256: rows.meta.tokenizer_sha256,
        "problem_type": "regression" if shape.num_labels == 1 else "single_label_classification",
    }
    huggingface.save_folder(folder, shape, weights, settings)
    padding = "added" if rows.pad >= rows.meta.vocab_size else "end_of_text"
    huggingface.save_tokenizer(job.base.tokenizer, folder, shape.n_positions, padding=padding)


def write_curves(job: Job, folder: Path) -> None:
    """The run's curve.csv, and loss and scores by epoch, as numbers and as epochs.svg."""
    from trainer.glue_pictures import epochs
    from trainer.results import read_curve

    for name in ("curve.csv", "epochs.csv"):
        store.link_or_copy(job.scratch / name, folder / name)
    with store.create(folder / "epochs.svg") as file:
        file.write(epochs(read_curve(folder / "epochs.csv")).encode())


if __name__ == "__main__":
    # Under torchrun or Slurm only the first process is the stage.
    if not launch.served():
        stage_main("trainer.finetune")
