"""Stage `export`: write the trained model as a Hugging Face folder.

pretrain's checkpoints + tokenizer -> config.json, model.safetensors, generation_config.json, tokenizer.json,
tokenizer_config.json, for `GPT2LMHeadModel.from_pretrained` and `AutoTokenizer.from_pretrained`

    python -m trainer.export pretrain/ tokenizer/ export/
"""

from typing import Any

from pipelines.command import Output, Source, StageSpec
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from trainer.weights.records import newest_checkpoint

VERSION = 2
SHAPED_BY = ("safetensors", "tokenizers")


def export(run: StageRun, pretrain: Source, tokenizer: Source, output: Output) -> dict[str, Any]:
    """Convert the newest checkpoint; the tokenizer must be the one of the training tokens."""
    from trainer.weights.conversion import write_folder

    facts = write_folder(newest_checkpoint(pretrain.path), tokenizer.path, output.folder)
    run.summary = f"{facts['parameters']:,} parameters after step {facts['step']:,}"
    run.register_outputs(output, Counts(1, 1))
    return facts


STAGE = StageSpec.of(export, VERSION, SHAPED_BY)

if __name__ == "__main__":
    stage_main("trainer.export")
