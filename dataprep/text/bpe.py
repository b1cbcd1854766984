"""Byte-level BPE tokenizers: loaded from any of GPT-2's file layouts, and encoded as plain text."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


def byte_level(model: BPE) -> Tokenizer:
    """A tokenizer around `model` that splits and decodes as GPT-2's does."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.post_processor = ByteLevelProcessor(trim_offsets=False)
    return tokenizer


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer at `path`: a `tokenizer.json`, or a folder with one or with a vocabulary and its merges.

    Raises UserError when there is none, a file is broken, or end-of-text is not in the vocabulary.
    """
    if not path.exists():
        raise UserError(f"{path}: no such tokenizer file or folder; check the path")
    tokenizer = _from_json(path) if path.is_file() else _from_folder(path)
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise UserError(f"{path}: the vocabulary has no {END_OF_TEXT}, which must end every document")
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    return tokenizer


def _from_folder(folder: Path) -> Tokenizer:
    if (folder / TOKENIZER_JSON).exists():
        return _from_json(folder / TOKENIZER_JSON)
    for vocabulary, merges in _PAIRS:
        if (folder / vocabulary).exists() and (folder / merges).exists():
            return _from_pair(folder / vocabulary, folder / merges)
        named = [sorted(folder.glob(f"*-{name}")) for name in (vocabulary, merges)]
        if [len(files) for files in named] == [1, 1]:  # gpt2-vocab.json and gpt2-merges.txt, as Megatron calls them
            return _from_pair(named[0][0], named[1][0])
    pairs = " or ".join(" + ".join(pair) for pair in _PAIRS)
    raise UserError(f"{folder}: holds no tokenizer; expected {TOKENIZER_JSON}, or {pairs}")


def _from_json(path: Path) -> Tokenizer:
    text = json.dumps(store.read_json(path))
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exception for a wrong file
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
    """Encodes documents as text: the characters `<|endoftext|>` in one are characters, not the token."""

    tokenizer: Tokenizer
    meta: TokenMeta

    @classmethod
    def load(cls, folder: Path) -> "TextEncoder":
        """From the folder that the stage `tokenizer` published, or any path `load_tokenizer` knows."""
        full = load_tokenizer(folder)
        settings: dict[str, Any] = json.loads(full.to_str())
        settings["added_tokens"] = []
        file = folder / TOKENIZER_JSON if folder.is_dir() else folder
        digest = store.sha256(file) if file.exists() else _digest(full)
        meta = TokenMeta(digest, full.get_vocab_size(), int(full.token_to_id(END_OF_TEXT) or 0))
        return cls(Tokenizer.from_str(json.dumps(settings)), meta)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray[Any, Any]]:
        """Token ids of each text, without end-of-text."""
        encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=self.meta.dtype) for encoding in encodings]

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)


def _digest(tokenizer: Tokenizer) -> str:
    import hashlib

    return hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()
