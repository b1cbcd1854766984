"""Members of compressed files: in order, in pieces of bounded size, and found again after damage."""

import gzip
import io
import zlib
from pathlib import Path

import pytest
import zstandard

from dataprep.sources.members import CUT_OFF, Piece, ZstdInflater, codec_of, read_pieces

TEXTS = [b"R%d " % i + b"some words " * 30 * i for i in range(6)]
GZIP = [gzip.compress(text) for text in TEXTS]
ZSTD = [zstandard.ZstdCompressor(write_checksum=True).compress(text) for text in TEXTS]


def starts(data: bytes) -> bool:
    return data.startswith(b"R")


def pieces(folder: Path, data: bytes, name: str = "a", offset: int = 0) -> list[Piece]:
    (folder / name).write_bytes(data)
    with (folder / name).open("rb") as file:
        return list(read_pieces(file, codec_of(file, starts), offset, starts))


@pytest.mark.parametrize("members", [GZIP, ZSTD], ids=["gzip", "zstd"])
def test_members_are_told_apart(members: list[bytes], tmp_path: Path) -> None:
    found = pieces(tmp_path, b"".join(members))
    assert b"".join(piece.data for piece in found) == b"".join(TEXTS)
    assert [piece.offset for piece in found if piece.opens] == [len(b"".join(members[:i])) for i in range(6)]
    rest = pieces(tmp_path, b"".join(members), offset=len(b"".join(members[:3])))
    assert b"".join(piece.data for piece in rest) == b"".join(TEXTS[3:])


@pytest.mark.parametrize("members", [GZIP, ZSTD], ids=["gzip", "zstd"])
def test_after_damage_comes_the_next_member_that_holds_a_record(members: list[bytes], tmp_path: Path) -> None:
    pack = gzip.compress if members is GZIP else ZSTD_PACK
    other = pack(b"no record")
    data = b"".join([members[0], members[1][:-9], b"?" * 9, other, *members[2:]])
    found = pieces(tmp_path, data)
    assert [piece.offset for piece in found if piece.damage] == [len(members[0])]
    assert [piece.offset for piece in found if piece.opens][2] == len(members[0] + members[1] + other)
    assert b"".join(piece.data for piece in found).endswith(b"".join(TEXTS[2:]))


ZSTD_PACK = zstandard.ZstdCompressor().compress


def test_what_stands_before_damage_is_given(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(bytes(i * i % 251 for i in range(100_000))))
    data[-4] ^= 1
    found = pieces(tmp_path, bytes(data))
    assert sum(len(piece.data) for piece in found) == 100_000
    assert "incorrect length check" in found[-1].damage


def test_a_cut_member_says_so(tmp_path: Path) -> None:
    found = pieces(tmp_path, GZIP[5][:-1])
    assert (b"".join(piece.data for piece in found), found[-1].damage) == (TEXTS[5], CUT_OFF)


def test_a_file_whose_first_bytes_are_damaged_is_known_by_its_name(tmp_path: Path) -> None:
    found = pieces(tmp_path, b"??" + GZIP[0][2:] + GZIP[1], "a.gz")
    assert b"".join(piece.data for piece in found) == TEXTS[1]
    assert [piece.data for piece in pieces(tmp_path, TEXTS[1], "a.gz")] == [TEXTS[1]], "a plain file all the same"


def test_a_bomb_comes_in_pieces(tmp_path: Path) -> None:
    for data in (gzip.compress(b"\0" * 30_000_000), ZSTD_PACK(b"\0" * 30_000_000)):
        found = pieces(tmp_path, data)
        assert sum(len(piece.data) for piece in found) == 30_000_000
    (tmp_path / "z").write_bytes(gzip.compress(b"\0" * 30_000_000))
    assert max(len(piece.data) for piece in pieces(tmp_path, (tmp_path / "z").read_bytes())) <= 1 << 16


def test_a_frame_that_claims_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = stream.compress(b"x" * 1000) + stream.flush()
    with pytest.raises(zlib.error, match="memory"):
        ZstdInflater().decompress(frame, 10)


def test_skippable_frames_are_skipped(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    found = pieces(tmp_path, skippable + ZSTD[1] + skippable + ZSTD[2])
    assert b"".join(piece.data for piece in found) == TEXTS[1] + TEXTS[2]


def test_a_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    data = io.BytesIO(b"R" * 200_000).read()
    found = pieces(tmp_path, data, offset=70_000)
    assert b"".join(piece.data for piece in found) == data[70_000:]
    assert found[1].offset == 70_000 + len(found[0].data)
