"""Start a pretraining that has no checkpoint of its own: from seeded weights, or from what `init` names.

An unsuitable folder is refused before any process starts, from its files alone and without torch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import ConfigError, UserError
from trainer.config import ModelConfig, PretrainConfig
from trainer.weights.exported import SIZES, check_weights, read_sizes
from trainer.weights.records import newest_checkpoint, read_record, require_same_model, require_same_optimizer

if TYPE_CHECKING:
    from trainer.loop.training import Training


def find_start(
    config: PretrainConfig, steps: int, model: ModelConfig, tokenizer: dict[str, Any], train: Path
) -> Path | None:
    """Return the checkpoint or the Hugging Face folder to start from; None for seeded weights.

    Raises UserError unless it holds this model. A checkpoint must also have the tokenizer of the tokens `train`, and be
    from before the last of the run's `steps`.
    """
    if config.init == "scratch":
        return None
    path = Path(config.init_path)
    shape = {name: tokenizer[name] if name == "vocab_size" else getattr(model, name) for name in SIZES}
    if config.init == "huggingface":
        require_same_model(path, {"model": read_sizes(path)}, shape)
        check_weights(path)
        return path
    folder = newest_checkpoint(path)
    record = read_record(folder)
    require_same_model(folder, record, {**shape, "num_labels": 0})
    require_same_optimizer(folder, record, config.optimizer)
    if record["step"] >= steps:
        raise ConfigError(f"pretrain.steps {steps}: {path} is at step {record['step']} already; ask for more steps")
    if record["tokenizer"] != tokenizer:
        raise UserError(
            f"{path}: trained on tokens of another tokenizer than {train}; tokenize with that one, or start from "
            "another checkpoint"
        )
    return folder


def require_sizes(folder: Path, model: ModelConfig) -> None:
    """Raise UserError unless a Hugging Face folder holds a model of this section, whatever its vocabulary."""
    expected = {name: getattr(model, name) for name in SIZES if name != "vocab_size"}
    require_same_model(folder, {"model": read_sizes(folder)}, expected)


def begin(training: "Training", config: PretrainConfig, folder: Path | None) -> None:
    """Load the weights before the first step; from a checkpoint also step, optimizer and position in the data.

    `folder`: the result of `find_start`.
    """
    if folder is None:
        return
    if config.init == "huggingface":
        from trainer.weights import huggingface

        huggingface.fill(training.model.masters, huggingface.read_weights(folder), folder)
        training.model.take_masters()
        return
    record = training.restore(folder)
    if _order(record) != _order(training.identity):
        # Other data, another order or other samples: read them from the beginning.
        training.position = 0


def _order(record: dict[str, Any]) -> list[Any]:
    """Return everything that decides which sample comes at which position."""
    section, data = record.get("pretrain", {}), record.get("data", {})
    shaping = [section.get(key) for key in ("seed", "sequence_length", "packing", "drop_tail", "mixture_weights")]
    return [data.get("train"), data.get("mixture"), *shaping]
