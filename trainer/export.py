"""Stage `export`: the trained model as a Hugging Face folder.

pretrain's checkpoints + tokenizer -> config.json, model.safetensors, generation_config.json, tokenizer.json,
tokenizer_config.json: what `GPT2LMHeadModel.from_pretrained` and `AutoTokenizer.from_pretrained` open

    python -m trainer.export pretrain/ tokenizer/ export/
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import store
from pipelines.command import Output, Source
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from pipelines.tokens import TokenMeta
from trainer.records import newest_checkpoint, read_record

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.model import GPT2, Architecture

VERSION = 2
SHAPED_BY = ("safetensors", "tokenizers")


def export(run: StageRun, pretrain: Source, tokenizer: Source, output: Output) -> dict[str, Any]:
    """Convert the newest checkpoint; the tokenizer has to be the one that made the training tokens."""
    facts = write_folder(newest_checkpoint(pretrain.path), tokenizer.path, output.folder)
    run.adopt(output, Counts(1, 1))
    return facts


def write_folder(checkpoint: Path, tokenizer: Path, folder: Path) -> dict[str, Any]:
    """A checkpoint of any layout and its tokenizer as a Hugging Face folder; returns its step and size."""
    from trainer import huggingface

    record = read_record(checkpoint)
    meta = TokenMeta(**record["tokenizer"])
    huggingface.require_same_tokenizer(tokenizer, meta, checkpoint)
    shape, weights = read_checkpoint(checkpoint, record)
    ends = {"bos_token_id": meta.end_of_text, "eos_token_id": meta.end_of_text}
    huggingface.save_folder(folder, shape, weights, ends)
    store.write_json(folder / "generation_config.json", ends)
    huggingface.save_tokenizer(tokenizer, folder, shape.n_positions)
    return {"step": record["step"], "parameters": sum(weight.numel() for weight in weights.values())}


def read_checkpoint(
    folder: Path, record: dict[str, Any], kind: "type[GPT2] | None" = None
) -> "tuple[Architecture, dict[str, Tensor]]":
    """The model in a checkpoint, of a `kind`, else a language model; read by this process alone."""
    from trainer.checkpoint import load, model_tensors, require_whole
    from trainer.model import Architecture, LanguageModel

    require_whole(folder, alone=True)
    shape = Architecture(**record["model"])
    model = (kind or LanguageModel)(shape)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    load(folder, model_tensors(weights, shape.vocab_size), alone=True)
    return shape, weights


if __name__ == "__main__":
    stage_main("trainer.export")
