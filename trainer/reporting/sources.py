"""Where the model's texts come from, for the report by hand: their longest spans in the training tokens.

The index is that of stage `suffix_array`, which a graph has only if it is asked for.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from pipelines.spans import find_spans
from pipelines.suffixes import SuffixArray
from trainer.reporting.times import Source
from trainer.weights.huggingface import open_tokenizer, require_same_tokenizer

LEAST, MOST = 5, 3
"""Fewest tokens of a span, and most spans of a text that are shown."""


def sources_of(
    texts: Sequence[tuple[str, str]], index: Path, tokens: Path, tokenizer: Path, ledger: Path | None
) -> list[list[Source]]:
    """Return the longest spans of each (prompt, continuation), the longest first, with the URL of the first place.

    Raises UserError for an index of other tokens, and tokens of another tokenizer.
    """
    array = SuffixArray(index, tokens)
    require_same_tokenizer(tokenizer, array.meta, tokens)
    opened = open_tokenizer(tokenizer)
    opened.encode_special_tokens = True  # as a text, which the tokens are of
    opened.no_truncation()
    opened.no_padding()
    found = [
        [
            (
                text[span.start : span.end].strip(),
                len(span.ids),
                array.count(span.ids),
                array.first(span.ids, 1)[0].doc_id,
            )
            for span in sorted(find_spans(text, opened, [array]), key=lambda span: -len(span.ids))[:MOST]
            if len(span.ids) >= LEAST
        ]
        for text in (prompt + continuation for prompt, continuation in texts)
    ]
    urls = dict(_urls(ledger, {doc_id for spans in found for *_, doc_id in spans}))
    return [
        [Source(text, size, places, urls.get(doc_id, doc_id)) for text, size, places, doc_id in spans]
        for spans in found
    ]


def _urls(ledger: Path | None, doc_ids: set[str]) -> Iterator[tuple[str, str]]:
    """Yield id and URL of these documents, by the ledger; nothing without one."""
    files = sorted(ledger.glob("part-*.parquet")) if ledger else []
    if files:
        wanted = ds.field("doc_id").isin(pa.array(sorted(doc_ids), pa.string()))
        rows = ds.dataset([str(file) for file in files]).to_table(columns=["doc_id", "url"], filter=wanted)
        yield from ((row["doc_id"], row["url"]) for row in rows.to_pylist())
