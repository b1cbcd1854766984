"""The model that fine-tuning starts from: a Hugging Face folder of a GPT-2 or a checkpoint, and its tokenizer.

A checkpoint is first exported to scratch, as `export` would do it, so that fine-tuning always starts from a folder.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import store
from pipelines.errors import UserError
from pipelines.tokens import TokenMeta
from trainer.weights.exported import CONFIG, read_object, read_sizes
from trainer.weights.records import checkpoints, newest_checkpoint

if TYPE_CHECKING:
    from trainer.model import Architecture

MOST_PADDING = 1024
"""Most rows beyond the tokens in a model without its own tokenizer: embeddings are padded, for example to 50,304."""
VOCABULARY = "vocab.json"
"""GPT-2's tokens in a Hugging Face folder without a tokenizer.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """A folder with a model and one with its tokenizer, often the same."""

    folder: Path
    tokenizer: Path

    @property
    def shape(self) -> "Architecture":
        """Return the model's sizes. Raises UserError if the trainer cannot compute this model."""
        from trainer.weights import huggingface

        return huggingface.read_architecture(self.folder)


def open_base_model(base: Path, tokenizer: Path | None, meta: TokenMeta, rows: Path, scratch: Path) -> BaseModel:
    """Open the model at `base`, for the tokens of `rows`, which the tokenizer in `meta` made.

    Raises UserError if there is no model, or if its tokenizer is missing or is a different one.
    """
    from trainer.weights import huggingface

    if not (base / CONFIG).exists():
        return _from_checkpoint(base, tokenizer, meta, rows, scratch)
    huggingface.require_same_tokenizer(tokenizer or base, meta, rows)
    if (size := read_sizes(base)["vocab_size"]) < meta.vocab_size:
        raise UserError(
            f"{base / CONFIG}: has {size} tokens, the tokenizer that made {rows} {meta.vocab_size}; use the model's own"
        )
    # The base model may have more tokens, such as the padding token of an earlier fine-tuning.
    vocabulary, base_vocabulary = _vocabulary(tokenizer or base), _vocabulary(base)
    if base_vocabulary is None and size > meta.vocab_size + MOST_PADDING:
        raise UserError(
            f"{base / CONFIG}: has {size} tokens, the tokenizer that made {rows} {meta.vocab_size}; it is another "
            "model's, so use this one's own"
        )
    if vocabulary is not None and base_vocabulary is not None and not vocabulary.items() <= base_vocabulary.items():
        raise UserError(f"{base}: its vocabulary is not that of {tokenizer}, which made {rows}; use one for both")
    return BaseModel(folder=base, tokenizer=tokenizer or base)


def _from_checkpoint(base: Path, tokenizer: Path | None, meta: TokenMeta, rows: Path, scratch: Path) -> BaseModel:
    from trainer.weights.conversion import write_folder
    from trainer.weights.huggingface import require_same_tokenizer

    if not (base.name.startswith("step-") or checkpoints(base)):
        raise UserError(f"{base}: neither a Hugging Face folder ({CONFIG}) nor one with checkpoints (step-*)")
    checkpoint = newest_checkpoint(base)
    if tokenizer is None:
        raise UserError(f"{checkpoint}: a checkpoint has no tokenizer; name its folder with --tokenizer")
    folder = scratch / "base"
    if not (folder / CONFIG).exists():
        unfinished = scratch / "base.unfinished"
        store.remove(unfinished)
        write_folder(checkpoint, tokenizer, unfinished)
        store.rename(unfinished, folder)
    require_same_tokenizer(folder, meta, rows)
    return BaseModel(folder=folder, tokenizer=folder)


def _vocabulary(folder: Path) -> dict[str, Any] | None:
    """Return token -> id; None if the folder has no tokenizer."""
    from trainer.weights.huggingface import TOKENIZER, open_tokenizer

    if (folder / TOKENIZER).exists():
        return open_tokenizer(folder).get_vocab()
    return read_object(folder / VOCABULARY) if (folder / VOCABULARY).exists() else None
