"""Which document a trained token came from: `python -m pipelines explain --token train:123456`.

The tokens of a folder are numbered in order of its shards, from 0 on, as the trainer reads them. The place of the
token in the text is found by decoding its document and encoding it again, which gives the same tokens and where
each of them stands in the text; where it does not (a tokenizer that changes texts), the token alone is shown.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelines import store
from pipelines.documents import part_files, read_rows
from pipelines.errors import ConfigError, UserError, did_you_mean
from pipelines.graph import GraphStage
from pipelines.tokens import TokenMeta, TokenShard, open_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTEXT = 200
"""Characters of text on both sides of the token."""
TOKENIZER_JSON = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class TokenPlace:
    """One token of a folder of shards."""

    shard: TokenShard
    row: int
    """Its document in the shard."""
    index: int
    """Its place in the document."""
    before: int
    """Tokens of the folder before its document."""

    @property
    def doc_id(self) -> str:
        """Its document's id, in hex."""
        return self.shard.doc_ids[self.row].hex()

    @property
    def ids(self) -> list[int]:
        """Tokens of its document, end-of-text included."""
        return self.shard.tokens[self.shard.offsets[self.row] : self.shard.offsets[self.row + 1]].tolist()

    def describe(self) -> str:
        """Shard, document and place."""
        size = len(self.ids)
        path = self.shard.path
        return (
            f"{path.parent.name}/{path.name}: document {self.row}, tokens {self.before} to {self.before + size - 1} "
            f"of the folder; this is number {self.index} of {size}, from 0 on"
        )


def explain_token(key: str, stages: list[GraphStage]) -> Iterator[tuple[str, str]]:
    """(word, what is known) of token `SPLIT:INDEX` or `FOLDER:INDEX`: its place, document and text.

    Raises ConfigError for a key that is none, UserError for an unknown split or an index out of range.
    """
    folder, index = parse_key(key, stages)
    place = find_token(folder, index)
    yield "token", f"{place.ids[place.index]} at {place.describe()}"
    yield "document", place.doc_id
    yield from (("url", f"{row['url']} (source {row['source'] or 'unknown'})") for row in document_rows(place, stages))
    tokenizer = find_tokenizer(place.shard.meta, stages)
    if tokenizer is None:
        yield "text", "not shown: no stage of this project's graph has the tokenizer that made these shards"
    else:
        yield "text", marked_text(place, tokenizer)


def parse_key(key: str, stages: list[GraphStage]) -> tuple[Path, int]:
    """The folder of token shards that is meant, and the index."""
    name, _, number = key.rpartition(":")
    if not name or not number.removeprefix("-").isdecimal():
        raise ConfigError(f"--token {key}: expected SPLIT:INDEX such as train:123456, or FOLDER:INDEX")
    splits = {out.name: out for stage in stages if stage.name == "tokenize" for out in stage.outs}
    folder = splits.get(name, Path(name))
    if not folder.is_dir():
        missing = (
            f"{folder}: not there yet; run tokenize first" if name in splits else f"{name}: no such split or folder"
        )
        raise UserError(f"--token {key}: {missing}.{'' if name in splits else did_you_mean(name, splits)}")
    return folder, int(number)


def find_token(folder: Path, index: int) -> TokenPlace:
    """Token `index` of a folder; a negative one counts from the end."""
    shards = open_tokens(folder)
    total = sum(len(shard.tokens) for shard in shards)
    if not -total <= index < total:
        span = f"0 to {total - 1}, or -{total} to -1 from the end" if total else "there is none"
        raise UserError(f"{folder}: has no token {index}: it has {total:,} ({span})")
    place = before = index % total
    for shard in shards:
        if place < len(shard.tokens):
            # A document without tokens does not exist: each has its end-of-text.
            row = int(shard.offsets.searchsorted(place, side="right")) - 1
            inside = place - int(shard.offsets[row])
            return TokenPlace(shard, row, inside, before - inside)
        place -= len(shard.tokens)
    raise AssertionError(f"{folder}: token {index} of {total} is in no shard")


def document_rows(place: TokenPlace, stages: list[GraphStage]) -> Iterator[dict[str, Any]]:
    """The rows of the documents that were tokenized which have this id; there may be several."""
    for stage in stages:
        for out in stage.outs if stage.name == "split" else ():
            for file in part_files(out):
                rows = read_rows(file, ["doc_id", "url", "source"])
                yield from (row for row in rows if row["doc_id"].hex() == place.doc_id)


def find_tokenizer(meta: TokenMeta, stages: list[GraphStage]) -> "Tokenizer | None":
    """The tokenizer of these shards, which takes special tokens in a text for text; None where there is none."""
    for stage in stages:
        for file in (out / TOKENIZER_JSON for out in stage.outs if stage.name == "tokenizer"):
            if file.exists() and store.sha256(file) == meta.tokenizer_sha256:
                from tokenizers import Tokenizer

                tokenizer = Tokenizer.from_file(str(file))
                tokenizer.encode_special_tokens = True
                tokenizer.no_truncation()
                tokenizer.no_padding()
                return tokenizer
    return None


def marked_text(place: TokenPlace, tokenizer: "Tokenizer") -> str:
    """The text around the token, which stands between >>> and <<<; line ends and the like are escaped."""
    ids = place.ids[:-1]
    text = tokenizer.decode(ids, skip_special_tokens=False)
    if place.index == len(ids):
        start = stop = len(text)
        note = " (end-of-text: the end of the document)"
    else:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if encoding.ids != ids:
            return f"{tokenizer.decode(ids[place.index : place.index + 1])!r}; its place in the text cannot be told"
        start, stop = encoding.offsets[place.index]
        note = f" (characters {start} to {stop} of {len(text)})"
    pieces = (text[max(0, start - CONTEXT) : start], text[start:stop], text[stop : stop + CONTEXT])
    before, token, after = (json.dumps(piece, ensure_ascii=False)[1:-1] for piece in pieces)
    left, right = "..." * (start > CONTEXT), "..." * (stop + CONTEXT < len(text))
    return f"{left}{before}>>>{token}<<<{after}{right}{note}"
