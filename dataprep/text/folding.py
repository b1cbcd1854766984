"""Texts in the form in which they are compared: NFC, case-folded, white space collapsed.

Many texts are folded at a time, as UTF-8 bytes end to end, straight from Arrow's buffers. Array operations fold ASCII
letters and white space; a text with a character that NFC or case folding may change goes through Python's
`unicodedata.normalize` and `str.casefold`. The results equal those of `fold_text`. The native kernel replaces the array
operations if it is available.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dataprep.native.kernel import kernel
from dataprep.text.characters import SPACE, UNSTABLE, character_flags, wide_characters
from pipelines.native.hashes import digests

Array = np.ndarray[Any, Any]

_BATCH_BYTES = 1 << 19
"""Bytes of text per array operation: small enough for the cache, large enough to hide Python's overhead."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts end to end: text i is the UTF-8 bytes `data[starts[i]:ends[i]]`."""

    data: Array
    starts: Array
    ends: Array

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def spans(self) -> tuple[Array, Array, Array]:
        """The arguments of the native kernel."""
        return self.data, self.starts, self.ends

    def encoded(self, number: int) -> bytes:
        """Return the bytes of one text."""
        return self.data[self.starts[number] : self.ends[number]].tobytes()

    def replace(self, numbers: Array, replacements: Sequence[str]) -> "Texts":
        """Return all texts, with others in place of those with the ascending `numbers`; these must lie end to end."""
        if not len(numbers):
            return self
        sizes = self.ends - self.starts
        parts: list[Array] = []
        done = 0
        for number, replacement in zip(numbers.tolist(), replacements, strict=True):
            encoded = np.frombuffer(replacement.encode(), np.uint8)
            parts += [self.data[done : self.starts[number]], encoded]
            sizes[number] = len(encoded)
            done = int(self.ends[number])
        ends = np.cumsum(sizes)
        return Texts(np.concatenate([*parts, self.data[done:]]), ends - sizes, ends)


def text_pieces(texts: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Yield a column of texts in slices of about half a megabyte, each with the number of its first row."""
    ends = raw_texts(texts).ends
    start = 0
    while start < len(texts):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _BATCH_BYTES, side="right")))
        yield start, texts.slice(start, stop - start)
        start = stop


def fold_text(text: str) -> str:
    """Return one text as it is compared: NFC, then case-folded, with white space collapsed to single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def raw_texts(texts: pa.Array | Sequence[str]) -> Texts:
    """Return texts unchanged; without a copy if they come from Arrow."""
    array: Any = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    _, offsets_buffer, data_buffer = array.buffers()
    width = np.int64 if pa.types.is_large_string(array.type) else np.int32
    offsets = np.frombuffer(offsets_buffer, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    if not len(array) or data_buffer is None:
        return Texts(np.empty(0, np.uint8), np.zeros(len(array), np.int64), np.zeros(len(array), np.int64))
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]]
    return Texts(data, offsets[:-1] - offsets[0], offsets[1:] - offsets[0])


def fold_texts(texts: Texts) -> Texts:
    """Apply `fold_text` to every text; the texts must lie end to end, as `raw_texts` returns them."""
    native = kernel()
    if native is None:
        return _collapse_spaces(fold_case(texts))
    return Texts(*native.fold(_fold_unstable(texts, native.unstable(texts.spans)).spans))


def text_hashes(texts: Texts) -> Array:
    """Return a 128-bit hash (xxh3) of each text's bytes, (num_texts, 16) uint8; different texts have different ones."""
    return digests(np.ascontiguousarray(texts.data), texts.starts, texts.ends)


def fold_case(texts: Texts) -> Texts:
    """Apply NFC and case folding; only a text with an UNSTABLE character costs more than array operations."""
    starts, _, points = wide_characters(texts.data)
    unstable = starts[(character_flags()[points] & UNSTABLE) != 0] if len(starts) else starts
    stable = _fold_unstable(texts, np.unique(np.searchsorted(texts.ends, unstable, side="right")))
    folded = stable.data | ((stable.data - np.uint8(ord("A"))) < 26).view(np.uint8) << 5
    return Texts(folded, stable.starts, stable.ends)


def _fold_unstable(texts: Texts, numbers: Array) -> Texts:
    """Apply Python's NFC and case folding to the texts with these numbers; all texts must lie end to end."""
    decoded = (texts.encoded(number).decode() for number in numbers.tolist())
    return texts.replace(numbers, [unicodedata.normalize("NFC", text).casefold() for text in decoded])


def _collapse_spaces(texts: Texts) -> Texts:
    """Collapse every run of white space to one space, and strip the ends of each text. Overwrites `texts.data`."""
    data = texts.data
    space = (data == 32) | ((data - np.uint8(9)) < 5) | ((data - np.uint8(28)) < 4)
    starts, sizes, points = wide_characters(data)
    if len(starts):
        wide = (character_flags()[points] & SPACE) != 0
        for extra in range(3):
            space[starts[wide & (sizes > extra)] + extra] = True
    data[space] = 32
    # A space after a space is dropped, and so is one at the start of a text.
    drop = np.empty_like(space)
    drop[1:] = space[1:] & space[:-1]
    first = texts.starts[texts.starts < texts.ends]
    drop[first] = space[first]
    # Continuation bytes at the start of a text belong to a wide space that was dropped as a whole.
    dropped = np.flatnonzero(drop)
    kept = data[~drop]
    new_starts = texts.starts - np.searchsorted(dropped, texts.starts)
    new_ends = texts.ends - np.searchsorted(dropped, texts.ends)
    filled = new_ends > new_starts
    new_ends[filled] -= kept[new_ends[filled] - 1] == 32
    return Texts(kept, new_starts, new_ends)
