"""transformers as the oracle of an export: it opens the folder, and its logits are compared with the checkpoint's.

If another version than the proven one cannot open it, all rows count as different, and the reason is said.

Both compute the same few rows in fp32, one after the other, so that only one model is in memory; the rows are short, so
that 1.5B parameters take seconds, not minutes.
"""

import gc
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipelines import oracle
from pipelines.errors import UserError
from pipelines.imports import show_pandas
from pipelines.manifest import Counts
from trainer.model import LanguageModel
from trainer.weights.conversion import read_model
from trainer.weights.exported import read_sizes
from trainer.weights.huggingface import end_of_text_id, open_tokenizer
from trainer.weights.records import read_record

logger = logging.getLogger(__name__)

LIBRARY = "transformers"
ROWS, LENGTH = 2, 64
"""Rows that are computed, and their tokens: drawn by a fixed seed among all tokens of the vocabulary."""
TOLERANCE = 1e-4
"""Largest difference of two logits, as a share of the largest logit: kernels sum in different orders."""
_SENTENCE = "The mill's wheel turned 300 times, naïvely.\n"
_TOKENS = "what its tokenizer makes of a sentence"


def check_export(checkpoint: Path, folder: Path) -> tuple[Counts, float | None]:
    """Return the number of rows compared, and the largest difference between logits of checkpoint and export.

    The difference is None if another version of transformers than the proven one cannot open the export. Raises
    UserError if the proven one cannot, or computes something else.
    """
    ids = _sample(read_sizes(folder))
    ours = _compute(read_model(checkpoint, read_record(checkpoint), LanguageModel).eval(), ids)
    gc.collect()  # the model goes before the next comes
    counts = Counts()
    try:
        theirs, tokens = _by_transformers(folder, ids)
    except Exception as error:  # noqa: BLE001 (a library of any version can raise anything)
        _refuse_or_count(folder, error, counts)
        return counts, None
    expected = (open_tokenizer(folder).encode(_SENTENCE, add_special_tokens=False).ids, end_of_text_id(folder))
    differences = (ours - theirs).abs().amax(dim=(1, 2))
    limit = TOLERANCE * max(1.0, float(ours.abs().max()))
    for row, difference in enumerate(differences.tolist()):
        what = f"its logits (largest difference {difference:.2g}, expected at most {limit:.2g})"
        # A difference that is no number is no equality.
        oracle.compare(counts, LIBRARY, equal=difference <= limit, row=f"{folder}: row {row}", what=what)
    oracle.compare(counts, LIBRARY, equal=tokens == expected, row=f"{folder}", what=_TOKENS)
    return counts, float(differences.max())


def _refuse_or_count(folder: Path, error: Exception, counts: Counts) -> None:
    """Raise UserError if the proven version cannot open the export; count all rows as different if another cannot."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    problem = f"{folder}: {LIBRARY} {oracle.installed(LIBRARY)} cannot open the export ({reason})"
    if oracle.is_proven(LIBRARY):
        raise UserError(f"{problem}; please report it") from None
    logger.warning("export: %s; it is published, since equality is proven for another version", problem)
    for _ in range(ROWS + 1):
        oracle.compare(counts, LIBRARY, equal=False, row=f"{folder}", what="the export")


def _sample(sizes: dict[str, int]) -> Tensor:
    length = min(LENGTH, sizes["n_positions"])
    return torch.randint(sizes["vocab_size"], (ROWS, length), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def _compute(model: Any, ids_BT: Tensor) -> Tensor:
    return model(ids_BT)


def _by_transformers(folder: Path, ids_BT: Tensor) -> tuple[Tensor, tuple[list[int], int]]:
    """Return logits (B, T, V) by transformers, and its tokenizer's ids of the sentence and of the end of a text."""
    show_pandas()
    from transformers import AutoTokenizer, GPT2LMHeadModel
    from transformers.utils import logging as library_logging

    library_logging.set_verbosity_error()
    library_logging.disable_progress_bar()
    model: Any = GPT2LMHeadModel.from_pretrained(folder, local_files_only=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokens = tokenizer(_SENTENCE, add_special_tokens=False).input_ids
    with torch.no_grad():
        logits = model.float().eval()(ids_BT).logits
    return logits, (tokens, tokenizer.eos_token_id)
