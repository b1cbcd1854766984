"""The window over an archive: where its bytes stand, how to go on after damage, how to skip and go back."""

import gzip
from collections.abc import Generator
from pathlib import Path

import pytest

from dataprep.sources.tape import Place, Tape

TEXTS = [b"R%d " % i + b"words " * 20 * i for i in range(5)]
MEMBERS = [gzip.compress(text) for text in TEXTS]


def starts(data: bytes) -> bool:
    return data.startswith(b"R")


@pytest.fixture(params=["gzip", "plain"])
def tape(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Tape]:
    (tmp_path / "a").write_bytes(b"".join(MEMBERS if request.param == "gzip" else TEXTS))
    with (tmp_path / "a").open("rb") as file:
        yield Tape(file, starts, 0)


def test_a_window_grows_and_moves(tape: Tape) -> None:
    assert tape.fill(2)
    tape.drop(1)
    assert tape.window.startswith(b"0 ")
    assert not tape.fill(10**6)
    assert tape.ended
    assert bytes(tape.window) == b"".join(TEXTS)[1:]


def test_a_place_is_found_again(tape: Tape) -> None:
    tape.fill(10**6)
    text = b"".join(TEXTS)
    at = text.index(b"R3") + 8
    place = tape.place(at)
    if tape.compressed:
        assert place == Place(len(b"".join(MEMBERS[:3])), 8)
        assert str(place) == f"byte {place.offset} (8 bytes into what is compressed there)"
    else:
        assert place == Place(at)
    tape.go_to(place)
    assert tape.place(0) == place
    tape.fill(10**6)
    assert bytes(tape.window) == text[at:]


def test_members_that_begin_with_a_record_are_known(tape: Tape) -> None:
    tape.fill(10**6)
    second = len(TEXTS[0])
    assert tape.next_record(1, 10**6) == (second if tape.compressed else None)
    assert tape.opens_within(second - 1, second) == tape.compressed


def test_skipping_stops_at_the_end_and_at_a_record(tape: Tape) -> None:
    assert tape.skip(2) == "done"
    assert tape.fill(1)
    assert tape.window.startswith(b" ")
    if tape.compressed:
        assert tape.skip(300) == "record"
        assert tape.window.startswith(b"R1")
    else:
        assert tape.skip(10**9) == "end"


def test_nothing_is_read_across_damage(tmp_path: Path) -> None:
    damaged = MEMBERS[2][:-6] + b"??????"
    (tmp_path / "a").write_bytes(b"".join([*MEMBERS[:2], damaged, *MEMBERS[3:]]))
    with (tmp_path / "a").open("rb") as file:
        tape = Tape(file, starts, 0)
        assert not tape.fill(10**6)
        assert bytes(tape.window) == b"".join(TEXTS[:3])
        assert "incorrect data check" in tape.damage
        assert tape.damage_offset == len(b"".join(MEMBERS[:2]))
        tape.mend()
        tape.fill(10**6)
        assert bytes(tape.window) == b"".join(TEXTS[3:])
