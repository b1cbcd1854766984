"""Token shards back to documents: the text of each, as it was tokenized.

token shards + their tokenizer -> documents (`doc_id` and `text`; `url` and `source` are empty, since token shards do
not store them: `python -m pipelines explain DOC_ID` shows them). The text is exact for a byte-level tokenizer; changes
that another tokenizer makes before it splits a text (a normalizer, a leading space) cannot be undone.

    python -m dataprep.detokenize tokens/ tokenizer/ documents.jsonl
"""

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines.command import Limit, Part, Source, StageSpec, Table
from pipelines.documents import DOCUMENT_SCHEMA, TableWriter
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from pipelines.tokens import TokenShard, open_tokens
from pipelines.unchanged import require_unchanged

if TYPE_CHECKING:
    from tokenizers import Tokenizer

logger = logging.getLogger(__name__)

VERSION = 1
SHAPED_BY = ("tokenizers", "pyarrow")
DECODED_TOKENS = 1 << 20
"""Most tokens that are decoded at once; a longer document is decoded alone."""


def detokenize(run: StageRun, tokens: Source, tokenizer: Source, output: Table) -> None:
    """Decode each token shard by itself."""
    from dataprep.text.tokenizers import TextEncoder

    shards = open_tokens(tokens.path)
    require_unchanged(tokens.path, ".arrow")  # also a shard that is missing
    encoder = TextEncoder.load(tokenizer.path)
    expected = shards[0].meta.tokenizer_sha256
    if encoder.meta.tokenizer_sha256 != expected:
        raise UserError(
            f"{tokenizer.path}: sha256 {encoder.meta.tokenizer_sha256[:12]}, but {tokens.path} was made with "
            f"{expected[:12]}; name the tokenizer that made the shards"
        )
    if changes := changes_to_text(encoder.tokenizer):
        logger.warning("detokenize: the texts are as %s left them, not as they were", " and ".join(changes))
    parts = [Part(shard.path.stem, (shard.path,)) for shard in shards]
    run.map(detokenize_shard, parts, tokenizer.path, into=output)


def changes_to_text(tokenizer: "Tokenizer") -> list[str]:
    """Return what in a tokenizer changes texts irreversibly; empty for byte-level BPE such as GPT-2's."""
    settings: dict[str, Any] = json.loads(tokenizer.to_str())
    changes = [f"the normalizer {settings['normalizer']['type']}"] if settings["normalizer"] else []
    splitter = settings["pre_tokenizer"] or {}
    splitters = splitter.get("pretokenizers", [splitter])
    if any(each.get("add_prefix_space") for each in splitters):
        changes.append("the space that it puts in front")
    if any((each["lstrip"] or each["rstrip"]) and not each["special"] for each in settings["added_tokens"]):
        changes.append("the added tokens that swallow spaces")
    if (settings["decoder"] or {}).get("type") != "ByteLevel":
        changes.append("its own decoder")
    return changes


def detokenize_shard(part: Part, folder: Path, tokenizer: Path) -> Counts:
    """Write the documents of one token shard."""
    from dataprep.text.tokenizers import TextEncoder

    shard = TokenShard(part.file)
    decoder = TextEncoder.load(tokenizer).tokenizer
    counts = Counts()
    with TableWriter(folder / f"{part.name}.parquet", DOCUMENT_SCHEMA) as table:
        for first, last in document_ranges(shard):
            rows = [shard.tokens[shard.offsets[i] : shard.offsets[i + 1] - 1].tolist() for i in range(first, last)]
            texts = decoder.decode_batch(rows, skip_special_tokens=False)
            for doc_id, text in zip(shard.doc_ids[first:last], texts, strict=True):
                table.write({"doc_id": doc_id, "url": "", "text": text, "source": ""})
                counts.total("text_bytes", len(text.encode()))
    counts.rows_in = counts.rows_out = len(shard)
    counts.total("tokens", len(shard.tokens))
    return counts


def document_ranges(shard: TokenShard) -> list[tuple[int, int]]:
    """Return ranges of documents (first, last + 1) of at most DECODED_TOKENS; a longer document alone."""
    groups: list[tuple[int, int]] = []
    first = 0
    while first < len(shard):
        last = int(shard.offsets.searchsorted(shard.offsets[first] + DECODED_TOKENS, side="right")) - 1
        groups.append((first, max(last, first + 1)))
        first = groups[-1][1]
    return groups


STAGE = StageSpec.of(
    detokenize,
    VERSION,
    SHAPED_BY,
    sources={
        "tokens": "a folder of token shards, as tokenize writes it",
        "tokenizer": "the tokenizer that they were made with: its folder or file",
    },
    limit=Limit("documents", "tokens"),
)

if __name__ == "__main__":
    stage_main("dataprep.detokenize")
