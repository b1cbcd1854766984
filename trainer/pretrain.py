"""Stage `pretrain`: a GPT-2 trained on token shards.

token shards (train, val) -> the last checkpoints (step-*/), run.json, curve.csv

    python -m trainer.pretrain tokenize/train tokenize/val pretrain/ --params params.yaml
    torchrun --nproc-per-node 8 -m trainer.pretrain ...          (or srun, on more machines)

A killed run goes on from its last checkpoint, on the same layout or another, with the same command.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import store
from pipelines.command import Output, Source
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from pipelines.tokens import open_tokens
from trainer import launch
from trainer.config import ModelConfig, ParallelConfig, PretrainConfig, check_batch, check_pretrain, layout, replicas
from trainer.process import Process
from trainer.records import RECORD, checkpoints, newest_checkpoint, require_same_model, summary

if TYPE_CHECKING:
    from trainer.loop import Training

VERSION = 1
SHAPED_BY = ()
"""Library versions are no part of a training run's identity: an unfinished run goes on under other ones, and each
segment's are in its provenance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What each training process has to know."""

    config: PretrainConfig
    model: ModelConfig
    parallel: ParallelConfig
    train: Path
    val: Path
    data: dict[str, str]
    """sha256 of the two inputs."""
    scratch: Path

    @property
    def checkpoints(self) -> Path:
        """Where the run's own checkpoints lie."""
        return self.scratch / "checkpoints"

    @property
    def curve(self) -> Path:
        """One row per step."""
        return self.scratch / "curve.csv"

    @property
    def segments(self) -> Path:
        """Layout, versions and speed of each segment of the run."""
        return self.scratch / "segments.json"


def pretrain(
    config: PretrainConfig,
    model: ModelConfig,
    parallel: ParallelConfig,
    run: StageRun,
    train: Source,
    val: Source,
    output: Output,
) -> dict[str, Any]:
    """Check, train in processes, publish."""
    check_pretrain(config, model, parallel)
    check_tokens(train.path, val.path)
    processes = launch.count_processes(parallel)
    check_batch("pretrain", config.global_batch_size, config.micro_batch_size, replicas(parallel, processes))
    job = Job(
        config=config,
        model=model,
        parallel=parallel,
        train=train.path,
        val=val.path,
        data={"train": run.sha256(train.path), "val": run.sha256(val.path)},
        scratch=run.scratch,
    )
    trained = launch.launch(train_in_process, parallel, job)
    run.provenance["segments"] = store.read_json(job.segments)
    publish(job, output)
    run.adopt(output, Counts(trained["samples"], trained["samples"], totals={"tokens": trained["tokens"]}))
    return {**trained, **summary(job.curve)}


def check_tokens(train: Path, val: Path) -> None:
    """Raise UserError unless one tokenizer made both inputs."""
    if open_tokens(train)[0].meta != open_tokens(val)[0].meta:
        raise UserError(f"{val}: made by another tokenizer than {train}; tokenize both with one")


def train_in_process(process: Process, job: Job) -> dict[str, Any]:
    """One process's part of the training; returns the run's figures."""
    from trainer import hooks
    from trainer.checkpoint import model_tensors
    from trainer.loop import train

    config = job.config
    training = prepare(process, job)
    measure = validation(training, job)
    around = [
        hooks.Validation(measure, config.validate_every),
        hooks.Curve(job.curve, untrained=measure),
        hooks.Progress("pretrain", config.log_every),
        hooks.Speeds(job.segments, layout(job.parallel, process.place.size)),
        hooks.Checkpoints(job.checkpoints, config.keep),
    ]
    train(training, around)
    return {
        "parameters": sum(weight.numel() for weight in model_tensors(training.model).values()),
        "steps": training.step,
        "samples": training.position,
        "tokens": training.tokens,
    }


def prepare(process: Process, job: Job) -> "Training":
    """The run as it stands: its own newest checkpoint, else what `init` names."""
    from trainer.batches import PretrainBatches, TokenStream
    from trainer.loop import assemble
    from trainer.model import Architecture, LanguageModel
    from trainer.optimizer import Recipe

    config = job.config
    stream = TokenStream(job.train)
    shape = Architecture.of(job.model, stream.meta.vocab_size)
    training = assemble(
        process,
        lambda: LanguageModel(shape),
        Recipe.of(config, config.steps, config.warmup_steps),
        PretrainBatches(stream, config.sequence_length, config.global_batch_size, config.seed),
        lambda model, batch: model(batch.ids, batch.targets, batch.rows),
        {"pretrain": config.identity(), "data": job.data, "tokenizer": dataclasses.asdict(stream.meta)},
        config=config,
        parallel=job.parallel,
        compile_blocks=config.compile,
    )
    if not training.resume(job.checkpoints):
        begin(training, job)
    return training


def begin(training: "Training", job: Job) -> None:
    """Before the first step: seeded weights, or a checkpoint of another run, or weights of a Hugging Face folder."""
    from trainer import huggingface

    config, path = job.config, Path(job.config.init_path)
    if config.init == "huggingface":
        record = {"model": huggingface.read_architecture(path).record()}
        require_same_model(path, record, training.identity["model"])
        huggingface.fill(training.model, huggingface.read_weights(path), path)
    elif config.init == "checkpoint":
        record = training.restore(newest_checkpoint(path))
        if training.finished:
            raise ConfigError(
                f"pretrain.steps {config.steps}: {path} is at step {training.step} already; ask for more steps"
            )
        if record["tokenizer"] != training.identity["tokenizer"]:
            raise UserError(
                f"{path}: trained on tokens of another tokenizer than {job.train}; tokenize with that one, or start "
                "from another checkpoint"
            )
        before = (record["data"]["train"], *(record["pretrain"][key] for key in ("seed", "sequence_length")))
        if before != (job.data["train"], config.seed, config.sequence_length):
            # Other data, another order or other samples: they are taken from the beginning.
            training.position = 0


def validation(training: "Training", job: Job) -> "Callable[[Training], float]":
    """What measures the validation loss of the model as it stands."""
    from trainer.batches import TokenStream
    from trainer.validation import language_score

    config = job.config
    stream = TokenStream(job.val)
    size = config.micro_batch_size or config.global_batch_size // training.mesh.data_ranks

    def measure(training: "Training") -> float:
        model: Any = training.model
        samples = config.validation_samples
        return language_score(model, stream, config.sequence_length, size, samples=samples, mesh=training.mesh).loss

    return measure


def publish(job: Job, output: Output) -> None:
    """The last checkpoints on the cadence, the record of the newest one and the curve, as the output's files."""
    store.remove(output.folder)
    config = job.config
    regular = [
        folder
        for step, folder in checkpoints(job.checkpoints).items()
        if step % config.checkpoint_every == 0 or step == config.steps
    ]
    for folder in regular[-config.keep :]:
        for file in store.list_files(folder):
            store.link_or_copy(file, output.folder / folder.name / file.name)
    store.link_or_copy(regular[-1] / RECORD, output.folder / RECORD)
    store.link_or_copy(job.curve, output.folder / job.curve.name)


if __name__ == "__main__":
    # Under torchrun or Slurm only the first process is the stage.
    if not launch.served():
        stage_main("trainer.pretrain")
