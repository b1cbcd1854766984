"""Long lists in pieces, so that all workers read: byte ranges that end with a line, and their blocks.

A plain list is cut every PIECE_BYTES; a compressed one, which can be read from its start only, is one piece.
Line numbers are those of the whole file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep.url_lists.files import check_text
from pipelines import store
from pipelines.errors import UserError

PIECE_BYTES = 64 << 20
"""Bytes of a plain list that are one worker's at a time; the names of rejected files follow from it."""
BLOCK_BYTES = 4 << 20
"""Bytes read, judged and made columns at once."""
LONGEST_LINE = 16 << 20
"""Bytes; the longest submissions have less than 1 MiB."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole lines of one list file."""

    file: Path
    number: int
    """Which of all pieces, in the order of the input."""
    list_number: int
    """Which of the list files."""
    start: int = 0
    stop: int | None = None
    """Byte after the last; None: as far as it goes."""
    first_line: int = 1


def cut(files: Sequence[Path]) -> list[Piece]:
    """The pieces of list files, in order."""
    pieces: list[Piece] = []
    for list_number, file in enumerate(files):
        if file.suffix in store.COMPRESSED or file.stat().st_size <= PIECE_BYTES:
            pieces.append(Piece(file, len(pieces), list_number))
            continue
        for start, stop, first_line in line_ranges(file):
            pieces.append(Piece(file, len(pieces), list_number, start, stop, first_line))
    return pieces


def line_ranges(file: Path) -> Iterator[tuple[int, int, int]]:
    """(first byte, byte after the last, number of the first line) of each piece of a plain list."""
    start, line, size = 0, 1, file.stat().st_size
    with file.open("rb") as opened:
        while start < size:
            stop, lines = start, 0
            while stop < start + PIECE_BYTES and (block := opened.read(min(BLOCK_BYTES, start + PIECE_BYTES - stop))):
                stop, lines = stop + len(block), lines + block.count(b"\n")
            rest = opened.readline(LONGEST_LINE)
            if len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
                raise _too_long(file, line + lines)
            yield start, stop + len(rest), line
            start, line = stop + len(rest), line + lines + rest.count(b"\n")


def read_blocks(piece: Piece) -> Iterator[tuple[int, bytes]]:
    """(number of its first line, whole lines) of a piece; UserError for what is no text, or is damaged."""
    line, rest = piece.first_line, b""
    with store.reading(piece.file) as file:
        if piece.start:
            file.seek(piece.start)
        left = None if piece.stop is None else piece.stop - piece.start
        while block := file.read(BLOCK_BYTES if left is None else min(left, BLOCK_BYTES)):
            if line == 1 and not rest:
                check_text(block, piece.file)
            left = None if left is None else left - len(block)
            lines, end, rest = (rest + block).rpartition(b"\n")
            if len(rest) > LONGEST_LINE:
                raise _too_long(piece.file, line + lines.count(b"\n") + len(end))
            if end:
                yield line, lines
                line += lines.count(b"\n") + 1
    if rest:
        yield line, rest


def _too_long(file: Path, line: int) -> UserError:
    return UserError(f"{file}:{line}: is longer than {LONGEST_LINE >> 20} MiB; a list has one URL in each line")
