"""The validation tokens of a run as one more thing to score: bits per byte, which compares across vocabularies.

The tokens are predicted in the samples of stage `evaluate`, so that with its sequence_length the loss by token is its
loss: every token but the first of all, ends of documents included. Bytes are those of the text of the same tokens, in
UTF-8, an end of a document counting none.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipelines.errors import UserError
from trainer.scoring.windows import Array, Windows

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from trainer.data.stream import TokenStream

TASK = "validation"
"""Its name among the tasks."""
_DECODED_TOKENS = 1 << 20
"""Tokens that are decoded at once, or those of one longer document."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What is predicted: its windows, and its size."""

    windows: Windows
    documents: int
    tokens: int
    bytes: int
    sequence_length: int

    def scores(self, values: Array) -> dict[str, Any]:
        """Return the scores; `values`: of the windows, from `likelihoods`."""
        nats = -math.fsum(values[:, 0])
        loss = nats / self.tokens
        return {
            "metric": "stream",
            "docs": self.documents,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "sequence_length": self.sequence_length,
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": nats / self.bytes / math.log(2),
        }


def read_validation(tokenizer: "Tokenizer", stream: "TokenStream", length: int, first: int) -> Validation:
    """Return the samples of a stream, each of `length` tokens; of its `first` documents, or of all with 0."""
    documents = list(_documents(stream, first))
    stop = sum(map(len, documents))
    size = sum(_text_bytes(documents, stream.meta.end_of_text, tokenizer))
    size -= _token_bytes(documents[0][0], stream.meta.end_of_text, tokenizer) if stop else 0
    if stop < 2 or not size:
        raise UserError(f"{stream.folder}: has {stop} tokens, nothing to predict; use more documents")
    starts = range(0, stop - 1, length)
    windows = [stream.read(start, min(length + 1, stop - start)) for start in starts]
    for start, window in zip(starts, windows, strict=True):
        stream.require_ids(window[None], np.array([start]))
    scored = Windows.of(windows, [len(window) - 1 for window in windows])
    return Validation(scored, len(documents), stop - 1, size, length)


def _documents(stream: "TokenStream", first: int) -> Iterator[Array]:
    """Yield the tokens of each document, or of the `first` ones."""
    count = 0
    for shard in stream.shards:
        for start, end in zip(shard.offsets[:-1].tolist(), shard.offsets[1:].tolist(), strict=True):
            if first and count == first:
                return
            count += 1
            yield shard.tokens[start:end]


def _text_bytes(documents: list[Array], end_of_text: int, tokenizer: "Tokenizer") -> Iterator[int]:
    """Yield the bytes of each document's text."""
    batch: list[list[int]] = []
    tokens = 0
    for number, document in enumerate(documents, start=1):
        batch.append([token for token in document.tolist() if token != end_of_text])
        tokens += len(document)
        if tokens >= _DECODED_TOKENS or number == len(documents):
            # A whole document at a time: a token can end inside a character.
            yield from (len(text.encode()) for text in tokenizer.decode_batch(batch, skip_special_tokens=False))
            batch, tokens = [], 0


def _token_bytes(token: int, end_of_text: int, tokenizer: "Tokenizer") -> int:
    """Return the bytes of one token, which may be a part of a character only."""
    if token == end_of_text:
        return 0
    if type(tokenizer.decoder).__name__ == "ByteLevel" and token not in tokenizer.get_added_tokens_decoder():
        return len(tokenizer.id_to_token(int(token)) or "")  # a letter for each byte
    return len(tokenizer.decode([int(token)], skip_special_tokens=False).encode())
