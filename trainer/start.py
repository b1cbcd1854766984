"""What a pretraining starts from when it has no checkpoint of its own: seeded weights, or what `init` names.

A folder that does not do is refused before any process starts, from its files alone and without torch.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.errors import ConfigError, UserError
from trainer.config import ModelConfig, PretrainConfig
from trainer.exported import SIZES, check_weights, read_sizes
from trainer.records import newest_checkpoint, read_record, require_same_model

if TYPE_CHECKING:
    from trainer.loop import Training


def find_start(config: PretrainConfig, model: ModelConfig, tokenizer: dict[str, Any], train: Path) -> Path | None:
    """The checkpoint or the Hugging Face folder to start from; None with seeded weights.

    Raises UserError unless it is of this model, and a checkpoint also of the tokenizer that made the tokens `train`,
    and before the run's last step.
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
    if record["step"] >= config.steps:
        raise ConfigError(
            f"pretrain.steps {config.steps}: {path} is at step {record['step']} already; ask for more steps"
        )
    if record["tokenizer"] != tokenizer:
        raise UserError(
            f"{path}: trained on tokens of another tokenizer than {train}; tokenize with that one, or start from "
            "another checkpoint"
        )
    return folder


def begin(training: "Training", config: PretrainConfig, folder: Path | None) -> None:
    """Before the first step: take the weights, of a checkpoint also its step, optimizer and place in the data.

    `folder`: what `find_start` found.
    """
    if folder is None:
        return
    if config.init == "huggingface":
        from trainer import huggingface

        huggingface.fill(training.model.weights, huggingface.read_weights(folder), folder)
        return
    record = training.restore(folder)
    if _order(record) != _order(training.identity):
        # Other data, another order or other samples: they are taken from the beginning.
        training.position = 0


def _order(record: dict[str, Any]) -> list[Any]:
    """All that decides which sample stands at which place."""
    section, data = record["pretrain"], record["data"]
    shaping = [section.get(key) for key in ("seed", "sequence_length", "packing", "drop_tail", "mixture_weights")]
    return [data["train"], data.get("mixture"), *shaping]
