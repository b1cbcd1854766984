"""Suffix arrays: Arrow IPC files that tell where any run of tokens is in a folder of token shards.

One file per block of a token shard, which is a run of whole documents. Its column `start` (uint32) has each position of
the block once, as an index of the shard's tokens, in the order of the tokens that follow from there on: all places of a
run of tokens are neighbours, and a binary search finds them. Schema metadata: name and sha256 of the token shard.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.errors import UserError
from pipelines.manifest import load_checked
from pipelines.tokens import ARROW_ERRORS, TokenShard, open_tokens

SHARD, SHARD_SHA256 = "token_shard", "token_shard_sha256"
_COMPARED = 4096
"""Rows of a found range that are compared with what was looked for: all of a smaller one."""
Array = np.ndarray[Any, Any]


def write_suffixes(path: Path, starts: Array, shard: str, sha256: str) -> None:
    """Write one file. `starts`: positions in the shard of this name and digest, in the order of their suffixes."""
    schema = pa.schema([pa.field("start", pa.uint32())], metadata={SHARD: shard, SHARD_SHA256: sha256})
    with pa.ipc.new_file(str(path), schema) as writer:
        writer.write_batch(pa.record_batch([pa.array(starts)], schema=schema))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run of tokens begins."""

    shard: TokenShard
    row: int
    """Row of its document in the shard."""
    index: int
    """Position in the document, from 0."""
    in_folder: int
    """Number of the token in its folder, as `explain --token` counts."""

    @property
    def doc_id(self) -> str:
        """Id of its document, in hex."""
        return self.shard.doc_ids[self.row].hex()


class SuffixArray:
    """The suffix arrays of one folder of token shards, mapped into memory."""

    def __init__(self, folder: Path, tokens: Path) -> None:
        """Open the files in `folder`. Raises UserError unless they are of exactly the token shards in `tokens`."""
        self.folder, self.tokens = folder, tokens
        shards = open_tokens(tokens)
        self.meta = shards[0].meta
        before = np.cumsum([0, *(len(shard.tokens) for shard in shards)]).tolist()
        self._blocks = _open_blocks(
            folder, {shard.path.name: (shard, n) for shard, n in zip(shards, before, strict=False)}
        )
        indexed, there = sum(len(block) for block in self._blocks), before[-1]
        if indexed != there:
            raise UserError(
                f"{folder}: has {indexed:,} of the {there:,} tokens of {tokens}, so it is of other tokens or of a "
                f"trial (--limit); {_again(folder, tokens)}"
            )

    def longest(self, query: Sequence[int]) -> int:
        """Return how many tokens from the start of `query` on occur together somewhere."""
        return max((block.longest(query) for block in self._blocks), default=0)

    def count(self, run: Sequence[int]) -> int:
        """Return the number of places of a run of tokens."""
        return sum(len(block.places(run)) for block in self._blocks)

    def first(self, run: Sequence[int], number: int) -> list[Place]:
        """Return the first `number` places of a run, in the order of the shards."""
        found: list[Place] = []
        for block in self._blocks:
            if len(found) < number:
                places = block.places(run)
                starts = np.sort(block.starts[places.start : places.stop])[: number - len(found)]
                block.require_places(starts, run)
                found += [block.place(start) for start in starts.tolist()]
        return found


class _Block:
    """The suffix array of one block.

    Reading all of an index to compare it with its manifest takes minutes, a lookup less than a second: so each lookup
    checks what it meets, and raises UserError if that is in no order or found where it is not.
    """

    def __init__(self, path: Path, starts: Array, shard: TokenShard, before: int) -> None:
        self.path = path
        self.starts = starts
        self.shard = shard
        self.before = before
        """The folder's tokens before the shard."""

    def __len__(self) -> int:
        return len(self.starts)

    def longest(self, query: Sequence[int]) -> int:
        """Return how many tokens `query` has in common with the suffix that has most of them."""
        query = list(query)
        rank = self._rank(query)
        neighbours = (self._tokens(at, len(query)) for at in (rank - 1, rank) if 0 <= at < len(self))
        return max((_common(query, tokens) for tokens in neighbours), default=0)

    def places(self, run: Sequence[int]) -> range:
        """Return the rows of `starts` whose suffixes begin with `run`."""
        run = list(run)
        low = self._rank(run)
        places = range(low, self._rank(run, low, after=True))
        step = max(1, len(places) // _COMPARED)
        self.require_places(self.starts[places.start : places.stop : step], run)
        return places

    def require_places(self, starts: Array, run: Sequence[int]) -> None:
        """Raise UserError unless `run` begins at each of these positions, and these are different ones."""
        at = starts.astype(np.int64)
        if len(at) and at.max() + len(run) > len(self.shard.tokens):
            raise self._damaged()
        same = all((self.shard.tokens[at + number] == token).all() for number, token in enumerate(run))
        if not same or len(np.unique(at)) < len(at):
            raise self._damaged()

    def _rank(self, run: list[int], low: int = 0, *, after: bool = False) -> int:
        """Return how many rows are before `run`, or with `after` those that begin with it too; `low`: at least."""
        high = len(self)
        below: list[int] | None = None
        above: list[int] | None = None
        seen: set[int] = set()
        while low < high:
            middle = (low + high) // 2
            tokens, start = self._tokens(middle, len(run)), int(self.starts[middle])
            ordered = (below is None or tokens >= below) and (above is None or tokens <= above)
            if not ordered or start in seen or start >= len(self.shard.tokens):
                raise self._damaged()
            seen.add(start)
            if tokens < run or (after and tokens == run):
                low, below = middle + 1, tokens
            else:
                high, above = middle, tokens
        return low

    def _damaged(self) -> UserError:
        index = self.path.parent
        return UserError(
            f"{self.path}: damaged: its suffixes are in no order (python -m pipelines check --deep {index} compares "
            f"every byte); {_again(index, self.shard.path.parent)}"
        )

    def place(self, start: int) -> Place:
        """Return the document of a position in the shard."""
        row = int(self.shard.offsets.searchsorted(start, side="right")) - 1
        return Place(self.shard, row, start - int(self.shard.offsets[row]), self.before + start)

    def _tokens(self, at: int, number: int) -> list[int]:
        """Return the first tokens of a suffix, up to the end of its document: behind a block's, it is of no order."""
        start = int(self.starts[at])
        tokens = self.shard.tokens[start : start + number].tolist()
        end = self.shard.meta.end_of_text
        return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def _again(index: Path, tokens: Path) -> str:
    """Return how to build an index again, in a graph and outside of one."""
    command = f"python -m dataprep.suffix_array {shlex.join([str(tokens), str(index), '--overwrite'])}"
    return f"build it again: {command} (in a graph: dvc repro suffix_array@{tokens.name})"


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two runs have in common from their start on."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _open_blocks(folder: Path, shards: dict[str, tuple[TokenShard, int]]) -> list[_Block]:
    """Open all files of an index after comparing the digests that they name with the manifest of the shards."""
    manifest = load_checked(folder)
    tokens = next(iter(shards.values()))[0].path.parent
    made = {name: entry.sha256 for name, entry in load_checked(tokens).files.items()}
    blocks: list[_Block] = []
    for path in sorted(folder / name for name in manifest.files if name.endswith(".arrow")):
        try:
            with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
                metadata = {key.decode(): value.decode() for key, value in (reader.schema.metadata or {}).items()}
                name, sha256 = metadata[SHARD], metadata[SHARD_SHA256]
                starts = reader.get_batch(0).column("start").to_numpy(zero_copy_only=True)
        except ARROW_ERRORS as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path}: not a suffix array ({reason}); {_again(folder, tokens)}") from None
        if made.get(name) != sha256:
            there = f"sha256 {made[name][:12]}" if name in made else "no shard of that name"
            raise UserError(
                f"{path}: of other tokens: it was built from {name} with sha256 {sha256[:12]}, and {tokens} has "
                f"{there}; {_again(folder, tokens)}"
            )
        blocks.append(_Block(path, starts, *shards[name]))
    return blocks
