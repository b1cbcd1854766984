"""Fingerprints: what a later search needs of documents, so that their texts are not needed again.

A folder of `part-00000.parquet` with the columns of the signature shards and `shingles`, the sorted 64-bit
hashes of the document's distinct shingles (little-endian, 8 bytes each, for exact similarities). The schema's
metadata says how they were made; a search with other parameters refuses them.
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
    """The fingerprints of one shard. `part.files`: documents, signatures."""
    documents, signature_file = part.files
    signer = Signer.make(meta)
    described = {**(meta.schema.metadata or {}), _UNICODE: unicodedata.unidata_version.encode()}
    schema = meta.schema.append(pa.field(SHINGLES, pa.large_binary())).with_metadata(described)
    counts = Counts()
    with pq.ParquetWriter(str(folder / f"{part.name}.parquet"), schema, compression="none", **_PLAIN) as writer:
        for batch, signed in zip(read_batches(documents, ["text"]), read_batches(signature_file), strict=True):
            for start, texts in text_pieces(batch.column("text")):
                sets = distinct_shingles(signer.normalised(texts), signer.shingle)
                hashes = [sets.of(number).astype("<u8").tobytes() for number in range(len(texts))]
                columns = [*signed.slice(start, len(texts)).columns, pa.array(hashes, pa.large_binary())]
                writer.write_batch(pa.record_batch(columns, schema=schema))
            counts.rows_in += batch.num_rows
    counts.rows_out = counts.rows_in
    return counts


_PLAIN: dict[str, Any] = {"use_dictionary": False, "write_statistics": False}
"""Almost all is random bytes."""


def find_folders(named: Sequence[str], parent: Path | None) -> list[Path]:
    """The fingerprint folders that were named, and `parent` itself or those in it: in order of their paths."""
    folders = [Path(name) for name in named]
    if parent:
        inside = [path for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
        folders += [parent] if is_published(parent) or not inside else inside
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("find_duplicates.load_fingerprints: a folder is given twice; leave one out")
    return sorted(folders, key=Path.as_posix)


def open_fingerprints(run: StageRun, folder: Path, meta: SignatureMeta) -> list[Path]:
    """The shards of a fingerprint folder, after checking that they are whole and of the same parameters."""
    files = _shards(folder)
    manifest = load_checked(folder)
    versions: set[str] = set()
    for file in files:
        if file.name not in manifest.files or run.sha256(file) != manifest.files[file.name].sha256:
            raise UserError(f"{file}: its bytes are not those of its manifest; the folder is damaged, make it again")
        _check_parameters(file, meta)
        with open_parquet(file) as opened:
            versions.add((opened.schema_arrow.metadata or {}).get(_UNICODE, b"").decode())
    if others := versions - {unicodedata.unidata_version}:
        logger.warning(
            "%s: made with Unicode %s, this is %s: texts with the newest characters may not be recognised",
            folder,
            ", ".join(sorted(others)),
            unicodedata.unidata_version,
        )
    return files


def _shards(folder: Path) -> list[Path]:
    made = "make one with find_duplicates --save-fingerprints"
    if folder.is_file():
        raise UserError(
            f"{folder}: fingerprints are a folder, and no pickle is read, since that could run code; {made}"
        )
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; {made}")
    files = part_files(folder)
    for file in files[:1]:
        with open_parquet(file) as opened:
            if SHINGLES in opened.schema_arrow.names:
                return files
    raise UserError(f"{folder}: not a folder of fingerprints; {made}")


def _check_parameters(file: Path, meta: SignatureMeta) -> None:
    there, here = asdict(read_meta(file)), asdict(meta)
    if different := [name for name in here if there[name] != here[name]]:
        listed = ", ".join(f"{name} {there[name]} (this run: {here[name]})" for name in different)
        raise ConfigError(
            f"{file.parent}: fingerprints of other parameters: {listed}, in {file.name}; make them again, or run with "
            "theirs"
        )


def copy_sets(part: Part, folder: Path, corpus: Corpus, num_perm: int) -> Counts:
    """The shingle sets of one old shard's candidates. `part.files`: fingerprints, candidate marks."""
    fingerprints, marks_file = part.files
    shard = int(part.name.removeprefix("part-"))
    marks = np.load(marks_file, mmap_mode="r")[corpus.first[shard] : corpus.first[shard + 1]]
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
