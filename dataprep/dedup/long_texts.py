"""Texts of very many characters, whose shingles are made piece by piece: each character makes a hash of 8 bytes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dataprep.text.folding import Texts

Array = np.ndarray[Any, Any]

PIECE = 1 << 20
"""Bytes of a text at a time."""
_RANGES = 64


def are_among(texts: Texts) -> bool:
    """Whether a text is of more than one piece."""
    return bool((texts.ends - texts.starts > PIECE).any())


def pieces_of(texts: Texts, number: int, num_characters: int) -> Iterator[Texts]:
    """One text in pieces that overlap so that they have its runs of `num_characters` characters, each once."""
    start, end = int(texts.starts[number]), int(texts.ends[number])
    while end - start > PIECE:
        cut = start + PIECE
        window = texts.data[cut : min(cut + 4 * num_characters, end)]  # a character has at most 4 bytes
        characters = np.flatnonzero((window & 0xC0) != 0x80)[:num_characters] + cut
        if len(characters) < num_characters:
            break  # no run begins after the cut
        yield Texts(texts.data, np.array([start]), characters[-1:])
        start = int(characters[0])
    yield Texts(texts.data, np.array([start]), np.array([end]))


def union(sets: Sequence[Array]) -> Array:
    """The values of sorted arrays of uint64, sorted, each once; takes no more memory than those and the result."""
    bounds = np.arange(_RANGES, dtype=np.uint64) * np.uint64(2**64 // _RANGES)
    cuts = [np.append(each.searchsorted(bounds), len(each)) for each in sets]
    values = np.empty(sum(map(len, sets)), np.uint64)
    used = 0
    for at in range(_RANGES):
        some = np.concatenate([each[cut[at] : cut[at + 1]] for each, cut in zip(sets, cuts, strict=True)])
        some = each_once(np.sort(some, kind="stable"))
        values[used : used + len(some)] = some
        used += len(some)
    return values[:used]


def each_once(ordered: Array) -> Array:
    """The values of a sorted array, each once: np.unique takes ten times as long."""
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
