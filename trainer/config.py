"""The trainer's parameters, and the checks that they agree: all of it before any process starts, without torch.

Sections `model`, `parallel`, `pretrain`, `finetune`, `evaluate` of `params.yaml`. What cannot change the
trained model (layout, micro batch, compilation, cadences) is left out of a section's `identity()`, so an
unfinished run goes on with other values.
"""

import dataclasses
import importlib.util
import math
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval

from pipelines.config import Count, NonNegative, Positive, Share, SourcePath, SourcePaths, given, to_plain
from pipelines.errors import ConfigError
from trainer.placements import check_placements

Probability = Annotated[float, Interval(ge=0, lt=1)]
"""A share that stays below 1."""
NonNegativeFloat = Annotated[float, Ge(0)]
"""A number, at least 0."""
Epochs = Annotated[float, Interval(ge=0, lt=math.inf)]
"""A number of passes."""
Precision = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["cosine", "linear", "constant", "wsd", "inverse_sqrt"]
TWO_STAGES_EACH = ("zbv", "dualpipev")
ONE_STAGE_EACH = ("gpipe", "1f1b")
ZERO_BUBBLE = ("interleaved_zero_bubble", "zbv", "dualpipev")
IN_ROUNDS = ("interleaved_1f1b", "interleaved_zero_bubble")
"""They deal the micro batches out in rounds of as many as there are processes, or a few more."""
SAMPLES = ("packing", "drop_tail", "document_mask", "mixture", "mixture_weights")
"""Fields of PretrainConfig that say how samples are made: younger than the first records of runs."""
LENGTHS = ("tokens", "epochs", "warmup_share")
"""Fields of PretrainConfig that say in another unit what steps and warmup_steps do: younger too."""

SAVING = ("checkpoint_every", "async_save", "keep", "keep_every", "keep_best")
"""Fields of PretrainConfig that say when checkpoints are made, and how long they stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of GPT-2; the vocabulary's size comes from the token shards."""

    n_layer: Count = 12
    """Transformer blocks."""
    n_head: Count = 12
    """Attention heads per block; they divide n_embd."""
    n_embd: Count = 768
    """Width of the residual stream."""
    n_positions: Count = 1024
    """Learned positions: the longest sequence in tokens."""
    dropout: Probability = 0.0
    """Share of embedding and residual values dropped in pretraining."""
    pad_vocab_to: Count = 64
    """Speed only: embedding rows are rounded up to a multiple of this in memory, never in a checkpoint."""

    def identity(self) -> dict[str, Any]:
        """What makes it this model."""
        return _without(self, "pad_vocab_to")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How the work is spread over processes: no part of a run's identity."""

    pp: Count = 1
    """Pipeline stages."""
    dp_replicate: NonNegative = 0
    """Replicas of the model, each on its share of the batch; 0: all processes (GPUs) that are left."""
    dp_shard: Count = 1
    """Processes over which ZeRO shards one replica."""
    tp: Count = 1
    """Processes over which each layer's matrices are split."""
    sequence_parallel: bool = True
    """With tp: split the activations between the matrices along the sequence."""
    placements: tuple[str, ...] = ()
    """With tp: how to split other than Megatron does, such as mlp.c_proj=column or wte=hidden; the last that fits."""
    zero: Literal[0, 1, 2, 3] = 0
    """What dp_shard shards: 1 optimizer state, 2 gradients too, 3 parameters too."""
    offload: Literal["none", "optimizer", "all", "auto"] = "none"
    """What lives in the host's memory. auto, placed by what memory is left as Gemini does, is not there yet."""
    schedule: Literal[
        "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev"
    ] = "1f1b"
    """Order of the pipeline's forward and backward passes."""
    microbatches: NonNegative = 0
    """Pipeline micro batches per step; 0: from the micro batch size."""
    chunks: Count = 1
    """Pipeline stages per process, for the interleaved schedules; 2 for zbv and dualpipev."""
    stages: str = "uniform"
    """How layers are dealt out to pipeline stages: uniform, balanced by cost, or numbers of layers such as 3,3,4,2."""
    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    """What is computed again in the backward pass instead of kept: whole blocks, or all but matrix products."""
    checkpoint_every: Count = 1
    """With activation_checkpointing: of every so many blocks one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto: on GPUs where there are any."""
    determinism: Literal["auto", "exact", "fast"] = "auto"
    """exact: equal to the last bit in the same layout, one thread per process; auto: exact on CPUs, fast on GPUs."""

    def identity(self) -> dict[str, Any]:
        """Nothing: every layout trains the same model."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleConfig:
    """With precision fp16: what the loss is multiplied by, so that small gradients do not become 0."""

    initial: Positive = 65536.0
    """At the first step."""
    growth_factor: Annotated[float, Ge(1)] = 2.0
    """What it is multiplied by after growth_interval steps without an overflow."""
    growth_interval: Count = 1000
    """Steps without an overflow until it grows."""
    backoff_factor: Annotated[float, Interval(gt=0, lt=1)] = 0.5
    """What it is multiplied by after an overflow; the step is left out."""
    hysteresis: Count = 2
    """Overflows, with no growth between them, that it takes until it falls."""
    minimum: Positive = 1.0
    """It never falls below; an overflow there ends training."""
    maximum: Positive = 4294967296.0
    """It never grows above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """How a training is looked at: nothing here can change it. What is written goes to the folder OUTPUT.watch."""

    log_every: Count = 10
    """Steps between lines of the log, where there is no terminal for a progress bar."""
    log_phases: bool = False
    """With these lines, what a step spends its time on."""
    tensorboard: bool = False
    """Write loss, learning rate, gradient norm, speed and memory for TensorBoard; takes the extra of this name."""
    spike_sigma: NonNegativeFloat = 0.0
    """Warn of a loss so many standard deviations above the mean of the last spike_window steps, with the documents
    in its batch; 0: never."""
    spike_window: Annotated[int, Ge(2)] = 128
    """Steps that a loss is compared with."""
    profile: str = ""
    """Steps to record with torch.profiler, such as 10:13, the last one included: one trace per process."""
    draw_schedule: NonNegative = 0
    """Draw the pipeline of this step, from real times; 0: of none."""

    def window(self, section: str) -> tuple[int, int] | None:
        """First and last step of `profile`; ConfigError where they are none."""
        if not self.profile:
            return None
        first, _, last = self.profile.partition(":")
        if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last)):
            raise ConfigError(f"{section}.profile {self.profile!r}: expected first and last step, such as 10:13")
        return int(first), int(last)


WATCHING = tuple(field.name for field in dataclasses.fields(WatchConfig))


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig(WatchConfig):
    """Pretraining on token shards."""

    seed: NonNegative = 0
    """Seed of initial weights, sample order and dropout."""
    init: Literal["scratch", "checkpoint", "huggingface"] = "scratch"
    """Start from seeded weights, from a checkpoint (its step, optimizer and data position go on), or from weights
    in a Hugging Face folder."""
    init_path: SourcePath = ""
    """Folder to start from: pretrain's output or one step-* folder of it, or a Hugging Face folder."""
    steps: NonNegative = 1000
    """Optimizer steps; 0: from tokens or epochs. With init checkpoint, counted from that run's first step, as these."""
    tokens: NonNegative = 0
    """Length in tokens instead, up to a whole step of global_batch_size x sequence_length; 0: not so."""
    epochs: Epochs = 0.0
    """Length in passes over as many samples as there are, up to a whole step; 0: not so. With a mixture, as many as
    all its folders have, whatever the shares."""
    sequence_length: Count = 1024
    """Tokens per sample, at most model.n_positions."""
    packing: Literal["stream", "document", "bestfit"] = "stream"
    """How documents become samples. stream: cut from the stream of all, every token used; document: one row per
    document (several for a long one), padded; bestfit: rows of pieces of documents, with next to no padding."""
    drop_tail: bool = False
    """Of a document longer than a row keep the first row only; with packing document or bestfit."""
    document_mask: bool = False
    """Attention stays inside documents and positions begin anew in each; no fused causal kernel, so slower."""
    mixture: SourcePaths = ()
    """Further folders of token shards to train on, beside the stage's own."""
    mixture_weights: tuple[Positive, ...] = ()
    """Shares of the samples, in any unit: first of the stage's own token shards, then of each folder of mixture."""
    global_batch_size: Count = 32
    """Samples per step, over all processes."""
    micro_batch_size: NonNegative = 0
    """Samples per forward pass of one process, a question of memory; 0: its whole share of the batch."""
    lr: Positive = 6e-4
    """Highest learning rate."""
    schedule: Schedule = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup_steps: NonNegative = 100
    """Steps over which the learning rate rises from 0; 0: as warmup_share says."""
    warmup_share: Share = 0.0
    """The same as a share of all steps, down to a whole one; 0: as warmup_steps says."""
    final_lr_share: Share = 0.1
    """Where the learning rate falls to, as a share of the highest: that of the step after the last one."""
    weight_decay: NonNegativeFloat = 0.1
    """AdamW's decay of matrices and embeddings; biases and norms are never decayed."""
    beta1: Probability = 0.9
    """AdamW's decay of the gradient's mean."""
    beta2: Probability = 0.95
    """AdamW's decay of the gradient's square."""
    epsilon: Positive = 1e-8
    """AdamW's guard of the division."""
    clip_norm: NonNegativeFloat = 1.0
    """Gradients of a larger global norm are scaled down to it; 0: never."""
    precision: Precision = "fp32"
    """What matrices are multiplied in; weights, optimizer and sums stay fp32."""
    loss_scale: LossScaleConfig = LossScaleConfig()
    """With precision fp16."""
    compile: bool = False
    """Compile each block with torch.compile: slow start, fast steps."""
    validate_every: NonNegative = 100
    """Steps between validations; always before the first and after the last step, 0: only then."""
    validation_samples: NonNegative = 0
    """Validate on the first so many samples; 0: on all."""
    checkpoint_every: Count = 100
    """Steps between checkpoints; the last step always has one."""
    async_save: bool = True
    """Write checkpoints in the background, from a copy in the host's memory: of this process's weights and optimizer
    state, for as long as it trains."""
    keep: Count = 2
    """Checkpoints kept and published: the last so many."""
    keep_every: NonNegative = 0
    """Keep and publish all checkpoints on multiples of so many steps, too; 0: none."""
    keep_best: bool = False
    """Keep and publish the checkpoint with the least validation loss, too, and name it in the record as `best`; each
    validation needs a checkpoint, so validate_every has to be a multiple of checkpoint_every."""

    def identity(self) -> dict[str, Any]:
        """All that shapes the weights or the curve; what makes samples another way than the default only then.

        Equal lengths are equal runs, whatever they are given in. Only epochs stay epochs here until the samples are
        counted, which takes the data; a record has steps.
        """
        run = self if self.epochs else self.in_steps(samples=0)
        defaults, plain = to_plain(PretrainConfig()), to_plain(run)
        usual = [name for name in (*SAMPLES, *LENGTHS) if plain[name] == defaults[name]]
        return _without(run, "micro_batch_size", "compile", *WATCHING, *SAVING, *usual)

    def in_steps(self, samples: int) -> "PretrainConfig":
        """The same run with length and warm-up in steps. `samples`: how many make an epoch."""
        # As written in decimals: 0.7 epochs of 10 samples are 7, not the 8 that binary fractions round up to.
        taken = Fraction(str(self.epochs)) * samples
        tokens_per_step = self.global_batch_size * self.sequence_length
        steps = self.steps or -(-self.tokens // tokens_per_step) or math.ceil(taken / self.global_batch_size)
        warmup_steps = self.warmup_steps or int(self.warmup_share * steps)
        return dataclasses.replace(self, steps=steps, tokens=0, epochs=0.0, warmup_steps=warmup_steps, warmup_share=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig(WatchConfig):
    """Fine-tuning of a GPT-2 as a classifier on one GLUE task."""

    seed: NonNegative = 42
    """Seed of the new head's weights, row order and dropout."""
    seeds: Count = 1
    """Fine-tunings, one after the other, with this seed and those after it: mean, spread, and the best one's model."""
    epochs: NonNegative = 3
    """Passes over the training rows; each epoch's last, smaller batch is kept. 0: as steps says."""
    steps: NonNegative = 0
    """Optimizer steps instead, with epochs 0; 0: as epochs says."""
    global_batch_size: Count = 32
    """Rows per step, over all processes."""
    micro_batch_size: NonNegative = 0
    """Rows per forward pass of one process; 0: its whole share of the batch."""
    lr: Positive = 2.4e-5
    """Highest learning rate."""
    schedule: Schedule = "linear"
    """How the learning rate falls after the warm-up."""
    warmup_share: Share = 0.1
    """Share of all steps over which the learning rate rises from 0, down to a whole one; 0: as warmup_steps says."""
    warmup_steps: NonNegative = 0
    """The same in steps, with warmup_share 0; 0: as warmup_share says."""
    final_lr_share: Share = 0.0
    """Where the learning rate falls to, as a share of the highest: that of the step after the last one."""
    weight_decay: NonNegativeFloat = 0.01
    """AdamW's decay of matrices and embeddings; biases and norms are never decayed."""
    beta1: Probability = 0.9
    """AdamW's decay of the gradient's mean."""
    beta2: Probability = 0.999
    """AdamW's decay of the gradient's square."""
    epsilon: Positive = 1e-8
    """AdamW's guard of the division."""
    clip_norm: NonNegativeFloat = 0.0
    """Gradients of a larger global norm are scaled down to it; 0: never."""
    dropout: Probability = 0.1
    """Share of embedding and residual values dropped."""
    attention_dropout: Probability = 0.1
    """Share of attention probabilities dropped; above 0 the fused attention kernels cannot be used, which made
    steps on short rows a fifth slower on a CPU."""
    precision: Precision = "fp32"
    """What matrices are multiplied in; weights, optimizer and sums stay fp32."""
    loss_scale: LossScaleConfig = LossScaleConfig()
    """With precision fp16."""
    scored_train_rows: NonNegative = 1000
    """Training rows, evenly spread, that are scored after each epoch beside the validation rows; 0: none."""
    checkpoint_every: Count = 500
    """Steps between checkpoints, for going on after a kill; none of them is published."""
    async_save: bool = True
    """Write checkpoints in the background, as in pretraining."""

    def identity(self) -> dict[str, Any]:
        """All that shapes the weights or the curve; what is younger than the first runs only where it is given."""
        younger = [name for name in ("steps", "warmup_steps") if not getattr(self, name)]
        return _without(
            self,
            "micro_batch_size",
            "checkpoint_every",
            "async_save",
            *WATCHING,
            *younger,
        )

    def in_steps(self, steps_per_epoch: int) -> "FinetuneConfig":
        """The same run with length and warm-up in steps."""
        steps = self.steps or self.epochs * steps_per_epoch
        warmup_steps = self.warmup_steps or int(self.warmup_share * steps)
        return dataclasses.replace(self, steps=steps, epochs=0, warmup_steps=warmup_steps, warmup_share=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig:
    """How text is drawn from a model."""

    new_tokens: Count = 64
    """Tokens to add, unless end-of-text comes first."""
    temperature: NonNegativeFloat = 0.8
    """Divides the logits; 0 always takes the likeliest token."""
    top_k: NonNegative = 40
    """Draw from so many likeliest tokens; 0: from all."""
    seed: NonNegative = 0
    """Seed of the draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Loss and perplexity on the validation tokens, and a few generated texts."""

    batch_size: Count = 8
    """Samples per forward pass."""
    sequence_length: NonNegative = 0
    """Tokens per sample; 0: all positions of the model."""
    texts: NonNegative = 4
    """Generated texts, each from the beginning of a validation document."""
    prompt_tokens: Count = 8
    """Tokens of the document that the text starts from."""
    new_tokens: Count = 64
    """Tokens to add, unless end-of-text comes first."""
    temperature: NonNegativeFloat = 0.8
    """Divides the logits; 0 always takes the likeliest token."""
    top_k: NonNegative = 40
    """Draw from so many likeliest tokens; 0: from all."""
    seed: NonNegative = 0
    """Seed of the draws."""

    @property
    def sampling(self) -> SamplingConfig:
        """The part that is about drawing text."""
        return SamplingConfig(
            new_tokens=self.new_tokens, temperature=self.temperature, top_k=self.top_k, seed=self.seed
        )


def _without(section: Any, *names: str) -> dict[str, Any]:
    """The section's fields but those that cannot change the result."""
    return {name: value for name, value in to_plain(section).items() if name not in names}


def check_model(model: ModelConfig) -> None:
    """Raise ConfigError when the heads do not divide the width."""
    if model.n_embd % model.n_head:
        raise ConfigError(
            f"model.n_head {model.n_head} does not divide model.n_embd {model.n_embd}: "
            f"use {_choices(_divisors(model.n_embd))} heads"
        )


def check_loss_scale(section: str, scale: LossScaleConfig) -> None:
    """Raise ConfigError unless the scale begins between its ends."""
    if not scale.minimum <= scale.initial <= scale.maximum:
        raise ConfigError(
            f"{section}.loss_scale.initial {scale.initial:g} is not between minimum {scale.minimum:g} and maximum "
            f"{scale.maximum:g}: change one of them"
        )


def check_pretrain(config: PretrainConfig, model: ModelConfig, parallel: ParallelConfig) -> None:
    """Raise ConfigError unless the three sections agree."""
    check_model(model)
    check_parallel(parallel, model.n_layer, model.n_head, n_embd=model.n_embd, compiled=config.compile)
    if config.sequence_length > model.n_positions:
        raise ConfigError(
            f"pretrain.sequence_length {config.sequence_length} is longer than model.n_positions "
            f"{model.n_positions}: shorten the one or raise the other"
        )
    check_loss_scale("pretrain", config.loss_scale)
    check_length("pretrain", config)
    if not config.epochs:  # else it is known when the samples are counted
        check_warmup("pretrain", config, config.in_steps(samples=0).steps)
    check_samples(config)
    check_saving(config)
    check_watch("pretrain", config, parallel)
    if config.init != "scratch" and given(config.init_path) is None:
        raise ConfigError(f"pretrain.init {config.init} needs pretrain.init_path: name the folder to start from")
    if config.init == "scratch" and given(config.init_path) is not None:
        raise ConfigError(
            f"pretrain.init_path {config.init_path} is set but pretrain.init is scratch: "
            "set init to checkpoint or huggingface, or empty the path"
        )


def check_length(section: str, config: PretrainConfig | FinetuneConfig) -> None:
    """Raise ConfigError unless length and warm-up are each given in one unit."""
    units = [unit for unit in ("steps", "tokens", "epochs") if hasattr(config, unit)]
    lengths = _given(section, config, units)
    if not lengths:
        raise ConfigError(f"{' and '.join(f'{section}.{unit} 0' for unit in units)}: no length; give one of them")
    if len(lengths) > 1:
        raise ConfigError(f"{' and '.join(lengths)}: each says how long the run is; set all but one to 0")
    warmups = _given(section, config, ["warmup_steps", "warmup_share"])
    if len(warmups) > 1:
        raise ConfigError(f"{' and '.join(warmups)}: both say how long the warm-up is; set one to 0")


def check_warmup(section: str, config: PretrainConfig | FinetuneConfig, steps: int) -> None:
    """Raise ConfigError where the warm-up is longer than the run, which has so many steps."""
    if config.warmup_steps > steps:
        (length,) = _given(section, config, [unit for unit in ("steps", "tokens", "epochs") if hasattr(config, unit)])
        key = length.split(".")[1].split()[0]
        counted = length if key == "steps" else f"the {steps} steps of {length}"
        raise ConfigError(
            f"{section}.warmup_steps {config.warmup_steps} is more than {counted}: lower warmup_steps, or raise {key}"
        )


def _given(section: str, config: PretrainConfig | FinetuneConfig, keys: list[str]) -> list[str]:
    """Those keys that are not 0, with their values."""
    return [f"{section}.{key} {getattr(config, key):.12g}" for key in keys if getattr(config, key)]


def check_samples(config: PretrainConfig) -> None:
    """Raise ConfigError unless the keys that make samples agree."""
    if config.drop_tail and config.packing == "stream":
        raise ConfigError("pretrain.drop_tail: in a stream no document has a tail: set packing to document or bestfit")
    if config.packing != "stream" and config.sequence_length < 2:
        raise ConfigError(f"pretrain.packing {config.packing}: rows of one token; use a longer sequence_length")
    given_weights, corpora = len(config.mixture_weights), len(config.mixture) + 1
    if given_weights not in ({corpora} if config.mixture else {0, 1}):
        raise ConfigError(
            f"pretrain.mixture_weights: {given_weights} given, expected {corpora}: one for the stage's own token "
            "shards, then one for each folder of pretrain.mixture"
        )


def check_saving(config: PretrainConfig) -> None:
    """Raise ConfigError unless each checkpoint that is to be kept is made."""
    every = config.checkpoint_every
    if config.keep_every % every:
        raise ConfigError(
            f"pretrain.keep_every {config.keep_every} is no multiple of pretrain.checkpoint_every {every}: use "
            f"{-(-config.keep_every // every) * every}, or change checkpoint_every"
        )
    if config.keep_best and (not config.validate_every or config.validate_every % every):
        raise ConfigError(
            f"pretrain.keep_best: each validation needs a checkpoint, but validate_every {config.validate_every} is no "
            f"multiple of checkpoint_every {every}: use {-(-max(1, config.validate_every) // every) * every}, or "
            "change checkpoint_every"
        )


def check_watch(section: str, config: WatchConfig, parallel: ParallelConfig) -> None:
    """Raise ConfigError for what cannot be shown here."""
    config.window(section)
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            f"{section}.tensorboard: the package tensorboard is not installed: pip install 'millrace[tensorboard]', or "
            "set it to false"
        )
    if config.draw_schedule and parallel.pp == 1:
        raise ConfigError(
            f"{section}.draw_schedule {config.draw_schedule}: there is no pipeline, since parallel.pp is 1; set it to 0"
        )


def check_watched_steps(section: str, config: WatchConfig, steps: int) -> None:
    """Raise ConfigError where a step is to be looked at that the run, of so many steps, does not have."""
    window = config.window(section)
    for key, last in (("profile", window[1] if window else 0), ("draw_schedule", config.draw_schedule)):
        if last > steps:
            raise ConfigError(
                f"{section}.{key} {getattr(config, key)}: the run has {steps} steps only; name earlier ones"
            )


def check_finetune(
    config: FinetuneConfig, parallel: ParallelConfig, n_layer: int, n_head: int, *, n_embd: int = 0
) -> None:
    """Raise ConfigError unless the two sections agree, also with the model that is tuned."""
    check_parallel(parallel, n_layer, n_head, n_embd=n_embd)
    check_length("finetune", config)
    check_loss_scale("finetune", config.loss_scale)
    check_watch("finetune", config, parallel)
    if config.micro_batch_size > config.global_batch_size:
        raise ConfigError(
            f"finetune.micro_batch_size {config.micro_batch_size} is larger than finetune.global_batch_size "
            f"{config.global_batch_size}: lower it, or set 0"
        )


def replicas(parallel: ParallelConfig, processes: int) -> int:
    """dp_replicate for so many processes in all; ConfigError when the layout does not fill them."""
    rest = parallel.pp * parallel.dp_shard * parallel.tp
    if processes % rest or (parallel.dp_replicate and parallel.dp_replicate * rest != processes):
        raise ConfigError(
            f"parallel: pp {parallel.pp} x dp_replicate {parallel.dp_replicate} x dp_shard {parallel.dp_shard} x "
            f"tp {parallel.tp} does not make {processes} processes: change a degree, or start another number"
        )
    return processes // rest


def data_ranks(parallel: ParallelConfig, processes: int) -> int:
    """Processes that each take another share of the batch, of so many in all."""
    return replicas(parallel, processes) * parallel.dp_shard


def check_parallel(
    parallel: ParallelConfig, n_layer: int, n_head: int, *, n_embd: int = 0, compiled: bool = False
) -> None:
    """Raise ConfigError for a layout that cannot work, with the nearest that does. `n_embd` 0: not known here."""
    check_placements(parallel.placements, parallel.tp, n_layer, n_head, n_embd)
    if (parallel.zero > 0) != (parallel.dp_shard > 1):
        raise ConfigError(
            f"parallel: zero {parallel.zero} over dp_shard {parallel.dp_shard}: give zero 1, 2 or 3 two processes or "
            "more to shard over, or set zero 0 and dp_shard 1"
        )
    if parallel.offload == "auto":
        raise ConfigError(
            "parallel.offload auto: nothing is placed by the memory that is left yet; say what lives on the host: "
            "optimizer, or all with zero 1, 2 or 3, or none"
        )
    if parallel.offload == "all" and not parallel.zero:
        raise ConfigError("parallel.offload all: needs zero 1, 2 or 3; without ZeRO set offload to optimizer")
    _check_pipeline(parallel, n_layer, compiled=compiled)


def _torch_release() -> tuple[int, ...]:
    """(2, 13) of torch 2.13.0+cu130, without importing it."""
    return tuple(int(number) for number in version("torch").split(".")[:2])


def needs_newer_torch(parallel: ParallelConfig) -> bool:
    """Whether the schedule splits backward passes, which torch before 2.13 cannot do with the fused loss."""
    return parallel.pp > 1 and parallel.schedule in ZERO_BUBBLE and _torch_release() < (2, 13)


def _check_pipeline(parallel: ParallelConfig, n_layer: int, *, compiled: bool) -> None:
    schedule, stages = parallel.schedule, parallel.pp * parallel.chunks
    if parallel.pp == 1:
        if parallel.chunks > 1 or parallel.microbatches:
            raise ConfigError("parallel: chunks and microbatches are a pipeline's: set pp, or chunks 1, microbatches 0")
        if parallel.stages not in ("uniform", "balanced"):
            raise ConfigError(
                f"parallel.stages {parallel.stages}: there is one stage only, since parallel.pp is 1; set it to uniform"
            )
        return
    expected = 1 if schedule in ONE_STAGE_EACH else 2 if schedule in TWO_STAGES_EACH else max(2, parallel.chunks)
    if parallel.chunks != expected:
        needed = "1 stage" if expected == 1 else "2 stages" if schedule in TWO_STAGES_EACH else "2 stages or more"
        raise ConfigError(
            f"parallel.chunks {parallel.chunks}: schedule {schedule} has {needed} per process; set chunks to {expected}"
        )
    if stages > n_layer:
        raise ConfigError(f"parallel: {stages} pipeline stages for {n_layer} layers: lower pp or chunks")
    if parallel.stages not in ("uniform", "balanced"):
        sizes = parallel.stages.split(",")
        if not all(size.isdigit() and int(size) for size in sizes) or (len(sizes), sum(map(int, sizes))) != (
            stages,
            n_layer,
        ):
            raise ConfigError(
                f"parallel.stages {parallel.stages}: expected uniform, balanced, or {stages} numbers of layers that "
                f"make {n_layer}"
            )
    if needs_newer_torch(parallel):
        raise ConfigError(
            f"parallel.schedule {schedule}: splits backward passes, which torch before 2.13 cannot do with the fused "
            "loss; use interleaved_1f1b, or a newer torch"
        )
    if schedule in ZERO_BUBBLE and parallel.zero > 1:
        raise ConfigError(
            f"parallel.zero {parallel.zero} with schedule {schedule}: its weight gradients come after ZeRO has let go "
            "of weights and gradients; use zero 1, or interleaved_1f1b"
        )
    if schedule in ZERO_BUBBLE and parallel.activation_checkpointing == "selective":
        raise ConfigError(
            f"parallel.activation_checkpointing selective with schedule {schedule}: what it keeps can be taken once, "
            "and the schedule goes backward twice; use full, or interleaved_1f1b"
        )
    if schedule in ZERO_BUBBLE and compiled:
        raise ConfigError(
            f"pretrain.compile with schedule {schedule}: it splits backward passes, which compiled blocks cannot; set "
            "compile to false, or use interleaved_1f1b"
        )


def micro_batch(parallel: ParallelConfig, section: str, share: int, micro_batch_size: int) -> int:
    """Samples per forward pass of a process whose share of a step is so many; ConfigError where none fits.

    A pipeline needs several: without any word of the user's, twice as many as it has processes, or the nearest.
    """
    least, count = least_microbatches(parallel), parallel.microbatches
    fitting = [number for number in _divisors(share) if number >= least and _fills_rounds(number, parallel)]
    if parallel.pp > 1 and not count and not micro_batch_size:
        count = min(fitting, key=lambda number: abs(number - 2 * parallel.pp), default=0)
    size = share // count if count else micro_batch_size or share
    if not size or share % size or (count and (share % count or micro_batch_size not in (0, size))):
        raise ConfigError(
            f"{section}.micro_batch_size {micro_batch_size}, parallel.microbatches {parallel.microbatches}: "
            f"a process's share of {share} samples is no whole number of them; use sizes {_choices(_divisors(share))}"
        )
    if share // size < least:
        raise ConfigError(
            f"parallel.schedule {parallel.schedule}: needs {least} micro batches or more, here are {share // size} of "
            f"{size} samples; lower the micro batch size, or raise {section}.global_batch_size"
        )
    if not _fills_rounds(share // size, parallel):
        others = f"{_choices(fitting)} of them" if fitting else "another batch size, or 1f1b"
        raise ConfigError(
            f"parallel.schedule {parallel.schedule}: {share // size} micro batches over {parallel.pp} processes make "
            f"no rounds of equal length; use {others}"
        )
    return size


def least_microbatches(parallel: ParallelConfig) -> int:
    """Fewer micro batches per step are not enough for the schedule."""
    return parallel.pp * (2 if parallel.pp > 1 and parallel.schedule == "dualpipev" else 1)


def _fills_rounds(number: int, parallel: ParallelConfig) -> bool:
    """Whether the schedule can deal out so many micro batches."""
    return parallel.pp == 1 or parallel.schedule not in IN_ROUNDS or number % max(1, number // parallel.pp) == 0


def fill_schedule(parallel: ParallelConfig, passes: int) -> int:
    """How many micro batches a step of so many becomes, with empty ones, that the schedule can deal out."""
    number = max(passes, least_microbatches(parallel))
    while not _fills_rounds(number, parallel):
        number += 1
    return number


def check_batch(section: str, global_batch: int, ranks: int) -> int:
    """A data-parallel process's share of the global batch; ConfigError unless all shares are equal."""
    if global_batch % ranks:
        raise ConfigError(
            f"{section}.global_batch_size {global_batch} does not divide by {ranks} data-parallel processes: "
            f"use a multiple of {ranks}, or {_choices(_divisors(global_batch))} processes"
        )
    return global_batch // ranks


def layout(parallel: ParallelConfig, processes: int) -> dict[str, Any]:
    """The layout in words for the log and the provenance."""
    return {**dataclasses.asdict(parallel), "dp_replicate": replicas(parallel, processes), "processes": processes}


def _divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if number % i == 0]


def _choices(numbers: list[int]) -> str:
    shown = [str(number) for number in numbers]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
