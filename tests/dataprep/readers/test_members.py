"""Members of compressed files: in order, in chunks of bounded size, and found again after damage."""

import gzip
import io
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import zstandard

from dataprep.readers.members import ByteWindow, Chunk, Offset, codec_of, read_chunks
from pipelines.compression import CUT_OFF

TEXTS = [b"R%d " % i + b"some words " * 30 * i for i in range(6)]
GZIP = [gzip.compress(text) for text in TEXTS]
ZSTD = [zstandard.ZstdCompressor(write_checksum=True).compress(text) for text in TEXTS]


def starts(data: bytes) -> bool:
    return data.startswith(b"R")


def chunks(folder: Path, data: bytes, name: str = "a", offset: int = 0) -> list[Chunk]:
    (folder / name).write_bytes(data)
    with (folder / name).open("rb") as file:
        return list(read_chunks(file, codec_of(file, starts), offset, starts))


@pytest.mark.parametrize("members", [GZIP, ZSTD], ids=["gzip", "zstd"])
def test_members_are_told_apart(members: list[bytes], tmp_path: Path) -> None:
    found = chunks(tmp_path, b"".join(members))
    assert b"".join(chunk.data for chunk in found) == b"".join(TEXTS)
    assert [chunk.offset for chunk in found if chunk.opens] == [len(b"".join(members[:i])) for i in range(6)]
    rest = chunks(tmp_path, b"".join(members), offset=len(b"".join(members[:3])))
    assert b"".join(chunk.data for chunk in rest) == b"".join(TEXTS[3:])


@pytest.mark.parametrize("members", [GZIP, ZSTD], ids=["gzip", "zstd"])
def test_after_damage_comes_the_next_member_that_holds_a_record(members: list[bytes], tmp_path: Path) -> None:
    pack = gzip.compress if members is GZIP else ZSTD_PACK
    other = pack(b"no record")
    data = b"".join([members[0], members[1][:-9], b"?" * 9, other, *members[2:]])
    found = chunks(tmp_path, data)
    assert [chunk.offset for chunk in found if chunk.damage] == [len(members[0])]
    assert [chunk.offset for chunk in found if chunk.opens][2] == len(members[0] + members[1] + other)
    assert b"".join(chunk.data for chunk in found).endswith(b"".join(TEXTS[2:]))


ZSTD_PACK = zstandard.ZstdCompressor().compress


def test_what_stands_before_damage_is_given(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(bytes(i * i % 251 for i in range(100_000))))
    data[-4] ^= 1
    found = chunks(tmp_path, bytes(data))
    assert sum(len(chunk.data) for chunk in found) == 100_000
    assert "incorrect length check" in found[-1].damage


def test_a_cut_member_says_so(tmp_path: Path) -> None:
    found = chunks(tmp_path, GZIP[5][:-1])
    assert (b"".join(chunk.data for chunk in found), found[-1].damage) == (TEXTS[5], CUT_OFF)


def test_a_file_whose_first_bytes_are_damaged_is_known_by_its_name(tmp_path: Path) -> None:
    found = chunks(tmp_path, b"??" + GZIP[0][2:] + GZIP[1], "a.gz")
    assert b"".join(chunk.data for chunk in found) == TEXTS[1]
    assert [chunk.data for chunk in chunks(tmp_path, TEXTS[1], "a.gz")] == [TEXTS[1]], "a plain file all the same"


def test_a_bomb_comes_in_pieces(tmp_path: Path) -> None:
    for data in (gzip.compress(b"\0" * 30_000_000), ZSTD_PACK(b"\0" * 30_000_000)):
        found = chunks(tmp_path, data)
        assert sum(len(chunk.data) for chunk in found) == 30_000_000
    (tmp_path / "z").write_bytes(gzip.compress(b"\0" * 30_000_000))
    assert max(len(chunk.data) for chunk in chunks(tmp_path, (tmp_path / "z").read_bytes())) <= 1 << 16


@pytest.mark.parametrize("pack", [gzip.compress, ZSTD_PACK], ids=["gzip", "zstd"])
def test_a_member_that_grows_beyond_measure_is_given_up(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(pack(bytes(200_000_000)) + pack(TEXTS[1]))
    size, damage, last = 0, list[str](), b""
    with (tmp_path / "a").open("rb") as file:
        for chunk in read_chunks(file, codec_of(file, starts), 0, starts):
            size, damage, last = size + len(chunk.data), damage + [chunk.damage] * bool(chunk.damage), chunk.data
    assert size < 110_000_000
    assert ["expands further than honest text does" in each for each in damage] == [True]
    assert last == TEXTS[1], "the next member"


def test_skippable_frames_are_skipped(tmp_path: Path) -> None:
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    found = chunks(tmp_path, skippable + ZSTD[1] + skippable + ZSTD[2])
    assert b"".join(chunk.data for chunk in found) == TEXTS[1] + TEXTS[2]


def test_a_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    data = io.BytesIO(b"R" * 200_000).read()
    found = chunks(tmp_path, data, offset=70_000)
    assert b"".join(chunk.data for chunk in found) == data[70_000:]
    assert found[1].offset == 70_000 + len(found[0].data)


RECORDS = [b"R%d " % i + b"words " * 20 * i for i in range(5)]
PACKED = [gzip.compress(text) for text in RECORDS]


@pytest.fixture(params=["gzip", "plain"])
def window(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[ByteWindow]:
    (tmp_path / "a").write_bytes(b"".join(PACKED if request.param == "gzip" else RECORDS))
    with (tmp_path / "a").open("rb") as file:
        yield ByteWindow(file, starts, 0)


def test_a_window_grows_and_moves(window: ByteWindow) -> None:
    assert window.fill(2)
    window.drop(1)
    assert window.data.startswith(b"0 ")
    assert not window.fill(10**6)
    assert window.ended
    assert bytes(window.data) == b"".join(RECORDS)[1:]


def test_a_place_is_found_again(window: ByteWindow) -> None:
    window.fill(10**6)
    text = b"".join(RECORDS)
    at = text.index(b"R3") + 8
    place = window.offset_of(at)
    if window.compressed:
        assert place == Offset(len(b"".join(PACKED[:3])), 8)
        assert str(place) == f"byte {place.member} (8 bytes into what is compressed there)"
    else:
        assert place == Offset(at)
    window.go_to(place)
    assert window.offset_of(0) == place
    window.fill(10**6)
    assert bytes(window.data) == text[at:]


def test_members_that_begin_with_a_record_are_known(window: ByteWindow) -> None:
    window.fill(10**6)
    second = len(RECORDS[0])
    assert window.next_record(1, 10**6) == (second if window.compressed else None)
    assert window.opens_within(second - 1, second) == window.compressed


def test_skipping_stops_at_the_end_and_at_a_record(window: ByteWindow) -> None:
    assert window.skip(2) == "done"
    assert window.fill(1)
    assert window.data.startswith(b" ")
    if window.compressed:
        assert window.skip(300) == "record"
        assert window.data.startswith(b"R1")
    else:
        assert window.skip(10**9) == "end"


def test_nothing_is_read_across_damage(tmp_path: Path) -> None:
    damaged = PACKED[2][:-6] + b"??????"
    (tmp_path / "a").write_bytes(b"".join([*PACKED[:2], damaged, *PACKED[3:]]))
    with (tmp_path / "a").open("rb") as file:
        window = ByteWindow(file, starts, 0)
        assert not window.fill(10**6)
        assert bytes(window.data) == b"".join(RECORDS[:3])
        assert "incorrect data check" in window.damage
        assert window.damage_offset == len(b"".join(PACKED[:2]))
        window.mend()
        window.fill(10**6)
        assert bytes(window.data) == b"".join(RECORDS[3:])
