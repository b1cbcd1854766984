"""The trainer's parameters, and the checks that they agree: all of it before any process starts, without torch.

Sections `model`, `parallel`, `pretrain`, `finetune`, `evaluate` of `params.yaml`. What cannot change the
trained model (layout, micro batch, compilation, cadences) is left out of a section's `identity()`, so an
unfinished run goes on with other values.
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval

from pipelines.config import Count, NonNegative, Positive, Share, SourcePath, given, to_plain
from pipelines.errors import ConfigError

Probability = Annotated[float, Interval(ge=0, lt=1)]
"""A share that stays below 1."""
NonNegativeFloat = Annotated[float, Ge(0)]
"""A number, at least 0."""
Precision = Literal["fp32", "bf16"]
Schedule = Literal["cosine", "linear", "constant"]


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
    zero: Literal[0, 1, 2, 3] = 0
    """What dp_shard shards: 1 optimizer state, 2 gradients too, 3 parameters too."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What lives in the host's memory."""
    schedule: Literal[
        "gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev"
    ] = "1f1b"
    """Order of the pipeline's forward and backward passes."""
    microbatches: NonNegative = 0
    """Pipeline micro batches per step; 0: from the micro batch size."""
    chunks: Count = 1
    """Pipeline stages per process, for the interleaved schedules."""
    activation_checkpointing: Literal["none", "full"] = "none"
    """What is computed again in the backward pass instead of kept."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; auto: on GPUs where there are any."""
    determinism: Literal["auto", "exact", "fast"] = "auto"
    """exact: equal to the last bit in the same layout, one thread per process; auto: exact on CPUs, fast on GPUs."""

    def identity(self) -> dict[str, Any]:
        """Nothing: every layout trains the same model."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """Pretraining on token shards."""

    seed: NonNegative = 0
    """Seed of initial weights, sample order and dropout."""
    init: Literal["scratch", "checkpoint", "huggingface"] = "scratch"
    """Start from seeded weights, from a checkpoint (its step, optimizer and data position go on), or from weights
    in a Hugging Face folder."""
    init_path: SourcePath = ""
    """Folder to start from: pretrain's output or one step-* folder of it, or a Hugging Face folder."""
    steps: Count = 1000
    """Optimizer steps; with init checkpoint, counted from that run's first step."""
    sequence_length: Count = 1024
    """Tokens per sample, at most model.n_positions."""
    global_batch_size: Count = 32
    """Samples per step, over all processes."""
    micro_batch_size: NonNegative = 0
    """Samples per forward pass of one process, a question of memory; 0: its whole share of the batch."""
    lr: Positive = 6e-4
    """Highest learning rate."""
    schedule: Schedule = "cosine"
    """How the learning rate falls after the warm-up."""
    warmup_steps: NonNegative = 100
    """Steps over which the learning rate rises from 0."""
    final_lr_share: Share = 0.1
    """Learning rate at the last step, as a share of the highest."""
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
    compile: bool = False
    """Compile each block with torch.compile: slow start, fast steps."""
    validate_every: NonNegative = 100
    """Steps between validations; always before the first and after the last step, 0: only then."""
    validation_samples: NonNegative = 0
    """Validate on the first so many samples; 0: on all."""
    checkpoint_every: Count = 100
    """Steps between checkpoints; the last step always has one."""
    keep: Count = 2
    """Checkpoints kept and published."""
    log_every: Count = 10
    """Steps between lines of the log, where there is no terminal for a progress bar."""

    def identity(self) -> dict[str, Any]:
        """All that shapes the weights or the curve."""
        return _without(self, "micro_batch_size", "compile", "checkpoint_every", "keep", "log_every")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneConfig:
    """Fine-tuning of an exported model as a classifier on one GLUE task."""

    seed: NonNegative = 42
    """Seed of the new head's weights, row order and dropout."""
    epochs: Count = 3
    """Passes over the training rows; each epoch's last, smaller batch is kept."""
    global_batch_size: Count = 32
    """Rows per step, over all processes."""
    micro_batch_size: NonNegative = 0
    """Rows per forward pass of one process; 0: its whole share of the batch."""
    lr: Positive = 2.4e-5
    """Highest learning rate."""
    schedule: Schedule = "linear"
    """How the learning rate falls after the warm-up."""
    warmup_share: Share = 0.1
    """Share of all steps over which the learning rate rises from 0."""
    final_lr_share: Share = 0.0
    """Learning rate at the last step, as a share of the highest."""
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
    checkpoint_every: Count = 500
    """Steps between checkpoints, for going on after a kill; none of them is published."""
    log_every: Count = 10
    """Steps between lines of the log, where there is no terminal for a progress bar."""

    def identity(self) -> dict[str, Any]:
        """All that shapes the weights or the curve."""
        return _without(self, "micro_batch_size", "checkpoint_every", "log_every")


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


NOT_YET: dict[str, tuple[Any, str]] = {
    "pp": (1, "pipeline parallelism is not there yet: set parallel.pp to 1"),
    "dp_shard": (1, "sharded data parallelism is not there yet: set parallel.dp_shard to 1 and use dp_replicate"),
    "tp": (1, "tensor parallelism is not there yet: set parallel.tp to 1"),
    "zero": (0, "ZeRO is not there yet: set parallel.zero to 0"),
    "offload": ("none", "offloading is not there yet: set parallel.offload to none"),
    "microbatches": (0, "pipeline micro batches need pipeline stages: set parallel.microbatches to 0"),
    "chunks": (1, "several stages per process need pipeline stages: set parallel.chunks to 1"),
    "activation_checkpointing": (
        "none",
        "this is not there yet: set parallel.activation_checkpointing to none, or lower the micro batch size",
    ),
}
"""Key of ParallelConfig -> (the only value this release does, what to do about another)."""


def require_done(parallel: ParallelConfig, *keys: str) -> None:
    """Raise ConfigError for a value that this release refuses; `parallel/` calls it for its own keys."""
    for key in keys or NOT_YET:
        value, fix = NOT_YET[key]
        if getattr(parallel, key) != value:
            raise ConfigError(f"parallel.{key} {getattr(parallel, key)}: {fix}")


def check_model(model: ModelConfig) -> None:
    """Raise ConfigError when the heads do not divide the width."""
    if model.n_embd % model.n_head:
        raise ConfigError(
            f"model.n_head {model.n_head} does not divide model.n_embd {model.n_embd}: "
            f"use {_choices(_divisors(model.n_embd))} heads"
        )


def check_pretrain(config: PretrainConfig, model: ModelConfig, parallel: ParallelConfig) -> None:
    """Raise ConfigError unless the three sections agree."""
    require_done(parallel)
    check_model(model)
    if config.sequence_length > model.n_positions:
        raise ConfigError(
            f"pretrain.sequence_length {config.sequence_length} is longer than model.n_positions "
            f"{model.n_positions}: shorten the one or raise the other"
        )
    if config.warmup_steps > config.steps:
        raise ConfigError(
            f"pretrain.warmup_steps {config.warmup_steps} is more than pretrain.steps {config.steps}: lower it"
        )
    if config.init != "scratch" and given(config.init_path) is None:
        raise ConfigError(f"pretrain.init {config.init} needs pretrain.init_path: name the folder to start from")
    if config.init == "scratch" and given(config.init_path) is not None:
        raise ConfigError(
            f"pretrain.init_path {config.init_path} is set but pretrain.init is scratch: "
            "set init to checkpoint or huggingface, or empty the path"
        )


def check_finetune(config: FinetuneConfig, parallel: ParallelConfig) -> None:
    """Raise ConfigError unless the two sections agree."""
    require_done(parallel)
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


def check_batch(section: str, global_batch: int, micro_batch: int, ranks: int) -> None:
    """Raise ConfigError unless the global batch divides into `ranks` equal shares of whole micro batches."""
    if global_batch % ranks:
        raise ConfigError(
            f"{section}.global_batch_size {global_batch} does not divide by {ranks} data-parallel processes: "
            f"use a multiple of {ranks}, or {_choices(_divisors(global_batch))} processes"
        )
    share = global_batch // ranks
    if micro_batch and share % micro_batch:
        raise ConfigError(
            f"{section}.micro_batch_size {micro_batch} does not divide a process's share of {share} samples: "
            f"use {_choices(_divisors(share))}"
        )


def layout(parallel: ParallelConfig, processes: int) -> dict[str, Any]:
    """The layout in words for the log and the provenance."""
    return {**dataclasses.asdict(parallel), "dp_replicate": replicas(parallel, processes), "processes": processes}


def _divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if number % i == 0]


def _choices(numbers: list[int]) -> str:
    shown = [str(number) for number in numbers]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"
