"""Stage `suffix_array`: an index of token shards, with which `python -m pipelines trace` finds where a text comes from.

token shards -> `suffixes-*.arrow`, one for each block of a shard, with the order of all its suffixes (format:
pipelines/suffixes.py). It needs `pip install 'millrace-gpt2[trace]'`, which brings libdivsufsort. No other stage reads
it: a graph has it if `corpus.traced` names folders of `tokenize`, such as `[train]`.

    python -m dataprep.suffix_array tokens/ index/

4 bytes on disk for each token. Memory of a worker: 14 bytes for each token of a block (24 if the vocabulary exceeds
65,536 entries), so 0.5 GB with blocks of the usual size; a document longer than a block is a block by itself.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval

from pipelines.command import Limit, Output, Part, Source, StageSpec
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from pipelines.suffixes import write_suffixes
from pipelines.tokens import MAX_TOKENS, TokenShard, open_tokens
from pipelines.unchanged import require_unchanged

VERSION = 1
SHAPED_BY = ()
"""Not even libdivsufsort: there is only one order of all suffixes."""
_MOST = 1 << 32
"""Tokens of a shard whose positions the index can hold; only a shard of a single document may have more."""
_CHUNK = 1 << 22
"""Suffixes that are looked at together when those inside of tokens are left out."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixArrayConfig:
    """The size of the blocks."""

    tokens_per_block: Annotated[int, Interval(ge=1, le=MAX_TOKENS)] = 2**25
    """Most tokens of a block. Larger ones take more memory; smaller ones make a search slower, by one look-up each."""


def suffix_array(config: SuffixArrayConfig, run: StageRun, tokens: Source, output: Output) -> None:
    """Sort the suffixes of each block by itself."""
    if not find_spec("pydivsufsort"):
        raise UserError("suffix_array: needs the package pydivsufsort; pip install 'millrace-gpt2[trace]'")
    shards = open_tokens(tokens.path)
    manifest = require_unchanged(tokens.path, ".arrow")  # also a shard that is missing
    for shard in shards:
        if len(shard.tokens) > _MOST:
            raise UserError(f"{shard.path}: {len(shard.tokens):,} tokens; an index has room for {_MOST:,} of a shard")
    parts = [
        Part(f"{shard.path.stem.replace('part', 'suffixes')}-{number:05d}", (shard.path,), last - first)
        for shard in shards
        for number, (first, last) in enumerate(blocks(shard, config.tokens_per_block))
    ]
    digests = {name: entry.sha256 for name, entry in manifest.files.items()}
    run.map(sort_block, parts, config.tokens_per_block, digests, into=output)


def blocks(shard: TokenShard, tokens_per_block: int) -> list[tuple[int, int]]:
    """Return ranges of documents (first, last + 1) of at most so many tokens; a longer document alone."""
    found: list[tuple[int, int]] = []
    first = 0
    while first < len(shard):
        last = int(shard.offsets.searchsorted(shard.offsets[first] + tokens_per_block, side="right")) - 1
        found.append((first, max(last, first + 1)))
        first = found[-1][1]
    return found


def sort_block(part: Part, folder: Path, tokens_per_block: int, digests: dict[str, str]) -> Counts:
    """Write the suffix array of one block, whose number is the end of the part's name."""
    shard = TokenShard(part.file)
    first, last = blocks(shard, tokens_per_block)[int(part.name.rpartition("-")[2])]
    begin, end = int(shard.offsets[first]), int(shard.offsets[last])
    starts = sorted_suffixes(shard.tokens[begin:end])
    starts += np.uint32(begin)
    write_suffixes(folder / f"{part.name}.arrow", starts, part.file.name, digests[part.file.name])
    return Counts(last - first, last - first, totals={"tokens": end - begin})


def sorted_suffixes(tokens: Array) -> Array:
    """Return the start of each suffix of `tokens` (uint32), in the order of the suffixes.

    libdivsufsort sorts bytes. With the high byte of a token first, the order of bytes is that of tokens, and the
    suffixes that begin inside of a token are left out.
    """
    from pydivsufsort import divsufsort  # pyright: ignore[reportMissingImports] - an extra

    width = tokens.itemsize
    of_bytes: Array = divsufsort(tokens.astype(tokens.dtype.newbyteorder(">")).view(np.uint8))
    starts = np.empty(len(tokens), np.uint32)
    filled = 0
    for begin in range(0, len(of_bytes), _CHUNK):
        chunk = of_bytes[begin : begin + _CHUNK]
        whole = chunk[chunk % width == 0] // width
        starts[filled : filled + len(whole)] = whole
        filled += len(whole)
    return starts


STAGE = StageSpec.of(
    suffix_array,
    VERSION,
    SHAPED_BY,
    sources={"tokens": "token shards: a folder that tokenize wrote"},
    limit=Limit("documents", "tokens"),
    preload=("pydivsufsort",),
)

if __name__ == "__main__":
    stage_main("dataprep.suffix_array")
