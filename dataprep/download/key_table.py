"""Rows by 128-bit key, on disk: sorted out of core, then looked up many at a time.

For more keys than memory holds: a spill needs memory for one of its 256 buckets, a table for one key in 64. Both
hold numpy records that begin with the field of KEY.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from pipelines import store

KEY = [("key", "S16")]
"""The first field of every row. All keys have the same length, so they compare correctly as bytes."""
_BUCKETS = 256
_PENDING_BYTES = 1 << 24
_BLOCK_ROWS = 64
_FIND_BYTES = 1 << 23

Rows = npt.NDArray[np.void]
Keys = npt.NDArray[np.bytes_]


def key_of(text: str) -> bytes:
    """Return the key of a URL, or of any other text that identifies a row."""
    return xxhash.xxh3_128_digest(text.encode("utf-8", "surrogatepass"))


def keys_of(texts: Iterable[str]) -> Keys:
    """Return the keys of many texts."""
    return np.frombuffer(b"".join(map(key_of, texts)), "S16")


def repeats(rows: Rows) -> npt.NDArray[np.bool_]:
    """Mark the rows that have the same key as the row before; the rows are in order of key."""
    same = rows["key"][1:] == rows["key"][:-1]
    return np.concatenate([np.zeros(min(len(rows), 1), bool), same])


class KeySpill:
    """Takes rows in any order and returns them in order of key; rows of equal keys keep the order of their arrival."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        store.remove(folder)
        folder.mkdir(parents=True)
        self._folder = folder
        self._dtype = dtype
        self._pending: list[Rows] = []
        self._pending_bytes = 0

    def add(self, rows: Rows) -> None:
        """Add rows."""
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= _PENDING_BYTES:
            self._flush()

    def buckets(self) -> Iterator[Rows]:
        """Yield all rows in order of key, a bucket at a time; only once, since each file is removed after reading."""
        self._flush()
        for number in range(_BUCKETS):
            file = self._bucket(number)
            if file.exists():
                rows = np.fromfile(file, self._dtype)
                file.unlink()
                halves = _halves(rows)
                yield rows[np.lexsort((halves[:, 1], halves[:, 0]))]

    def _bucket(self, number: int) -> Path:
        return self._folder / f"{number:03d}"

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = np.concatenate(self._pending)
        self._pending, self._pending_bytes = [], 0
        numbers = (_halves(rows)[:, 0] >> np.uint64(56)).astype(np.uint8)
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=_BUCKETS))
        for number, part in enumerate(np.split(rows[order], ends[:-1])):
            if len(part):
                with self._bucket(number).open("ab") as file:
                    part.tofile(file)


def _halves(rows: Rows) -> npt.NDArray[np.uint64]:
    """Return each key as two numbers, which sort faster than bytes."""
    return np.ascontiguousarray(rows["key"]).view(">u8").reshape(-1, 2).astype("<u8")


class KeyTable:
    """One row for each key; of rows with equal keys the last one counts. In memory: the first key of each block."""

    def __init__(self, file: Path, dtype: np.dtype[Any], firsts: Keys) -> None:
        self._file = file
        self._dtype = dtype
        self._firsts = firsts

    @classmethod
    def build(cls, folder: Path, dtype: np.dtype[Any], batches: Iterable[Rows]) -> "KeyTable":
        """Build the table of all `batches` in `folder`."""
        spill = KeySpill(folder, dtype)
        for batch in batches:
            spill.add(batch)
        firsts, written = [np.zeros(0, "S16")], 0
        with (folder / "rows").open("wb") as file:
            for rows in spill.buckets():
                last = rows[~np.append(repeats(rows)[1:], False)]
                firsts.append(last["key"][-written % _BLOCK_ROWS :: _BLOCK_ROWS].copy())  # a view would keep it all
                last.tofile(file)
                written += len(last)
            file.write(b"\xff" * dtype.itemsize * (-written % _BLOCK_ROWS))
        return cls(folder / "rows", dtype, np.concatenate(firsts))

    def find(self, keys: Keys) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Return the row of each key (any row, if there is none), and a mask of the keys that have one."""
        if not len(self._firsts) or not len(keys):
            return np.zeros(len(keys), self._dtype), np.zeros(len(keys), bool)
        step = max(_FIND_BYTES // (_BLOCK_ROWS * self._dtype.itemsize), 1)
        with self._file.open("rb") as file:
            parts = [self._find(file.fileno(), keys[i : i + step]) for i in range(0, len(keys), step)]
        rows = np.concatenate(parts)
        return rows, rows["key"] == keys

    def _find(self, file: int, keys: Keys) -> Rows:
        blocks = np.maximum(np.searchsorted(self._firsts, keys, side="right") - 1, 0)
        wanted, which = np.unique(blocks, return_inverse=True)
        size = _BLOCK_ROWS * self._dtype.itemsize
        data = b"".join(os.pread(file, size, block * size) for block in wanted.tolist())
        rows = np.frombuffer(data, self._dtype).reshape(-1, _BLOCK_ROWS)
        smaller = (rows["key"][which] < keys[:, None]).sum(axis=1)
        return rows[which, np.minimum(smaller, _BLOCK_ROWS - 1)]
