"""Stage `tokenize`: documents to token shards that the trainer maps into memory.

documents + tokenizer -> `part-00000.arrow`, one row per document, end-of-text after each
(format: pipelines/tokens.py). One token shard per document shard; more where one would pass 2^27 tokens.

    python -m dataprep.tokenize clean.jsonl tokenizer/ tokens/
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pipelines import tokens
from pipelines.command import Documents, Output, Part, Source
from pipelines.documents import read_batches
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("tokenizers", "pyarrow")

Ids = np.ndarray[Any, Any]


def tokenize(run: StageRun, documents: Documents, tokenizer: Source, output: Output) -> dict[str, float]:
    """Tokenize every document shard by itself."""
    counts = run.map(tokenize_part, documents.parts, tokenizer.path, into=output)
    return {"bytes_per_token": round(counts.totals.get("text_bytes", 0) / max(1, counts.totals["tokens"]), 4)}


def tokenize_part(part: Part, folder: Path, tokenizer: Path) -> Counts:
    """Tokenize one document shard into one token shard, or several when it is very long."""
    from dataprep.text.bpe import TextEncoder

    encoder = TextEncoder.load(tokenizer)
    counts = Counts()
    shards = _shards(_documents(part.file, encoder, counts))
    for number, (rows, doc_ids) in enumerate(shards):
        name = part.name if number == 0 else f"{part.name}-{number:03d}"
        tokens.write_tokens(folder / f"{name}.arrow", rows, doc_ids, encoder.meta)
    return counts


def _documents(file: Path, encoder: Any, counts: Counts) -> Iterator[tuple[Ids, bytes]]:
    """Token ids and document id of each row; end-of-text is appended here."""
    end = np.array([encoder.meta.end_of_text], encoder.meta.dtype)
    counts.total("tokens", 0)
    for batch in read_batches(file, ["doc_id", "text"]):
        texts = batch.column("text").to_pylist()
        for text, doc_id, ids in zip(texts, batch.column("doc_id").to_pylist(), encoder.encode(texts), strict=True):
            counts.rows_in += 1
            counts.rows_out += 1
            counts.total("tokens", len(ids) + 1)
            counts.total("text_bytes", len(text.encode()))
            yield np.concatenate([ids, end]), doc_id


def _shards(documents: Iterator[tuple[Ids, bytes]]) -> Iterator[tuple[list[Ids], list[bytes]]]:
    """Documents in groups of at most 2^27 tokens; a longer document stands alone; at least one group."""
    rows: list[Ids] = []
    doc_ids: list[bytes] = []
    size = 0
    for ids, doc_id in documents:
        if rows and size + len(ids) > tokens.MAX_TOKENS:
            yield rows, doc_ids
            rows, doc_ids, size = [], [], 0
        rows.append(ids)
        doc_ids.append(doc_id)
        size += len(ids)
    yield rows, doc_ids


if __name__ == "__main__":
    stage_main("dataprep.tokenize")
