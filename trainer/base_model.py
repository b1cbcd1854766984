"""What fine-tuning starts from: a Hugging Face folder of a GPT-2, or a checkpoint of any layout, and its tokenizer.

A checkpoint is written into scratch as the folder that `export` would make of it, so that there is one way to begin.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import store
from pipelines.errors import UserError
from pipelines.tokens import TokenMeta
from trainer.exported import read_sizes
from trainer.records import checkpoints, newest_checkpoint

if TYPE_CHECKING:
    from trainer.model import Architecture

CONFIG = "config.json"
MOST_PADDING = 1024
"""Rows that a model without a tokenizer of its own may have beyond the tokens: embeddings are padded, as to 50,304."""
VOCABULARY = "vocab.json"
"""GPT-2's tokens in a Hugging Face folder without a tokenizer.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """A folder with a model and one with its tokenizer, often the same."""

    folder: Path
    tokenizer: Path

    @property
    def shape(self) -> "Architecture":
        """The model's sizes; UserError when it is none that the trainer can compute."""
        from trainer import huggingface

        return huggingface.read_architecture(self.folder)


def open_base_model(base: Path, tokenizer: Path | None, meta: TokenMeta, rows: Path, scratch: Path) -> BaseModel:
    """The model at `base`, which has to read the tokens of `rows`, made with the tokenizer that `meta` names.

    Raises UserError when there is no model, its tokenizer is missing, or it is another one.
    """
    from trainer import huggingface

    if not (base / CONFIG).exists():
        return _from_checkpoint(base, tokenizer, meta, rows, scratch)
    huggingface.require_same_tokenizer(tokenizer or base, meta, rows)
    if (size := read_sizes(base)["vocab_size"]) < meta.vocab_size:
        raise UserError(
            f"{base / CONFIG}: has {size} tokens, the tokenizer that made {rows} {meta.vocab_size}; use the model's own"
        )
    # The base model may have more, as the padding token of an earlier fine-tuning.
    ours, theirs = _vocabulary(tokenizer or base), _vocabulary(base)
    if theirs is None and size > meta.vocab_size + MOST_PADDING:
        raise UserError(
            f"{base / CONFIG}: has {size} tokens, the tokenizer that made {rows} {meta.vocab_size}; it is another "
            "model's, so use this one's own"
        )
    if ours is not None and theirs is not None and not ours.items() <= theirs.items():
        raise UserError(f"{base}: its vocabulary is not that of {tokenizer}, which made {rows}; use one for both")
    return BaseModel(folder=base, tokenizer=tokenizer or base)


def _from_checkpoint(base: Path, tokenizer: Path | None, meta: TokenMeta, rows: Path, scratch: Path) -> BaseModel:
    from trainer import huggingface
    from trainer.export import write_folder

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
    huggingface.require_same_tokenizer(folder, meta, rows)
    return BaseModel(folder=folder, tokenizer=folder)


def _vocabulary(folder: Path) -> dict[str, Any] | None:
    """Token -> id; None where the folder has no tokenizer of its own."""
    from tokenizers import Tokenizer

    from trainer.huggingface import TOKENIZER

    if (folder / TOKENIZER).exists():
        return Tokenizer.from_file(str(folder / TOKENIZER)).get_vocab()
    return store.read_json(folder / VOCABULARY) if (folder / VOCABULARY).exists() else None
