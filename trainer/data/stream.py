"""All token shards of a folder as one memory-mapped sequence; only the tokens of a batch are copied."""

from pathlib import Path
from typing import Any

import numpy as np

from pipelines.errors import UserError
from pipelines.manifest import is_published
from pipelines.tokens import TokenMeta, TokenShard, open_tokens
from pipelines.unchanged import require_unchanged
from trainer.data.order import Array, Ids, ragged

_CHECKED_BLOCKS = 64
_CHECKED_TOKENS = 4096


class TokenStream:
    """The tokens of a folder by their index in the stream; documents keep the order of the shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards: list[TokenShard] = open_tokens(folder)
        self.meta: TokenMeta = self.shards[0].meta
        self.ends: Ids = np.cumsum([len(shard.tokens) for shard in self.shards], dtype=np.int64)
        self.begins: Ids = self.ends - [len(shard.tokens) for shard in self.shards]
        self._windows: dict[tuple[int, int], Array] = {}

    def __len__(self) -> int:
        return int(self.ends[-1])

    def samples(self, sequence_length: int) -> int:
        """Return the number of whole samples: sample i predicts tokens i*length+1 .. (i+1)*length."""
        return max(0, (len(self) - 1) // sequence_length)

    def shard_of(self, tokens: Ids) -> Ids:
        """Return the index of the shard that holds each token of the stream."""
        return np.searchsorted(self.ends, tokens, side="right")

    def read(self, start: int, length: int) -> Array:
        """Return tokens start..start+length across shards; fewer at the end of the stream."""
        pieces = [np.empty(0, self.meta.dtype)]
        index = int(self.shard_of(np.array(start)))
        while length and index < len(self.shards):
            begin = start - int(self.begins[index])
            pieces.append(self.shards[index].tokens[begin : begin + length])
            start, length, index = start + len(pieces[-1]), length - len(pieces[-1]), index + 1
        return np.concatenate(pieces)

    def windows(self, starts: Ids, length: int) -> Array:
        """Return tokens (B, length) from each start on, with zeros beyond the end of the stream.

        Each shard needs one gather, from a view whose row i begins at token i. Windows that span shards are read one by
        one.
        """
        shards = self.shard_of(starts)
        inside = starts + length <= self.ends[shards]
        if inside.all() and (shards == shards[0]).all():
            return self._view(int(shards[0]), length)[starts - self.begins[shards[0]]]
        rows = np.zeros((len(starts), length), self.meta.dtype)
        local = starts - self.begins[shards]
        by_shard = np.flatnonzero(inside)[np.argsort(shards[inside], kind="stable")]
        for same_shard in np.split(by_shard, np.flatnonzero(np.diff(shards[by_shard])) + 1):
            if len(same_shard):
                rows[same_shard] = self._view(int(shards[same_shard[0]]), length)[local[same_shard]]
        for row in np.flatnonzero(~inside).tolist():
            tokens = self.read(int(starts[row]), length)
            rows[row, : len(tokens)] = tokens
        return rows

    def _view(self, shard: int, length: int) -> Array:
        if (shard, length) not in self._windows:
            tokens = self.shards[shard].tokens
            self._windows[shard, length] = np.lib.stride_tricks.sliding_window_view(tokens, length)
        return self._windows[shard, length]

    def fill(self, target: Array, offsets: Ids, starts: Ids, lengths: Ids) -> None:
        """Copy pieces of the stream, each inside a shard, to `offsets` of a flat array.

        Slice by slice: a gather with an index per token, 16 bytes for each 2, takes three times as long.
        """
        shards = self.shard_of(starts)
        local = starts - self.begins[shards]
        for shard, begin, end, offset in zip(
            *(each.tolist() for each in (shards, local, local + lengths, offsets)), strict=True
        ):
            target[offset : offset + end - begin] = self.shards[shard].tokens[begin:end]

    def document_starts(self, starts: Ids, length: int) -> Array:
        """Return (B, length): the column where each token's document begins, 0 if it began before the row."""
        marks = [np.arange(len(starts)) * length]
        first, last = self.shard_of(starts), self.shard_of(np.minimum(starts + length, len(self)) - 1)
        steps = np.arange(int((last - first).max()) + 1)[:, None]
        for shard in np.unique(np.minimum(first + steps, last)).tolist():
            rows = np.flatnonzero((first <= shard) & (shard <= last))
            begins, local = self.shards[shard].offsets[:-1], starts[rows] - self.begins[shard]
            low, high = np.searchsorted(begins, local), np.searchsorted(begins, local + length)
            documents = ragged(low, high - low)
            marks.append(begins[documents] + np.repeat(rows * length - local, high - low))
        return spread(np.unique(np.concatenate(marks)), len(starts), length)

    def documents(self, start: int, length: int) -> list[tuple[TokenShard, int, int, int]]:
        """Return the documents with a token in start..start+length.

        Each is (shard, row, first token, last token), with tokens counted within the document.
        """
        documents: list[tuple[TokenShard, int, int, int]] = []
        stop = min(start + length, len(self))
        for number in range(int(self.shard_of(np.array(start))), int(self.shard_of(np.array(stop - 1))) + 1):
            shard, begin = self.shards[number], int(self.begins[number])
            low = int(np.searchsorted(shard.offsets, max(start - begin, 0), side="right")) - 1
            high = int(np.searchsorted(shard.offsets[:-1], stop - begin))
            for row in range(low, high):
                first, end = begin + int(shard.offsets[row]), begin + int(shard.offsets[row + 1])
                documents.append((shard, row, max(start, first) - first, min(stop, end) - 1 - first))
        return documents

    def require_ids(self, tokens: Array, starts: Ids) -> None:
        """Raise UserError, naming the shard, for a token id outside the vocabulary."""
        if tokens.size and tokens.max() >= self.meta.vocab_size:
            row = int((tokens >= self.meta.vocab_size).any(axis=1).argmax())
            path = self.shards[int(self.shard_of(starts[row]))].path
            raise UserError(
                f"{path}: id {int(tokens[row].max())} near token {int(starts[row])} of the stream, but the "
                f"vocabulary has {self.meta.vocab_size}; the shard is damaged: tokenize again"
            )


def spread(marks: Ids, rows: int, length: int) -> Array:
    """Return (rows, length): the column of the last mark up to each token. `marks`: sorted, one at each row's start."""
    columns = (marks % length).astype(column_type(length))
    return np.repeat(columns, np.diff(marks, append=rows * length)).reshape(rows, length)


def column_type(length: int) -> np.dtype[Any]:
    """Return the narrowest type for column numbers in rows of `length`."""
    return np.dtype(np.int16 if length <= np.iinfo(np.int16).max else np.int32)


def check_tokens(folder: Path) -> TokenStream:
    """Open a folder of token shards and check it before training. Raises UserError.

    Every byte is compared with the manifest. Names, schema and document boundaries are checked in full, end-of-text and
    ids in samples of each shard; the other ids are checked as they are read.
    """
    manifest = require_unchanged(folder, ".arrow")
    stream = TokenStream(folder)
    for shard in stream.shards:
        rows = manifest.files[shard.path.name].rows
        if rows not in (None, len(shard)):
            raise UserError(f"{shard.path}: {len(shard)} documents, its manifest says {rows}; tokenize again")
        _require_sound(shard)
    return stream


def check_tokens_of_anyone(folder: Path) -> TokenStream:
    """Open a folder that need not be a stage's: without a manifest, every token is checked. Raises UserError."""
    if is_published(folder):
        return check_tokens(folder)
    stream = TokenStream(folder)
    for shard in stream.shards:
        _require_sound(shard, whole=True)
    return stream


def _require_sound(shard: TokenShard, *, whole: bool = False) -> None:
    if problem := _problem(shard, whole=whole):
        raise UserError(f"{shard.path}: {problem}; the shard is damaged: tokenize again")


def _problem(shard: TokenShard, *, whole: bool = False) -> str | None:
    """Describe what is wrong in a shard, judging by its boundaries and some of its tokens; None if nothing is.

    `whole`: look at all tokens.
    """
    tokens, offsets, meta = shard.tokens, shard.offsets, shard.meta
    if tokens.dtype != meta.dtype:
        return f"ids are {tokens.dtype}, for a vocabulary of {meta.vocab_size} expected {meta.dtype}"
    if int(offsets[0]) != 0 or int(offsets[-1]) != len(tokens) or (len(offsets) > 1 and (np.diff(offsets) < 0).any()):
        return "its document boundaries do not cover its tokens"
    step = _CHECKED_TOKENS if whole else max(1, len(tokens) // _CHECKED_BLOCKS)
    for start in range(0, len(tokens), step):
        block = tokens[start : start + min(step, _CHECKED_TOKENS)]
        if block.max() >= meta.vocab_size:
            return f"id {int(block.max())} near token {start}, but the vocabulary has {meta.vocab_size}"
    ends = offsets[1:][:: 1 if whole else max(1, len(offsets) // _CHECKED_TOKENS)]
    if (ends > 0).all() and (tokens[ends - 1] != meta.end_of_text).any():
        return f"a document does not end with end-of-text ({meta.end_of_text})"
    return None
