"""Token shards: Arrow IPC files that the trainer maps into memory.

One record batch per file and one row per document: `input_ids` (large_list of uint16, or uint32 when
the vocabulary needs it) and `doc_id`. The values buffer of `input_ids` is the token stream and its
offsets are the document boundaries, so reading copies nothing. Every document ends with end-of-text.
Schema metadata: sha256 of the tokenizer, vocabulary size, end-of-text id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.errors import UserError

MAX_TOKENS = 2**27
"""Maximum of tokens per shard; a longer document has a shard to itself."""


@dataclass(frozen=True, slots=True)
class TokenMeta:
    """A shard's description of the tokenizer that produced it."""

    tokenizer_sha256: str
    vocab_size: int
    end_of_text: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16 if the vocabulary fits, else uint32."""
        return np.dtype(np.uint16 if self.vocab_size <= 2**16 else np.uint32)

    @classmethod
    def of_schema(cls, schema: pa.Schema) -> "TokenMeta":
        """Read Arrow schema metadata; raise KeyError or ValueError if it is not that of a token shard."""
        metadata = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
        return cls(metadata["tokenizer_sha256"], int(metadata["vocab_size"]), int(metadata["end_of_text"]))

    def to_schema(self) -> dict[str, str]:
        """Return the Arrow schema metadata."""
        return {
            "tokenizer_sha256": self.tokenizer_sha256,
            "vocab_size": str(self.vocab_size),
            "end_of_text": str(self.end_of_text),
        }


def token_schema(meta: TokenMeta) -> pa.Schema:
    """Return the columns of a shard, with the description of its tokenizer as metadata."""
    fields = [
        pa.field("input_ids", pa.large_list(pa.from_numpy_dtype(meta.dtype))),
        pa.field("doc_id", pa.binary(16)),
    ]
    return pa.schema(fields, metadata=meta.to_schema())


def write_tokens(
    path: Path, documents: Sequence[np.ndarray[Any, Any]], doc_ids: Sequence[bytes], meta: TokenMeta
) -> None:
    """Write one shard. `documents[i]`: token ids of one document, including its end-of-text."""
    offsets = np.zeros(len(documents) + 1, dtype=np.int64)
    np.cumsum([len(document) for document in documents], out=offsets[1:])
    tokens = np.concatenate([*documents, np.empty(0, meta.dtype)]).astype(meta.dtype, copy=False)
    write_stream(path, tokens, offsets, pa.array(doc_ids, pa.binary(16)), meta)


def write_stream(
    path: Path, tokens: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any], doc_ids: pa.Array, meta: TokenMeta
) -> None:
    """Write one shard from its token stream; document i is `tokens[offsets[i]:offsets[i + 1]]`."""
    if len(tokens) > MAX_TOKENS and len(doc_ids) > 1:
        raise ValueError(f"{len(tokens)} tokens in one shard, at most {MAX_TOKENS}")
    rows = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens))
    schema = token_schema(meta)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_file(str(path), schema) as writer:
        writer.write_batch(pa.record_batch([rows, doc_ids], schema=schema))


ARROW_ERRORS = (pa.ArrowException, OSError, LookupError, ValueError, TypeError, AttributeError, MemoryError)
"""What damaged or foreign Arrow files raise, from the reader or from whoever expects other columns in them."""


def _only_batch(path: Path) -> pa.RecordBatch:
    """Map a shard; raise one of ARROW_ERRORS unless its columns are a shard's and lie within the file."""
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    if reader.num_record_batches != 1:
        raise ValueError(f"it has {reader.num_record_batches} record batches, a shard has one")
    batch = reader.get_batch(0)
    batch.validate()  # that lengths agree with the buffers: what NumPy is shown ends where the file does
    if batch.schema.names != ["input_ids", "doc_id"] or not pa.types.is_large_list(batch.schema.types[0]):
        raise ValueError(f"its columns are {batch.schema.names}")
    if any(column.null_count for column in (*batch.columns, batch.column("input_ids").values)):
        raise ValueError("it has empty values")
    return batch


class TokenShard:
    """One shard, mapped into memory.

    `tokens`: (num_tokens,) view of the file; `offsets`: (num_documents + 1,) int64, document i is
    `tokens[offsets[i]:offsets[i + 1]]`; `doc_ids`: one 16-byte id per document.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._batch = _only_batch(path)
            self.meta = TokenMeta.of_schema(self._batch.schema)
            column = self._batch.column("input_ids")
            self.tokens: np.ndarray[Any, Any] = column.values.to_numpy(zero_copy_only=True)
            self.offsets: np.ndarray[Any, Any] = column.offsets.to_numpy(zero_copy_only=True)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file") from None
        except ARROW_ERRORS as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path}: not a token shard ({reason}); run tokenize again") from None

    @cached_property
    def doc_ids(self) -> list[bytes]:
        """The id of each document, in order."""
        return self._batch.column("doc_id").to_pylist()

    def __len__(self) -> int:
        return self._batch.num_rows


def open_tokens(folder: Path) -> list[TokenShard]:
    """Return all shards of a folder, in order.

    Raises UserError if there are none, or if different tokenizers produced them.
    """
    files = sorted(folder.glob("part-*.arrow"))
    if not files and (inside := sorted({file.parent.name for file in folder.glob("*/part-*.arrow")})):
        raise UserError(
            f"{folder}: holds no token shards (part-*.arrow), but its {' and '.join(inside)} do: name one of them"
        )
    if not files:
        raise UserError(f"{folder}: has no token shards (part-*.arrow); run tokenize first")
    shards = [TokenShard(file) for file in files]
    for shard in shards[1:]:
        if shard.meta != shards[0].meta:
            raise UserError(f"{shard.path}: made by another tokenizer than {shards[0].path}; tokenize the corpus again")
    return shards
