"""Stage `export`: write the trained model as a Hugging Face folder.

pretrain's checkpoints + tokenizer -> config.json, model.safetensors, generation_config.json, tokenizer.json,
tokenizer_config.json, for `GPT2LMHeadModel.from_pretrained` and `AutoTokenizer.from_pretrained`. transformers opens
the folder before it is published: its logits on two rows must be the checkpoint's, and its tokens the tokenizer's.

    python -m trainer.export pretrain/ tokenizer/ export/

`python -m trainer.push` uploads the folder to the Hub, with the card that `python -m trainer.card` writes.
"""

import logging
from typing import Any

from pipelines import oracle
from pipelines.command import Limit, Output, Source, StageSpec
from pipelines.manifest import Counts
from pipelines.progress import waiting
from pipelines.run import StageRun
from pipelines.stage import stage_main
from trainer.weights.records import newest_checkpoint

VERSION = 3
SHAPED_BY = ("safetensors", "tokenizers")

logger = logging.getLogger(__name__)


def export(run: StageRun, pretrain: Source, tokenizer: Source, output: Output) -> dict[str, Any]:
    """Convert the newest checkpoint; the tokenizer must be the one of the training tokens."""
    checkpoint = newest_checkpoint(pretrain.path, run.limit)
    with waiting(f"export: writing the weights of {checkpoint}"):
        from trainer.weights.by_transformers import LIBRARY, check_export
        from trainer.weights.conversion import write_folder

        facts = write_folder(checkpoint, tokenizer.path, output.folder)
    with waiting("export: opening them with transformers, to compare its logits"):
        checked, difference = check_export(checkpoint, output.folder)
    if difference is not None:
        run.provenance["largest_difference_of_logits"] = difference
        logger.info("export: transformers' logits differ from the checkpoint's by at most %.2g", difference)
    run.summary = f"{facts['parameters']:,} parameters after step {facts['step']:,}"
    run.register_outputs(output, Counts(1, 1))
    return facts | {"oracles": oracle.report(run.name, [LIBRARY], checked)}


STAGE = StageSpec.of(
    export,
    VERSION,
    SHAPED_BY,
    sources={
        "pretrain": "the output of pretrain",
        "tokenizer": "the tokenizer of its tokens: the output of tokenizer",
    },
    limit=Limit("steps: it exports the newest checkpoint of these"),
)

if __name__ == "__main__":
    stage_main("trainer.export")
