"""Hugging Face tokenizers, loaded from `tokenizer.json` or any of GPT-2's file layouts, and applied to plain text."""

import contextlib
import json
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import ByteLevel as ByteLevelProcessor

from pipelines import store
from pipelines.errors import UserError
from pipelines.tokens import TokenMeta

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_JSON = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
"""transformers' file beside a tokenizer: its `eos_token` is the name of end-of-text, if not the usual one."""
_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))

_REST = r"[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    # cl100k (openai/tiktoken, tiktoken_ext/openai_public.py), also Llama 3's; then Qwen2's.
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?{_REST}"
    for digits in ("{1,3}", "")
}
"""Patterns of `Split` known never to continue a pre-token over a space: spaces stand only at its start."""

_WORD = r"(?:[!-/:-@\[-`{-~]+[A-Za-z]*|[A-Za-z]+|[0-9]+)"
CHUNK = re.compile(rf"[^!-~]*+(?:{_WORD}(?:[^ -~][^!-~]*+{_WORD}?)*+)?")
"""The next chunk of a text, at its end an empty one.

A chunk begins at a space after a visible ASCII character, and between an ASCII letter, digit and punctuation mark (in
any order but mark, letter). No match of the patterns that `splits_into_words` accepts contains such a boundary or looks
beyond it, so a chunk alone has the same ids as in its text.
"""
_KINDS = bytes.maketrans(
    f"{string.ascii_letters}{string.digits}{string.punctuation}".encode(), b"a" * 52 + b"0" * 10 + b"!" * 32
)
_BEGINS = (b"a ", b"0 ", b"! ", b"a0", b"a!", b"0a", b"0!", b"!0")
"""Where chunks begin, as kinds of characters: letter, digit, mark, space."""


def byte_level(model: BPE) -> Tokenizer:
    """Return a tokenizer with `model` that splits and decodes as GPT-2's does."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.post_processor = ByteLevelProcessor(trim_offsets=False)
    return tokenizer


def load_tokenizer(path: Path, end_of_text: str = "") -> Tokenizer:
    """Load the tokenizer at `path`: a `tokenizer.json`, or a folder with one or with a vocabulary and its merges.

    `end_of_text` is the token that ends a document, by default the result of `end_of_text_of`. Padding and truncation
    in the file are meant for models, and are switched off. Raises UserError if there is no tokenizer, a file is broken,
    or end-of-text is not in the vocabulary.
    """
    if not path.exists():
        raise UserError(f"{path}: no such tokenizer file or folder; check the path")
    tokenizer = _from_json(path) if path.is_file() else _from_folder(path)
    end_of_text = end_of_text or end_of_text_of(path)
    if tokenizer.token_to_id(end_of_text) is None:
        special = ", ".join(added.content for _, added in special_tokens(tokenizer)) or "none"
        raise UserError(
            f"{path}: the vocabulary has no {end_of_text}, which must end every document; name the token that does as "
            f"tokenizer.end_of_text (special tokens here: {special})"
        )
    tokenizer.add_special_tokens([AddedToken(end_of_text, special=True, normalized=False)])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def end_of_text_of(path: Path) -> str:
    """Return the name of end-of-text: `eos_token` of tokenizer_config.json in a tokenizer's folder, else GPT-2's."""
    config = path / TOKENIZER_CONFIG
    token = store.read_json(config).get("eos_token") if config.exists() else None
    return str(token["content"] if isinstance(token, dict) else token or END_OF_TEXT)


def special_tokens(tokenizer: Tokenizer) -> list[tuple[int, Any]]:
    """Return ids and tokens of the special tokens, in order of id; other added tokens are ordinary text."""
    added = tokenizer.get_added_tokens_decoder()
    return [(number, token) for number, token in sorted(added.items()) if token.special]


def _from_folder(folder: Path) -> Tokenizer:
    if (folder / TOKENIZER_JSON).exists():
        return _from_json(folder / TOKENIZER_JSON)
    for vocabulary, merges in _PAIRS:
        if (folder / vocabulary).exists() and (folder / merges).exists():
            return _from_pair(folder / vocabulary, folder / merges)
        named = [sorted(folder.glob(f"*-{name}")) for name in (vocabulary, merges)]
        if [len(files) for files in named] == [1, 1]:  # Megatron's names: gpt2-vocab.json and gpt2-merges.txt
            return _from_pair(named[0][0], named[1][0])
    pairs = " or ".join(" + ".join(pair) for pair in _PAIRS)
    raise UserError(f"{folder}: holds no tokenizer; expected {TOKENIZER_JSON}, or {pairs}")


def _from_json(path: Path) -> Tokenizer:
    data = store.read_json_bytes(path)
    with contextlib.suppress(Exception):  # tokenizers raises bare Exception for a wrong file
        return Tokenizer.from_buffer(data)
    text = json.dumps(store.read_json(path))  # reads what tokenizers does not, such as a mark of the byte order
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001
        raise UserError(f"{path}: not a tokenizer file ({error}); fetch or train it again") from None


def _from_pair(vocabulary: Path, merges: Path) -> Tokenizer:
    ids = store.read_json(vocabulary)
    pairs: list[tuple[str, str]] = []
    try:
        text = merges.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{merges}: not valid UTF-8 at byte {error.start}; fetch the file again") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#version") or not line:
            continue
        first, _, second = line.partition(" ")
        if not second or first + second not in ids:
            raise UserError(
                f"{merges}:{number}: merge {line!r} does not belong to {vocabulary}; use files of one tokenizer"
            )
        pairs.append((first, second))
    return byte_level(BPE(vocab=ids, merges=pairs))


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """Encodes documents as plain text: `<|endoftext|>` in a document is encoded as characters, not as the token."""

    tokenizer: Tokenizer
    meta: TokenMeta

    @classmethod
    def load(cls, folder: Path) -> "TextEncoder":
        """Load from the folder that the stage `tokenizer` published, or from any path that `load_tokenizer` accepts."""
        tokenizer = load_tokenizer(folder)
        tokenizer.encode_special_tokens = True
        file = folder / TOKENIZER_JSON if folder.is_dir() else folder
        digest = store.sha256(file) if file.exists() else _digest(tokenizer)
        # Ids may have gaps, and the largest determines the size of a model.
        size = max(tokenizer.get_vocab().values()) + 1
        return cls(tokenizer, TokenMeta(digest, size, int(tokenizer.token_to_id(end_of_text_of(folder)) or 0)))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        """Return the token ids of each text, without end-of-text."""
        offsets, ids = self.encode_rows(texts)
        return np.split(ids, offsets[1:-1]) if texts else []

    def encode_rows(self, texts: Sequence[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return `(offsets, ids)` of all texts in one array: text i has `ids[offsets[i]:offsets[i + 1]]`."""
        rows = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(list(map(len, rows)), out=offsets[1:])
        return offsets, np.fromiter(chain.from_iterable(rows), self.meta.dtype, int(offsets[-1]))

    def count(self, text: str) -> int:
        """Count the tokens of `text`."""
        return len(self.tokenizer.encode(text, add_special_tokens=False))


def _digest(tokenizer: Tokenizer) -> str:
    import hashlib

    return hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()


def count_chunks(data: bytes) -> int:
    """Return the number of chunks of a text in UTF-8."""
    kinds = data.translate(_KINDS)
    first = 1 if data else 0  # no character before it says that it begins
    return first + sum(map(kinds.count, _BEGINS))


def settings_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a tokenizer as its tokenizer.json holds it."""
    return orjson.loads(tokenizer.to_str())


def uses_model_alone(tokenizer: Tokenizer, settings: dict[str, Any]) -> bool:
    """Return whether ids of text follow from the model alone, every time: no added tokens in text, no dropout."""
    ordinary = {number for number, _ in special_tokens(tokenizer)} < set(tokenizer.get_added_tokens_decoder())
    return not ordinary and not settings["model"].get("dropout")


def splits_into_words(tokenizer: Tokenizer, settings: dict[str, Any]) -> bool:
    """Return whether the ids of a text are those of its chunks (`CHUNK`), one after the other.

    The tokenizer has a pre-tokenizer whose boundaries are known, and nothing that precedes it.
    """
    pre_tokenizer = settings["pre_tokenizer"] or {}
    prefixes = any(step.get("add_prefix_space") for step in [pre_tokenizer, *pre_tokenizer.get("pretokenizers", [])])
    known = not settings["normalizer"] and not prefixes and splitter(pre_tokenizer) in ("ByteLevel", "Split")
    return known and uses_model_alone(tokenizer, settings)


def splitter(pre_tokenizer: dict[str, Any] | None) -> str:
    """Return the kind of a pre-tokenizer if it splits texts itself, else an empty string."""
    settings = pre_tokenizer or {}
    match settings.get("pretokenizers"):
        case [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}, {"type": "ByteLevel"}]:
            return "Split" if pattern in _SPLITS else ""
        case _:
            pass
    splits = settings.get("use_regex", True) and settings.get("split", True)
    return str(settings.get("type", "")) if splits else ""
