"""JSON lines in C: simple lines to the columns of documents, and columns to lines, a batch at a time.

Installing the package builds it if there is a C compiler (setup.py). Otherwise, or with MILLRACE_LINES=python,
`module()` is None and Python does the work; both give the same rows and bytes. What is not simple is left to Python in
either case: a line that is broken, has a key twice or half of a surrogate pair, and columns of numbers.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa

from pipelines.native import built

Array = np.ndarray[Any, Any]
Found = Literal["end", "full", "rest", "line"]

VARIABLE = "MILLRACE_LINES"
_SLACK = 64
"""Bytes that reading and writing need after what they write: SLACK in lines.c."""
_FOUND: tuple[Found, ...] = ("end", "full", "rest", "line")
_POSITION, _LINES, _ROWS, _LINE_START, _LINE_END, _USED = range(6)
_TEXT, _URL, _SOURCE, _REST = range(4)
_MOST_COLUMNS = 32
_MOST_SPARE = 6
"""Pieces of memory that are kept: those of a reader with its lines, and of a writer."""
_STRING, _BINARY, _FIXED = range(3)
_WRITTEN, _GOAL, _NO_ROOM = range(3)


@functools.cache
def module() -> Any:
    """Return the compiled module; None if it was not built, or is not to be used."""
    if os.environ.get(VARIABLE) == "python":
        return None
    try:
        return built.load("pipelines.native._lines", 2)
    except ImportError:
        return None


_spare: list[Array] = []


def borrow(size: int) -> Array:
    """Return memory of at least so many bytes: what was given back, since the system clears new memory page by page."""
    fits = (number for number, spare in enumerate(_spare) if len(spare) >= size)
    number = next(fits, None)
    return np.empty(size, np.uint8) if number is None else _spare.pop(number)


def give_back(*memory: Array) -> None:
    """Take memory back that is no longer used, to be lent again."""
    _spare.extend(memory)
    _spare.sort(key=len)
    del _spare[:-_MOST_SPARE]


class LineReader:
    """Reads the lines of `data` one after the other, and collects documents as columns."""

    def __init__(self, data: bytes | memoryview, source: str, most_rows: int, most_bytes: int) -> None:
        self._data = data
        self._source = source.encode("utf-8", "surrogateescape")
        self._most = most_rows, most_bytes
        # What Python has parsed comes back with three keys and a source.
        size = len(data) + 2 * len(self._source) + (1 << 12)
        sizes = [size, size, size + most_rows * len(self._source), size]
        self._columns = [(borrow(size), np.zeros(most_rows + 1, np.int32)) for size in sizes]
        self._arguments = tuple(part for data, ends in self._columns for part in (data, ends[1:]))
        self._state = np.zeros(_USED + len(sizes), np.int64)

    @property
    def lines(self) -> int:
        """Lines read so far, blank ones too."""
        return int(self._state[_LINES])

    @property
    def rows(self) -> int:
        """Documents collected since the last `take`."""
        return int(self._state[_ROWS])

    def read(self) -> Found:
        """Go on to the end, to as many documents as may be collected, or to a line that Python has to look at.

        "rest": the line is collected, and `rest` holds its other keys, which may not be JSON.
        """
        return _FOUND[module().read(self._data, self._source, self._state, self._arguments, *self._most)]

    @property
    def line(self) -> bytes:
        """The line read last, without its end."""
        return bytes(self._data[self._state[_LINE_START] : self._state[_LINE_END]])

    def rest(self) -> bytes:
        """Take the keys of the line read last that are not ours, as an object."""
        used, self._state[_USED + _REST] = self._state[_USED + _REST], 0
        return self._columns[_REST][0][:used].tobytes()

    def drop(self) -> None:
        """Take back the document that was collected last."""
        self._state[_ROWS] -= 1
        for number in (_TEXT, _URL, _SOURCE):
            self._state[_USED + number] = self._columns[number][1][self._state[_ROWS]]

    def add(self, url: str, text: str, source: str) -> None:
        """Collect a document that Python has read of the line."""
        line = orjson.dumps({"text": text, "url": url, "source": source})
        state = self._state.copy()
        state[_POSITION] = 0
        found = module().read(line, b"", state, self._arguments, self._most[0], len(line))
        assert _FOUND[found] == "end", "orjson writes what is simple"
        self._state[_ROWS], self._state[_USED:] = state[_ROWS], state[_USED:]

    def take(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """Return the collected URLs, texts and sources. They lie in memory that the next `read` writes to."""
        columns = [self._column(number) for number in (_URL, _TEXT, _SOURCE)]
        self._state[_ROWS] = self._state[_USED:] = 0
        return columns[0], columns[1], columns[2]

    def close(self) -> None:
        """Give the memory back; what `take` returned lies in it."""
        give_back(*(data for data, _ in self._columns))

    def _column(self, number: int) -> pa.Array:
        data, ends = self._columns[number]
        buffers = [pa.py_buffer(ends[: self.rows + 1]), pa.py_buffer(data[: self._state[_USED + number]])]
        return pa.Array.from_buffers(pa.string(), self.rows, [None, *buffers])


def writes(schema: pa.Schema) -> bool:
    """Return whether `LineWriter` can write rows of these columns."""
    kinds = [_kind_of(field.type) for field in schema]
    return module() is not None and 0 < len(kinds) <= _MOST_COLUMNS and None not in kinds


def _kind_of(kind: pa.DataType) -> int | None:
    if pa.types.is_fixed_size_binary(kind):
        return _FIXED
    return {pa.string(): _STRING, pa.binary(): _BINARY}.get(kind)


class LineWriter:
    """Writes rows as JSON lines, bytes as hex, with the bytes of orjson. `to_line` writes what is not UTF-8."""

    def __init__(self, names: Sequence[str], to_line: Callable[[dict[str, Any]], bytes], goal: int) -> None:
        keys = [orjson.dumps(name) + b":" for name in names]
        self._keys = [b"{" + keys[0], *(b"," + key for key in keys[1:])]
        self._to_line = to_line
        self._goal = goal
        self._out = borrow(goal + goal // 4)
        self._most_kept = 2 * len(self._out)
        """Bytes of memory that is lent again; what a giant line has made larger is not."""
        self._state = np.zeros(2, np.int64)
        """How many rows of a batch are done, and the bytes that are written."""

    def bundles(self, batches: Iterable[tuple[pa.RecordBatch, Array | None]]) -> Iterator[memoryview]:
        """Yield the lines of all batches, joined up to `goal` bytes and the rest of the line that goes beyond.

        Beside each batch are the numbers of its rows that are written, int64; None for all. A bundle lies in memory
        that the next one is written to.
        """
        for batch, chosen in batches:
            self._state[0] = 0
            while self._write(batch, chosen, self._goal, None) == _GOAL:
                yield self._take()
        if self._state[1]:
            yield self._take()
        if len(self._out) <= self._most_kept:
            give_back(self._out)

    def lines(self, batch: pa.RecordBatch) -> list[bytes]:
        """Return the line of each row."""
        ends = np.empty(batch.num_rows, np.int64)
        self._state[0] = 0
        self._write(batch, None, 1 << 62, ends)
        data = self._take()
        return [bytes(data[start:end]) for start, end in pairwise((0, *ends.tolist()))]

    def _write(self, batch: pa.RecordBatch, chosen: Array | None, goal: int, ends: Array | None) -> int:
        """Write rows until `goal` bytes are reached, or to the last one."""
        columns = tuple(map(self._values, self._keys, batch.columns)) if batch.num_rows else ()
        while columns:
            why = module().write(columns, batch.num_rows, chosen, self._out, goal, ends, self._state)
            if why in (_WRITTEN, _GOAL):
                return why
            if why == _NO_ROOM:
                self._grow(len(self._out))
            else:
                self._write_row(batch, chosen, ends)
        return _WRITTEN

    def _write_row(self, batch: pa.RecordBatch, chosen: Array | None, ends: Array | None) -> None:
        row, used = self._state.tolist()
        line = self._to_line(batch.slice(row if chosen is None else int(chosen[row]), 1).to_pylist()[0])
        self._grow(len(line))
        self._out[used : used + len(line)] = np.frombuffer(line, np.uint8)
        self._state += (1, len(line))
        if ends is not None:
            ends[row] = self._state[1]

    def _grow(self, more: int) -> None:
        used = self._state[1]
        grown = np.empty(len(self._out) + more, np.uint8)
        grown[:used] = self._out[:used]  # the system gives memory to what is written, not to the rest
        self._out = grown

    def _take(self) -> memoryview:
        used, self._state[1] = int(self._state[1]), 0
        return self._out.data[:used]

    @staticmethod
    def _values(key: bytes, column: pa.Array) -> tuple[Any, ...]:
        """Return what lines.c reads of a column."""
        kind, buffers = _kind_of(column.type), column.buffers()
        fixed = kind == _FIXED
        width = column.type.byte_width if fixed else 0
        offsets = None if fixed else buffers[1]
        return kind, width, column.offset, key, buffers[0], offsets, buffers[-1] or b""
