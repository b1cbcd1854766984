"""Best-fit-decreasing packing: pieces of documents into rows of a fixed length, with next to no padding.

The pieces are taken from the longest to the shortest, each into the fullest row that has room for it (Johnson,
"Near-optimal bin packing algorithms", 1973; for language models: Ding et al., "Fewer Truncations Improve Language
Modeling", 2024). Pieces of one length are interchangeable, so all of them are placed at once, row by row of one
kind: the result is that of the piece-by-piece algorithm, at millions of pieces a second.
"""

import numpy as np

from trainer.loader.order import Array


def best_fit_decreasing(lengths: Array, capacity: int) -> tuple[Array, Array]:
    """(pieces, rows): the numbers of all pieces in the order of placing, and the row that each is in.

    `lengths`: (P,), each in 1..capacity. Rows are numbered from 0 in the order in which they are opened.
    """
    pieces = np.argsort(-lengths.astype(np.int64), kind="stable")
    counts = np.bincount(lengths, minlength=capacity + 1).tolist()
    room: list[list[Array]] = [[] for _ in range(capacity + 1)]
    placed = [np.empty(0, np.int64)]
    opened = 0
    for length in range(capacity, 0, -1):
        left = counts[length]
        for free in range(length, capacity + 1):
            if left and room[free]:
                left -= _place(length, free, left, room, placed)
        if left:
            new = -(-left // (capacity // length))
            room[capacity].append(np.arange(opened, opened + new))
            opened += new
            _place(length, capacity, left, room, placed)
    return pieces, np.concatenate(placed)


def _place(length: int, free: int, left: int, room: list[list[Array]], placed: list[Array]) -> int:
    """Put up to `left` pieces into the rows with `free` tokens of room; returns how many found one."""
    each = free // length  # the row that just took a piece is the best fit for the next one, while it has room
    rows = np.concatenate(room[free])
    used = min(len(rows), -(-left // each))
    number = min(left, used * each)
    placed.append(np.repeat(rows[:used], each)[:number])
    room[free] = [rows[used:]] if used < len(rows) else []
    last = number - (used - 1) * each
    full = used if last == each else used - 1
    if full:
        room[free - each * length].append(rows[:full])
    if full < used:
        room[free - last * length].append(rows[full:used])
    return number
