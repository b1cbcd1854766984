"""Long lists in pieces: the same lines with the same numbers, however they are cut."""

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.url_lists import pieces
from dataprep.url_lists.pieces import cut, read_blocks
from pipelines.errors import UserError


def read(file: Path) -> list[tuple[int, bytes]]:
    lines: list[tuple[int, bytes]] = []
    for piece in cut([file]):
        for first, block in read_blocks(piece):
            lines += enumerate(block.split(b"\n"), first)
    return lines


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(text=st.lists(st.sampled_from([b"\n", b"a", b"long line", b"\r\n"]), max_size=60).map(b"".join))
@pytest.mark.parametrize(("piece_bytes", "block_bytes"), [(1, 1), (7, 3), (20, 64), (1000, 5)])
def test_pieces_hold_all_lines_with_their_numbers(
    text: bytes, piece_bytes: int, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(pieces, "BLOCK_BYTES", block_bytes)
    (tmp_path / "list.txt").write_bytes(text)
    (tmp_path / "list.txt.gz").write_bytes(gzip.compress(text))
    wanted = [(number, line) for number, line in enumerate(text.split(b"\n"), 1) if line]
    assert [(number, line) for number, line in read(tmp_path / "list.txt") if line] == wanted
    assert [(number, line) for number, line in read(tmp_path / "list.txt.gz") if line] == wanted


def test_a_long_plain_list_is_many_pieces_and_a_compressed_one_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)
    text = b"http://garden.test/page\n" * 50
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    found = cut([tmp_path / "a.txt", tmp_path / "b.txt.gz"])
    assert [piece.number for piece in found] == list(range(11))
    assert [piece.list_number for piece in found] == [0] * 10 + [1]
    assert [piece.first_line for piece in found[:3]] == [1, 6, 11]


def test_a_line_without_end_is_one_clear_line_and_not_all_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LONGEST_LINE", 1000)
    monkeypatch.setattr(pieces, "BLOCK_BYTES", 100)
    text = b"http://garden.test/\n" + b"x" * 5000
    (tmp_path / "list.txt").write_bytes(text)
    with pytest.raises(UserError, match=r"list.txt:2: is longer than"):
        read(tmp_path / "list.txt")
    monkeypatch.setattr(pieces, "PIECE_BYTES", 50)
    with pytest.raises(UserError, match=r"list.txt:2: is longer than"):
        read(tmp_path / "list.txt")


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"PK\x03\x04", "a zip archive: unpack it"),
        (b"\x1f\x8b\x08", r"gzip data: let its name end in .gz"),
        (b"\xff\xfeh\0t\0", "UTF-16 text: save it as UTF-8"),
        (b"http\0", "binary data"),
    ],
)
def test_a_file_that_is_no_text_is_one_clear_line(start: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(start + b"\nhttp://garden.test/\n")
    with pytest.raises(UserError, match=message):
        read(tmp_path / "list.txt")
