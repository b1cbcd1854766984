"""Stage `pretrain`: a GPT-2 trained on token shards.

token shards (train, val) -> the checkpoints that stay (step-*/), run.json, curve.csv, epochs.csv

    python -m trainer.pretrain tokenize/train tokenize/val pretrain/ --params params.yaml
    torchrun --nproc-per-node 8 -m trainer.pretrain ...          (or srun, on more machines)

A killed run goes on from its last checkpoint, on the same layout or another, with the same command.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import store
from pipelines.command import Output, Source
from pipelines.config import check
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from trainer import launch
from trainer.config import (
    ModelConfig,
    ParallelConfig,
    PretrainConfig,
    check_batch,
    check_length,
    check_pretrain,
    check_warmup,
    check_watched_steps,
    data_ranks,
    layout,
    micro_batch,
)
from trainer.process import Process
from trainer.records import (
    RECORD,
    Retention,
    best_step,
    checkpoints,
    summary,
    val_losses,
)
from trainer.start import begin, find_start

if TYPE_CHECKING:
    from trainer.batches import PretrainBatches
    from trainer.loop import Training

logger = logging.getLogger(__name__)

VERSION = 3
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
    data: dict[str, Any]
    """sha256 of the two inputs, and of each folder of the mixture."""
    scratch: Path
    watch: Path | None = None
    """Folder for what is only looked at; None: nothing is."""

    @property
    def checkpoints(self) -> Path:
        """Where the run's own checkpoints lie."""
        return self.scratch / "checkpoints"

    @property
    def curve(self) -> Path:
        """One row per step."""
        return self.scratch / "curve.csv"

    @property
    def epochs(self) -> Path:
        """One row per pass over the samples."""
        return self.scratch / "epochs.csv"

    @property
    def folders(self) -> list[Path]:
        """All token folders that are trained on."""
        return [self.train, *(Path(folder) for folder in self.config.mixture)]

    def batches(self) -> "PretrainBatches":
        """What is trained on; the indexes of packed rows are kept in scratch."""
        from trainer.batches import PretrainBatches

        digests = [self.data["train"], *self.data.get("mixture", [])]
        return PretrainBatches.of(self.config, self.folders, digests, self.scratch / "index")

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
    mixture = [run.sha256(Path(folder)) for folder in config.mixture]
    data = {"train": run.sha256(train.path), "val": run.sha256(val.path)}
    processes = launch.count_processes(parallel)
    ranks = data_ranks(parallel, processes)
    micro_batch(parallel, "pretrain", check_batch("pretrain", config.global_batch_size, ranks), config.micro_batch_size)
    job = Job(
        config=config,
        model=model,
        parallel=parallel,
        train=train.path,
        val=val.path,
        data={**data, "mixture": mixture} if mixture else data,
        scratch=run.scratch,
        watch=output.final.with_name(f"{output.final.name}.watch"),
    )
    samples, tokenizer = check_data(job, ranks)
    job = dataclasses.replace(job, config=count_steps(config, samples))
    if not checkpoints(job.checkpoints):  # else the run goes on from its own
        find_start(job.config, model, tokenizer, job.train)
    # With receipts scratch stays after an error too, as the checkpoints in it must.
    (run.scratch / "receipts").mkdir(exist_ok=True)
    trained = launch.launch(train_in_process, parallel, job, logs=run.scratch / "logs")
    run.provenance["segments"] = store.read_json(job.segments)
    best = publish(job, output)
    run.adopt(output, Counts(trained["samples"], trained["samples"], totals={"tokens": trained["tokens"]}))
    return {**trained, **summary(job.curve), **best}


def check_parameters(params: Mapping[str, Any]) -> None:
    """Refuse, when parameters are composed, folders that the graph cannot depend on."""
    if params["pretrain"]["mixture"]:
        raise ConfigError(
            "pretrain.mixture: only for the command line, since DVC would not see the folders change; run "
            "python -m trainer.pretrain itself with --mixture"
        )
    check_length("pretrain", check(PretrainConfig, params["pretrain"], "pretrain", "params.yaml"))


def count_steps(config: PretrainConfig, samples: int) -> PretrainConfig:
    """The section with its length and warm-up in steps, now that the samples are counted."""
    run = config.in_steps(samples)
    check_warmup("pretrain", config, run.steps)
    check_watched_steps("pretrain", config, run.steps)
    logger.info(
        "pretrain: %d steps, %d of them warm-up, %d tokens each: %.4g epochs of %d samples",
        run.steps,
        run.warmup_steps,
        run.global_batch_size * run.sequence_length,
        run.steps * run.global_batch_size / samples,
        samples,
    )
    return run


def check_data(job: Job, ranks: int) -> tuple[int, dict[str, Any]]:
    """Samples of all token folders, and their tokenizer as records have it.

    Raises UserError unless the folders are whole, of one tokenizer, and enough for every process.

    The indexes of packed rows are made here, before any process starts, so that each only has to map them.
    """
    from trainer.loader.stream import check_tokens

    metas = {folder: check_tokens(folder).meta for folder in (*job.folders, job.val)}
    for folder, meta in metas.items():
        if meta != metas[job.train]:
            raise UserError(f"{folder}: made by another tokenizer than {job.train}; tokenize both with one")
    samples = job.batches().samples
    if samples < ranks:
        raise UserError(
            f"{job.train}: {samples} sample(s) for {ranks} data-parallel processes: use more documents, a shorter "
            "pretrain.sequence_length or fewer processes"
        )
    return samples, dataclasses.asdict(metas[job.train])


def train_in_process(process: Process, job: Job) -> dict[str, Any]:
    """One process's part of the training; returns the run's figures."""
    from trainer import hooks
    from trainer.loop import train
    from trainer.watch import watching

    config = job.config
    training = prepare(process, job)
    training.watch = job.watch
    measure = validation(job)
    around = [
        hooks.Validation(measure, config.validate_every),
        hooks.Curve(job.curve, untrained=measure),
        hooks.Epochs(job.epochs, job.curve),
        hooks.Progress("pretrain", config.log_every, phases=config.log_phases),
        hooks.Speeds(job.segments, layout(job.parallel, process.place.size)),
        hooks.Checkpoints(
            job.checkpoints,
            config.keep,
            keep_every=config.keep_every,
            keep_best=config.keep_best,
            curve=job.curve,
            in_background=config.async_save,
        ),
        *watching("pretrain", config, job.parallel, job.watch),
    ]
    train(training, around)
    return {
        "parameters": training.model.shape.parameters,
        "steps": training.step,
        "samples": training.position,
        "tokens": training.tokens,
    }


def prepare(process: Process, job: Job) -> "Training":
    """The run as it stands: its own newest checkpoint, else what `init` names."""
    from trainer.loop import assemble
    from trainer.model import Architecture, LanguageModel
    from trainer.optimizer import Recipe
    from trainer.parallel.mesh import Mesh

    config = job.config
    batches = job.batches()
    shape = Architecture.of(job.model, batches.meta.vocab_size)
    share = check_batch("pretrain", config.global_batch_size, data_ranks(job.parallel, process.place.size))
    training = assemble(
        process,
        Mesh(job.parallel, process.device),
        lambda stage: LanguageModel(shape, stage),
        shape,
        Recipe.of(config, config.steps, config.warmup_steps),
        batches,
        {"pretrain": config.identity(), "data": job.data, "tokenizer": dataclasses.asdict(batches.meta)},
        config=config,
        parallel=job.parallel,
        micro_batch_size=micro_batch(job.parallel, "pretrain", share, config.micro_batch_size),
        compile_blocks=config.compile,
    )
    if not training.resume(job.checkpoints):
        tokenizer = training.identity["tokenizer"]
        begin(training, config, training.mesh.from_first(lambda: find_start(config, job.model, tokenizer, job.train)))
    return training


def validation(job: Job) -> "Callable[[Training], float]":
    """What measures the validation loss of the model as it stands."""
    from trainer.loader.stream import TokenStream
    from trainer.validation import language_score

    config = job.config
    stream = TokenStream(job.val)

    def measure(training: "Training") -> float:
        training.model.train(mode=False)
        score = language_score(
            training.model.forward,
            training.mesh.device,
            stream,
            config.sequence_length,
            training.micro_batch_size,
            samples=config.validation_samples,
            mesh=training.mesh,
            document_mask=config.document_mask,
        )
        return score.loss

    return measure


def publish(job: Job, output: Output) -> dict[str, Any]:
    """The checkpoints that stay, the record of the newest one and the curves, as the output's files.

    Returns, with `keep_best`, step and loss of the best one; the record has them, too.
    """
    store.remove(output.folder)
    config, own, losses = job.config, checkpoints(job.checkpoints), val_losses(job.curve)
    retention = Retention(
        keep=config.keep, every=config.checkpoint_every, keep_every=config.keep_every, best=config.keep_best
    )
    stays = retention.of(own, config.steps, losses)
    for step in stays:
        for file in store.list_files(own[step]):
            store.link_or_copy(file, output.folder / own[step].name / file.name)
    for file in (job.curve, job.epochs):
        store.link_or_copy(file, output.folder / file.name)
    newest, best = own[stays[-1]] / RECORD, best_step(stays, losses) if config.keep_best else None
    if best is None:
        store.link_or_copy(newest, output.folder / RECORD)
        return {}
    chosen = {"step": best, "val_loss": losses[best]}
    store.write_json(output.folder / RECORD, {**store.read_json(newest), "best": chosen})
    return {"best_step": best, "best_val_loss": round(losses[best], 6)}


if __name__ == "__main__":
    # Under torchrun or Slurm only the first process is the stage.
    if not launch.served():
        stage_main("trainer.pretrain")
