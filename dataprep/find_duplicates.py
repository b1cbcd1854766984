"""Stage `find_duplicates`: pairs of documents that are the same or nearly the same.

Documents -> pairs (shard, row, doc_id, url, length of both, jaccard, kind exact or near), and signatures/
with every document's MinHash signature for later runs. Texts are compared after NFC, case folding and
collapsing white space. Exact copies come first, by a 128-bit hash; then MinHash-LSH proposes pairs, and
each is verified by the exact Jaccard similarity of the two shingle sets.

Run: python -m dataprep.find_duplicates raw.jsonl pairs.jsonl --threshold 0.8
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from dataprep.dedup.banding import Banding, choose_banding, explicit_banding
from dataprep.dedup.candidates import EDGE, Corpus
from dataprep.dedup.duplicate_search import Search
from dataprep.dedup.pairs import PAIR_METADATA, PAIR_SCHEMA, write_table
from dataprep.dedup.shingles import Shingle
from dataprep.dedup.signatures import FOLDER, SignatureMeta, Signer, write_signatures
from dataprep.dedup.verification import Measure, distinct_edges, document_table
from pipelines.command import Documents, Output, Part, Table
from pipelines.config import Count, NonNegative, Share
from pipelines.documents import count_rows
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("numpy", "pyarrow", "xxhash")

SHARDS_PER_PART = 16
"""Document shards whose pairs share one output file: part of the format, so a constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindDuplicatesConfig:
    """What a near-duplicate is, and how thoroughly to look."""

    shingle: str = "word:5"
    """What documents are compared by: word:N or char:N, runs of N words or characters."""
    threshold: Share = 0.7
    """Lowest similarity of a recorded pair, 0 to 1; the bands are chosen for it."""
    jaccard: Literal["union", "min", "max"] = "union"
    """Shared shingles over those of the union, or of the smaller or larger document."""
    normalise: bool = True
    """Compare after NFC, case folding and collapsing white space; else as written."""
    num_perm: Count = 128
    """Permutations, the values of a signature; 4 bytes each per document."""
    seed: NonNegative = 1234
    """Seed of the permutations."""
    bands: NonNegative = 0
    """Bands of a signature; 0 chooses bands and rows from the threshold."""
    rows: NonNegative = 0
    """Values per band; 0 chooses."""
    min_recall: Share = 0.97
    """Least expected share of compared pairs at the threshold; 0 leaves it to the weights."""
    false_positive_weight: Share = 0.5
    """Weight of needless comparisons against missed pairs when bands are chosen."""


def find_duplicates(config: FindDuplicatesConfig, run: StageRun, documents: Documents, output: Table) -> dict[str, Any]:
    """Sign every document, search, and write the pairs under the documents' names."""
    banding = choose_bands(config)
    meta = SignatureMeta(str(Shingle.parse(config.shingle)), config.num_perm, config.seed, config.normalise)
    signatures = sign_documents(run, documents, meta, output)
    corpus = count_documents(signatures)
    measure = Measure(meta, config.jaccard, config.threshold)
    search = Search(run, documents.parts, signatures, corpus, measure, banding)
    found = search.run()
    run.map(write_pairs, output_parts(documents, found, signatures), corpus, measure, into=output)
    return {
        "bands": banding.bands,
        "rows": banding.rows,
        "expected_recall": round(banding.probability(config.threshold), 6),
        "s_curve": banding.curve(),
        **search.totals.totals,
    }


def choose_bands(config: FindDuplicatesConfig) -> Banding:
    """The user's bands and rows, or those that the threshold asks for."""
    if config.bands or config.rows:
        return explicit_banding(config.bands, config.rows, config.num_perm)
    weight = config.false_positive_weight
    return choose_banding(config.threshold, config.num_perm, false_positive_weight=weight, min_recall=config.min_recall)


def sign_documents(run: StageRun, documents: Documents, meta: SignatureMeta, output: Output) -> list[Path]:
    """Publish the signatures of every shard; returns their files in order."""
    # Parts of another name than the pairs', because both lie in the same output.
    parts = [Part(part.name.replace("part", "sign"), part.files) for part in documents.parts]
    run.map(sign_part, parts, meta, into=output)
    return [output.folder / FOLDER / f"{part.name}.parquet" for part in documents.parts]


def sign_part(part: Part, folder: Path, meta: SignatureMeta) -> Counts:
    """The signatures of one shard of documents."""
    name = part.name.replace("sign", "part")
    shard = int(name.removeprefix("part-"))
    return Counts(rows_in=write_signatures(part.file, folder / FOLDER / f"{name}.parquet", shard, Signer.make(meta)))


def count_documents(signatures: Sequence[Path]) -> Corpus:
    """Where each shard's documents stand in the numbering of the whole corpus."""
    rows = [count_rows(file) or 0 for file in signatures]
    return Corpus((0, *np.cumsum(rows, dtype=np.int64).tolist()))


def output_parts(documents: Documents, found: Sequence[Path], signatures: Sequence[Path]) -> list[Part]:
    """One output file for every 16 document shards, by the first document of a pair."""
    count = -(-len(documents.parts) // SHARDS_PER_PART)
    return [Part(f"part-{number:05d}", (*found, *signatures)) for number in range(count)]


def write_pairs(part: Part, folder: Path, corpus: Corpus, measure: Measure) -> Counts:
    """The pairs whose first document is in one range of shards, with names for numbers."""
    number = int(part.name.removeprefix("part-"))
    last = len(corpus.first) - 1
    low, high = (corpus.first[min(SHARDS_PER_PART * n, last)] for n in (number, number + 1))
    files = [file for file in part.files if file.suffix == ".npy"]
    exact = _read_edges([file for file in files if file.parent.name.startswith("exact-")], low, high)
    near = _read_edges([file for file in files if not file.parent.name.startswith("exact-")], low, high)
    pairs = np.concatenate((exact, near))
    order = np.lexsort((pairs["b"], pairs["a"]))
    kinds = np.repeat(["exact", "near"], (len(exact), len(near)))[order]
    signatures = [file for file in part.files if file.suffix == ".parquet"]
    table = _name_pairs(pairs[order], kinds, signatures, corpus)
    made = {"threshold": measure.threshold, "jaccard": measure.mode, **asdict(measure.meta)}
    table = table.replace_schema_metadata({PAIR_METADATA: json.dumps(made, sort_keys=True)})
    write_table(folder / f"{part.name}.parquet", table)
    return Counts(rows_out=len(pairs), totals={"exact_pairs": len(exact), "near_pairs": len(near)})


def _read_edges(files: Sequence[Path], low: int, high: int) -> np.ndarray[Any, Any]:
    """The edges with low <= a < high of files that are each sorted by a."""
    pieces = [np.empty(0, EDGE)]
    for file in files:
        stored = np.load(file, mmap_mode="r")
        start, stop = np.searchsorted(stored["a"], np.array([low, high], dtype=np.uint64))
        pieces.append(np.array(stored[start:stop]))
    return distinct_edges(np.concatenate(pieces))


def _name_pairs(
    pairs: np.ndarray[Any, Any], kinds: np.ndarray[Any, Any], signatures: Sequence[Path], corpus: Corpus
) -> pa.Table:
    numbers = np.unique(np.concatenate((pairs["a"], pairs["b"])))
    documents = document_table(numbers, signatures, corpus)
    columns: list[pa.ChunkedArray | pa.Array] = []
    for side in ("a", "b"):
        columns += documents.take(pa.array(np.searchsorted(numbers, pairs[side]))).columns
    columns += [pa.array(pairs["similarity"]), pa.array(kinds, pa.string())]
    return pa.Table.from_arrays(columns, schema=PAIR_SCHEMA)


if __name__ == "__main__":
    stage_main("dataprep.find_duplicates")
