"""A tiny fastText model written by hand, in the format of `Args::save`, `Dictionary::save` and `Matrix::save`.

fastText 0.9.2 (facebookresearch/fastText: src/): a supervised model of whole words with softmax. Each word points to
one label.
"""

import struct
from pathlib import Path

MAGIC, VERSION = 793712314, 12
SOFTMAX, SUPERVISED = 3, 3
WORD, LABEL = 0, 1


def write_model(path: Path, labels: dict[str, list[str]]) -> Path:
    """A model whose `labels` (without `__label__`) are each known by some words."""
    words = ["</s>", *(word for known in labels.values() for word in known)]
    path.write_bytes(_header(len(labels)) + _dictionary(words, list(labels)) + _matrices(words, labels))
    return path


def _header(dimensions: int) -> bytes:
    window, epochs, min_count, negatives, word_ngrams = 5, 5, 1, 5, 1
    buckets, min_chars, max_chars, update_rate, threshold = 0, 0, 0, 100, 1e-4
    numbers = (dimensions, window, epochs, min_count, negatives, word_ngrams, SOFTMAX, SUPERVISED)
    return struct.pack("<2i8i4id", MAGIC, VERSION, *numbers, buckets, min_chars, max_chars, update_rate, threshold)


def _dictionary(words: list[str], labels: list[str]) -> bytes:
    entries = [(word, WORD) for word in words] + [(f"__label__{label}", LABEL) for label in labels]
    tokens, not_pruned = 1000, -1
    head = struct.pack("<3i2q", len(entries), len(words), len(labels), tokens, not_pruned)
    return head + b"".join(name.encode() + b"\0" + struct.pack("<qb", 10, kind) for name, kind in entries)


def _matrices(words: list[str], labels: dict[str, list[str]]) -> bytes:
    count = len(labels)
    rows = [[9.0 * (word in known) for known in labels.values()] for word in words]
    diagonal = [[float(row == column) for column in range(count)] for row in range(count)]
    return b"".join(
        struct.pack("<?2q", False, len(matrix), count) + b"".join(struct.pack(f"<{count}f", *row) for row in matrix)
        for matrix in (rows, diagonal)
    )
