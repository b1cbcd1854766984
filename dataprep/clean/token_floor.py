"""The token floor: whether a text has at least a given number of tokens, decided without encoding more than needed.

A lower bound from the words or bytes of a text settles most cases. Otherwise growing prefixes are encoded that end
between two pre-tokens: BPE and similar models never merge across pre-tokens, so a prefix has no more tokens than its
text. Where the ids of a text are those of its chunks (`dataprep.text.tokenizers.CHUNK`), the tokens of each chunk are
counted once.

Without a tokenizer the floor counts GPT-2's pre-tokens and says so. A text never has more pre-tokens than tokens (in
1,000 documents of OpenWebText, 8 % fewer), so it may be rejected for too few of them although it has enough tokens. A
pipeline that trains its tokenizer on the cleaned corpus, or fetches it later, has no tokenizer yet.
"""

import re
from collections.abc import Iterator
from typing import Any, cast

import regex

from dataprep.text.tokenizers import CHUNK, TextEncoder, count_chunks, settings_of, splits_into_words, splitter

PRE_TOKENS = "pre-tokens"
"""What the floor counts without a tokenizer, as written in rejected rows and thresholds."""
# GPT-2's pre-tokenizer (openai/gpt-2, src/encoder.py).
_PRE_TOKEN = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_CUTS = {
    "ByteLevel": re.compile(r"\S[ \n]"),
    "Whitespace": re.compile(r"\S[ \n]"),
    "WhitespaceSplit": re.compile(r"\S[ \n]"),
    "BertPreTokenizer": re.compile(r"\S[ \n]"),
    "Metaspace": re.compile(r"\S "),
    "Split": re.compile(r"\S "),
}
"""For each kind of pre-tokenizer, where a pre-token always ends: before the last character of a match."""
_FIRST_PREFIX = 8
"""Characters of the first prefix per token of the floor; English text has 4 to 5 characters per token."""
_GROWTH = 4
_WINDOW = 4096
"""Characters at the end of a prefix in which a cut is searched for."""
_BYTES = 256
_CHUNK_CHARACTERS = 32
"""Longest chunk whose number of tokens is kept."""
_MOST_CHUNKS = 1 << 17
"""Chunks that are kept, in about 20 MB; then all are forgotten."""


def count_pre_tokens(text: str, enough: int | None = None) -> int:
    """Count GPT-2's pre-tokens in `text`, up to `enough`.

    Each becomes at least one of GPT-2's tokens, so their number is a lower bound of the tokens.
    """
    count = 0
    for _ in _PRE_TOKEN.finditer(text):
        count += 1
        if count == enough:
            break
    return count


class _ChunkTokens(dict[str, int]):
    """The number of tokens of each chunk that was asked for."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self._encoder = encoder

    def __missing__(self, chunk: str) -> int:
        count = self._encoder.count(chunk)
        if len(chunk) <= _CHUNK_CHARACTERS:
            if len(self) == _MOST_CHUNKS:
                self.clear()
            self[chunk] = count
        return count


class TokenFloor:
    """Decides whether texts have enough tokens, by a tokenizer or else by GPT-2's pre-tokens."""

    def __init__(self, encoder: TextEncoder | None) -> None:
        self._encoder = encoder
        settings: dict[str, Any] = settings_of(encoder.tokenizer) if encoder else {}
        self._splits_words = encoder is None
        self._longest_token = 0
        self._cut: re.Pattern[str] | None = None
        self._chunk_tokens: _ChunkTokens | None = None
        # With truncation, dropout or a normalizer, a part of a text would not be a bound for the whole.
        plain = not any((settings.get("truncation"), settings.get("padding"), settings.get("normalizer")))
        model: dict[str, Any] = settings.get("model") or {}
        if not encoder or not plain or model.get("dropout"):
            return
        kind = splitter(settings["pre_tokenizer"])
        self._cut = _CUTS.get(kind)
        if _holds_every_byte(model, settings["pre_tokenizer"]):
            self._longest_token = max(map(len, cast(dict[str, int], model["vocab"])))
            self._splits_words = kind == "ByteLevel"
        if splits_into_words(encoder.tokenizer, settings):
            self._chunk_tokens = _ChunkTokens(encoder)

    def count(self, text: str) -> int:
        """Count the tokens of the whole text, end-of-text not counted."""
        if self._chunk_tokens is not None:
            return sum(map(self._chunk_tokens.__getitem__, CHUNK.findall(text)))
        return self._encoder.count(text) if self._encoder else count_pre_tokens(text)

    def shortfall(self, text: str, floor: int) -> int | None:
        """Return the number of tokens if it is below `floor`, else None; the result is that of counting all tokens."""
        if self._reaches_cheaply(text, floor):
            return None
        if self._encoder is None:
            count = count_pre_tokens(text, floor)
            return count if count < floor else None
        if any(self.count(prefix) >= floor for prefix in self._prefixes(text, floor)):
            return None
        count = self.count(text)
        return count if count < floor else None

    def _reaches_cheaply(self, text: str, floor: int) -> bool:
        """Decide by words or chunks, if each is at least one pre-token, or by bytes, by those of the longest token."""
        if self._splits_words:
            start = text[: 16 * floor].encode("utf-8", "replace")
            if len(start.split(None, floor)) >= floor or count_chunks(start) >= floor:
                return True
        enough = floor * self._longest_token
        return bool(enough) and 4 * len(text) >= enough and len(text.encode("utf-8", "replace")) >= enough

    def _prefixes(self, text: str, floor: int) -> Iterator[str]:
        size = _FIRST_PREFIX * floor
        while self._cut and size < len(text):
            start = max(0, size - _WINDOW)
            cuts = [match.end() - 1 for match in self._cut.finditer(text, start, size)]
            if cuts:
                yield text[: cuts[-1]]
            size *= _GROWTH


def _holds_every_byte(model: dict[str, Any], pre_tokenizer: dict[str, Any] | None) -> bool:
    """Return whether a model is byte-level BPE with a token for every byte, so that no part of a text vanishes."""
    from tokenizers.pre_tokenizers import ByteLevel

    steps = (pre_tokenizer or {}).get("pretokenizers") or [pre_tokenizer or {}]
    alphabet: list[str] = ByteLevel.alphabet()
    return (
        model.get("type") == "BPE"
        and bool(steps)
        and steps[-1].get("type") == "ByteLevel"
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and len(alphabet) == _BYTES
        and all(character in model["vocab"] for character in alphabet)
    )
