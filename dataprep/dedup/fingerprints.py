"""Fingerprints: all that a later search needs to compare documents without their texts.

A fingerprint folder holds `part-00000.parquet` and so on, with the columns of the signature shards and `shingles`,
the sorted 64-bit hashes of the document's distinct shingles (little-endian, 8 bytes each, for exact similarities).
The schema's metadata records the parameters; a search with other parameters rejects the folder.
"""

import logging
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.dedup.candidates import load_mapped
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.shingle_sets import ShingleSetWriter
from dataprep.dedup.shingles import distinct_shingles
from dataprep.dedup.signatures import SignatureMeta, Signer, fixed_width, read_meta
from dataprep.text.folding import text_pieces
from pipelines.command import Part
from pipelines.documents import open_parquet, part_files, read_batches
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts, is_published, load_checked
from pipelines.run import StageRun

logger = logging.getLogger(__name__)

SHINGLES = "shingles"
_UNICODE = b"millrace.unicode"


def write_fingerprints(part: Part, folder: Path, meta: SignatureMeta) -> Counts:
    """Write the fingerprints of one shard. `part.files`: documents, signatures."""
    documents, signature_file = part.files
    signer = Signer.make(meta)
    metadata = {**(meta.schema.metadata or {}), _UNICODE: unicodedata.unidata_version.encode()}
    schema = meta.schema.append(pa.field(SHINGLES, pa.large_binary())).with_metadata(metadata)
    counts = Counts()
    with pq.ParquetWriter(str(folder / f"{part.name}.parquet"), schema, compression="none", **_PLAIN) as writer:
        for batch, signatures in zip(read_batches(documents, ["text"]), read_batches(signature_file), strict=True):
            for start, texts in text_pieces(batch.column("text")):
                sets = distinct_shingles(signer.normalised(texts), signer.shingle)
                hashes = [sets.of(number).astype("<u8").tobytes() for number in range(len(texts))]
                columns = [*signatures.slice(start, len(texts)).columns, pa.array(hashes, pa.large_binary())]
                writer.write_batch(pa.record_batch(columns, schema=schema))
            counts.rows_in += batch.num_rows
    counts.rows_out = counts.rows_in
    return counts


_PLAIN: dict[str, Any] = {"use_dictionary": False, "write_statistics": False}
"""Almost all of the data is random bytes."""


def find_folders(names: Sequence[str], parent: Path | None) -> list[Path]:
    """Return the named fingerprint folders, and `parent` or the folders in it, in order of their paths."""
    folders = [Path(name) for name in names]
    if parent:
        inside = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
        folders += [parent] if is_published(parent) or not inside else inside
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("find_duplicates.load_fingerprints: a folder is listed twice; list it once")
    return sorted(folders, key=Path.as_posix)


def open_fingerprints(run: StageRun, folder: Path, meta: SignatureMeta) -> list[Path]:
    """Return the shards of a fingerprint folder, after checking that they are intact and match the parameters."""
    files = _shards(folder)
    manifest = load_checked(folder)
    versions: set[str] = set()
    for file in files:
        if file.name not in manifest.files or run.sha256(file) != manifest.files[file.name].sha256:
            raise UserError(f"{file}: does not match its manifest; the folder is damaged, create it again")
        _check_parameters(file, meta)
        with open_parquet(file) as opened:
            versions.add((opened.schema_arrow.metadata or {}).get(_UNICODE, b"").decode())
    if others := versions - {unicodedata.unidata_version}:
        logger.warning(
            "%s: made with Unicode %s, but this is %s: copies of texts with the newest characters may be missed",
            folder,
            ", ".join(sorted(others)),
            unicodedata.unidata_version,
        )
    return files


def _shards(folder: Path) -> list[Path]:
    advice = "create one with find_duplicates --save-fingerprints"
    if folder.is_file():
        raise UserError(
            f"{folder}: expected a folder of fingerprints; no pickle is read, since it could run code; {advice}"
        )
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; {advice}")
    files = part_files(folder)
    for file in files[:1]:
        with open_parquet(file) as opened:
            if SHINGLES in opened.schema_arrow.names:
                return files
    raise UserError(f"{folder}: not a folder of fingerprints; {advice}")


def _check_parameters(file: Path, meta: SignatureMeta) -> None:
    stored, wanted = asdict(read_meta(file)), asdict(meta)
    if different := [name for name in wanted if stored[name] != wanted[name]]:
        differences = ", ".join(f"{name} {stored[name]} (this run: {wanted[name]})" for name in different)
        raise ConfigError(
            f"{file.parent}: the fingerprints in {file.name} have other parameters: {differences}; create them again, "
            "or run with the same parameters"
        )


def copy_sets(part: Part, folder: Path, corpus: Corpus, num_perm: int) -> Counts:
    """Write the shingle sets of one old shard's candidates. `part.files`: fingerprints, candidate marks."""
    fingerprints, marks_file = part.files
    shard = int(part.name.removeprefix("part-"))
    marks = load_mapped(marks_file)[corpus.first[shard] : corpus.first[shard + 1]]
    writer = ShingleSetWriter(folder, part.name)
    first = 0
    with open_parquet(fingerprints) as file:
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            wanted = np.flatnonzero(marks[first : first + rows])
            if len(wanted):
                table = file.read_row_group(group, ["signature", SHINGLES]).take(pa.array(wanted)).combine_chunks()
                signatures = fixed_width(table["signature"].chunk(0), "<u4").reshape(-1, num_perm)
                for row, hashes, signature in zip(wanted.tolist(), table[SHINGLES], signatures, strict=True):
                    writer.write(first + row, np.frombuffer(hashes.as_buffer(), "<u8"), signature)
            first += rows
    writer.close()
    return Counts()
