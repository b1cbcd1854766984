"""Read the model out of a checkpoint of any layout, and write it as a Hugging Face folder.

Apart from `huggingface.py`, with which stages that never see a checkpoint read their models: a change of how
checkpoints are saved reruns none of those.
"""

from pathlib import Path
from typing import Any

from torch import Tensor

from pipelines import store
from trainer.model import GPT2, Architecture, LanguageModel
from trainer.weights.checkpoint import load, model_tensors, require_whole
from trainer.weights.huggingface import require_same_tokenizer, save_folder, save_tokenizer
from trainer.weights.index import check_model, read_index
from trainer.weights.records import read_record, tokenizer_of


def write_folder(checkpoint: Path, tokenizer: Path, folder: Path) -> dict[str, Any]:
    """Write a checkpoint of any layout, and its tokenizer, as a Hugging Face folder; return its step and size."""
    record = read_record(checkpoint)
    meta = tokenizer_of(checkpoint, record)
    require_same_tokenizer(tokenizer, meta, checkpoint)
    shape, weights = read_checkpoint(checkpoint, record)
    ends = {"bos_token_id": meta.end_of_text, "eos_token_id": meta.end_of_text}
    save_folder(folder, shape, weights, ends)
    store.write_json(folder / "generation_config.json", ends)
    save_tokenizer(tokenizer, folder, shape.n_positions)
    return {"step": record["step"], "parameters": sum(weight.numel() for weight in weights.values())}


def read_checkpoint(
    folder: Path, record: dict[str, Any], kind: type[GPT2] = LanguageModel
) -> tuple[Architecture, dict[str, Tensor]]:
    """Return the sizes and weights of a checkpoint's model, which is of class `kind`."""
    model = read_model(folder, record, kind)
    return model.shape, {name: weight.detach() for name, weight in model.named_parameters()}


def read_model(folder: Path, record: dict[str, Any], kind: type[GPT2]) -> GPT2:
    """Read the model of a checkpoint, of class `kind`, in this process alone."""
    require_whole(folder, alone=True)
    check_model(folder, read_index(folder), record["model"])
    model = kind(Architecture(**record["model"]))
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    load(folder, model_tensors(weights, model.shape.vocab_size))
    return model
