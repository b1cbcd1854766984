"""Signature shards: `signatures/part-00000.parquet`, one row per document in input order.

Columns shard, row, doc_id, url, source, length and start (`pairs.STORED_FIELDS`), text_hash (xxh3_128 of the
normalised text) and signature (num_perm little-endian uint32, fixed size). The schema's metadata under
`millrace.signatures` says how they were made, so that signatures of other parameters are never compared.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dataprep.dedup.arrays import from_numpy
from dataprep.dedup.minhash import Permutations, sign_texts
from dataprep.dedup.pairs import START_CHARACTERS, STORED_FIELDS
from dataprep.dedup.shingles import Shingle
from dataprep.text.folding import Texts, fold_texts, raw_texts, text_hashes, text_pieces
from pipelines.columns import column
from pipelines.documents import read_batches
from pipelines.errors import UserError

Array = np.ndarray[Any, Any]

FOLDER = "signatures"
METADATA_KEY = b"millrace.signatures"
_PLAIN = ("text_hash", "signature", "doc_id")
"""Columns of random bytes, which neither compress nor repeat."""


@dataclass(frozen=True, slots=True)
class SignatureMeta:
    """How signatures were made; signatures compare only when all of it is equal."""

    shingle: str
    num_perm: int
    seed: int
    normalise: bool
    scheme: str = "affine32"
    version: int = 1

    @property
    def schema(self) -> pa.Schema:
        """The schema of a signature shard."""
        fields = [
            *STORED_FIELDS,
            pa.field("text_hash", pa.binary(16)),
            pa.field("signature", pa.binary(4 * self.num_perm)),
        ]
        return pa.schema(fields, metadata={METADATA_KEY: json.dumps(asdict(self), sort_keys=True).encode()})


@dataclass(frozen=True, slots=True)
class Signer:
    """Turns texts into hashes, shingle sets and signatures."""

    meta: SignatureMeta
    shingle: Shingle
    permutations: Permutations

    @classmethod
    def make(cls, meta: SignatureMeta) -> "Signer":
        """The signer that `meta` describes."""
        return cls(meta, Shingle.parse(meta.shingle), Permutations.draw(meta.num_perm, meta.seed))

    def normalised(self, texts: pa.Array) -> Texts:
        """Texts in the form in which they are compared."""
        raw = raw_texts(texts)
        return fold_texts(raw) if self.meta.normalise else raw

    def signatures(self, texts: Texts) -> Array:
        """(num_texts, num_perm) uint32."""
        return sign_texts(texts, self.shingle, self.permutations)


def write_signatures(document_file: Path, path: Path, shard: int, signer: Signer) -> int:
    """Sign every document of one shard; returns how many there are."""
    schema = signer.meta.schema
    path.parent.mkdir(parents=True, exist_ok=True)
    compression: Any = {name: "none" if name in _PLAIN else "zstd" for name in schema.names}
    first = 0
    with pq.ParquetWriter(str(path), schema, compression=compression, use_dictionary=False) as writer:
        for batch in read_batches(document_file, ["doc_id", "url", "text", "source"]):
            writer.write_batch(_sign_batch(batch, shard, first, signer, schema))
            first += batch.num_rows
    return first


def _sign_batch(batch: pa.RecordBatch, shard: int, first: int, signer: Signer, schema: pa.Schema) -> pa.RecordBatch:
    hashes: list[bytes] = []
    signatures: list[Array] = [np.empty((0, signer.meta.num_perm), np.uint32)]
    for _, texts in text_pieces(batch.column("text")):
        normalised = signer.normalised(texts)
        hashes += text_hashes(normalised)
        signatures.append(signer.signatures(normalised))
    stored = np.concatenate(signatures).astype("<u4")
    columns = [
        from_numpy(np.full(batch.num_rows, shard, np.int32)),
        from_numpy(np.arange(first, first + batch.num_rows, dtype=np.int64)),
        batch.column("doc_id"),
        batch.column("url"),
        batch.column("source"),
        pc.call_function("utf8_length", [batch.column("text")]).cast(pa.int64()),
        pc.call_function("utf8_slice_codeunits", [batch.column("text")], pc.SliceOptions(0, START_CHARACTERS)),
        column(hashes, pa.binary(16)),
        pa.FixedSizeBinaryArray.from_buffers(
            schema.field("signature").type, batch.num_rows, [None, pa.py_buffer(stored.tobytes())]
        ),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def read_meta(path: Path) -> SignatureMeta:
    """How the signatures of a shard were made; UserError when it is not a signature shard."""
    metadata = pq.read_schema(str(path)).metadata or {}
    try:
        return SignatureMeta(**json.loads(metadata[METADATA_KEY]))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: not a signature shard; run find_duplicates again") from None


def read_signatures(path: Path) -> Iterator[tuple[Array, Array]]:
    """Text hashes (n, 2) uint64 and signatures (n, num_perm) uint32 of one shard, batch by batch."""
    num_perm = read_meta(path).num_perm
    for batch in read_batches(path, ["text_hash", "signature"]):
        yield (
            fixed_width(batch.column("text_hash"), "<u8").reshape(-1, 2),
            fixed_width(batch.column("signature"), "<u4").reshape(-1, num_perm),
        )


def fixed_width(values: pa.Array, dtype: str) -> Array:
    """A fixed-size binary column without nulls as numbers."""
    width = values.type.byte_width
    data = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * width : (values.offset + len(values)) * width]
    return data.view(dtype)
