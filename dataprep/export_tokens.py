"""Token shards as the files of other trainers: Megatron's `.bin` and `.idx`, or nanoGPT's `.bin`.

token shards -> NAME_text_document.bin and .idx (Megatron's indexed data set, one sequence per document including its
end-of-text), or NAME.bin (nanoGPT's stream of tokens). Both contain every token of the shards, in order.

    python -m dataprep.export_tokens tokens/ megatron/ --format megatron

Formats: NVIDIA/Megatron-LM: megatron/core/datasets/indexed_dataset.py; karpathy/nanoGPT:
data/openwebtext/prepare.py and get_batch of train.py.
"""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipelines.command import Limit, Output, Part, Source, StageSpec
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from pipelines.tokens import TokenMeta, TokenShard, open_tokens
from pipelines.unchanged import require_unchanged

VERSION = 1
SHAPED_BY = ()
CHUNK = 1 << 22
"""Numbers that are converted and written at a time."""
MEGATRON_MAGIC = b"MMIDIDX\0\0"
MEGATRON_VERSION = 1
MEGATRON_DTYPES = {np.dtype(np.int32): 4, np.dtype(np.uint16): 8}
"""Megatron's codes of the two types that it uses for tokens."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTokensConfig:
    """Which files to write."""

    format: Literal["megatron", "nanogpt"] = "megatron"
    """megatron: .bin and .idx; nanogpt: one .bin."""
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    """nanogpt only. auto: uint16, which its train.py reads; for uint32, change each np.memmap in train.py to it."""
    name: str = "train"
    """Name of the files: nanoGPT looks for train.bin and val.bin."""


def check_config(config: ExportTokensConfig) -> None:
    """Refuse settings that do not fit together, before any input is opened."""
    if not re.fullmatch(r"[\w.-]+", config.name) or config.name.startswith("."):
        raise ConfigError(f"export_tokens.name: {config.name!r} is not a file name; use letters, digits, - and _")
    if config.format == "megatron" and config.dtype != "auto":
        raise ConfigError("export_tokens.dtype: Megatron's follows from the vocabulary (uint16 or int32); leave it out")


def export_tokens(config: ExportTokensConfig, run: StageRun, tokens: Source, output: Output) -> dict[str, Any]:
    """Write the files in one step."""
    shards = open_tokens(tokens.path)
    require_unchanged(tokens.path, ".arrow")  # also a shard that is missing
    dtype = choose_dtype(config, shards[0].meta)
    run.step(write_files, config.name, [shard.path for shard in shards], config, dtype.name, into=output)
    return {"format": config.format, "dtype": dtype.name}


def choose_dtype(config: ExportTokensConfig, meta: TokenMeta) -> np.dtype[Any]:
    """Return the type of a token in the file; raise UserError if it cannot hold every id of the vocabulary."""
    if config.format == "megatron":
        dtype = np.dtype(np.uint16 if meta.dtype == np.uint16 else np.int32)
        advice = "Megatron has no larger type"
    else:
        dtype = np.dtype(np.uint16 if config.dtype == "auto" else config.dtype)
        advice = "use --dtype uint32, and change np.uint16 to np.uint32 wherever its train.py opens the file"
    if meta.vocab_size - 1 > np.iinfo(dtype).max:
        raise UserError(
            f"{config.format}: a vocabulary of {meta.vocab_size:,} does not fit in {dtype.name}, "
            f"whose largest id is {np.iinfo(dtype).max:,}; {advice}"
        )
    return dtype


def write_files(part: Part, folder: Path, config: ExportTokensConfig, dtype: str) -> Counts:
    """Stream all shards once for the tokens, and once for each list of the index."""
    counts = Counts()
    name = f"{config.name}_text_document" if config.format == "megatron" else config.name
    with (folder / f"{name}.bin").open("wb") as file:
        for path in part.files:
            shard = TokenShard(path)
            counts.rows_in += len(shard)
            counts.rows_out += len(shard)
            counts.total("tokens", len(shard.tokens))
            for start in range(0, len(shard.tokens), CHUNK):
                file.write(little_endian(shard.tokens[start : start + CHUNK], dtype))
    if config.format == "megatron":
        write_index(folder / f"{name}.idx", part.files, np.dtype(dtype), counts.rows_in)
    return counts


def write_index(path: Path, shards: Iterable[Path], dtype: np.dtype[Any], documents: int) -> None:
    """Write the header, the tokens per document (int32), their byte offsets and first sequences (both int64)."""
    with path.open("wb") as file:
        file.write(MEGATRON_MAGIC)
        # The list of first sequences also contains their end, which its length includes.
        file.write(struct.pack("<QBQQ", MEGATRON_VERSION, MEGATRON_DTYPES[dtype], documents, documents + 1))
        for shard in map(TokenShard, shards):
            lengths = np.diff(shard.offsets)
            if len(lengths) and lengths.max() > np.iinfo(np.int32).max:
                raise UserError(
                    f"{shard.path}: a document of {lengths.max():,} tokens; Megatron's lengths have 31 bits"
                )
            file.write(little_endian(lengths, "int32"))
        before = 0
        for shard in map(TokenShard, shards):
            file.write(little_endian((before + shard.offsets[:-1]) * dtype.itemsize, "int64"))
            before += len(shard.tokens)
        for start in range(0, documents + 1, CHUNK):
            file.write(little_endian(np.arange(start, min(start + CHUNK, documents + 1)), "int64"))


def little_endian(numbers: Array, dtype: str) -> bytes:
    """Return `numbers` as little-endian bytes, as in both formats."""
    return numbers.astype(np.dtype(dtype).newbyteorder("<")).tobytes()


STAGE = StageSpec.of(
    export_tokens,
    VERSION,
    SHAPED_BY,
    sources={
        "tokens": "a folder of token shards, as tokenize writes it",
    },
    limit=Limit("documents", "tokens"),
    check_config=check_config,
)

if __name__ == "__main__":
    stage_main("dataprep.export_tokens")
