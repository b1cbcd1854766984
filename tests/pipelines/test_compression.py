"""Decompression: each format against its own library, in any chunks; limits, truncation and damage told apart."""

import bz2
import gzip
import io
import lzma
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pipelines.compression import (
    CODINGS,
    DAMAGE,
    HTTP_WINDOW,
    BrotliInflater,
    CodingError,
    CutOffError,
    Decoder,
    DecompressionBombError,
    OutputLimitError,
    ZstdInflater,
    open_bounded,
    open_plain,
    raise_unless_damage,
)

TEXT = b"".join(b"line %d of a text\n" % i for i in range(20_000))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}
FILES: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


def decode(coding: str, packed: bytes, chunk: int, limit: int = 10**6) -> bytes:
    decoder = Decoder(coding, limit)
    for start in range(0, len(packed), chunk):
        decoder.feed(packed[start : start + chunk])
    return decoder.finish()


def of_window(log: int, data: bytes) -> bytes:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=log, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("chunk", [1, 7, 1000, 10**6])
def test_every_coding_is_undone_in_any_chunks(coding: str, chunk: int) -> None:
    assert decode(coding, PACK[coding](TEXT), chunk) == TEXT


@given(st.sampled_from(CODINGS), st.binary(max_size=3000), st.integers(1, 4000))
def test_whatever_was_packed_comes_back(coding: str, data: bytes, chunk: int) -> None:
    assert decode(coding, PACK[coding](data), chunk) == data


@pytest.mark.parametrize("coding", CODINGS)
def test_a_limit_is_kept_to_the_byte_and_a_bomb_is_never_held(coding: str) -> None:
    noise = random.Random(1).randbytes(3000)
    assert decode(coding, PACK[coding](noise), 100, limit=3000) == noise
    with pytest.raises(OutputLimitError, match="more than 2999 bytes"):
        decode(coding, PACK[coding](noise), 100, limit=2999)
    decoder = Decoder(coding, 100_000)
    with pytest.raises(OutputLimitError):
        decoder.feed(PACK[coding](bytes(30_000_000)))
    # zstd gives what 1 kB of a frame holds, brotli up to twice what is asked for.
    assert len(decoder.data) <= {"zstd": 30_000_000, "br": 250_000}.get(coding, 100_001)


@pytest.mark.parametrize("coding", CODINGS)
def test_cut_off_data_are_told_from_damaged_ones(coding: str) -> None:
    packed = PACK[coding](TEXT)
    with pytest.raises(CutOffError, match="the compressed data are cut off"):
        decode(coding, packed[: len(packed) // 2], 1000)
    with pytest.raises(CodingError) as caught:
        decode(coding, packed[:20] + b"\xff" * 64 + packed[84:], 1000)
    assert not isinstance(caught.value, CutOffError)


@pytest.mark.parametrize("coding", ["br", "zstd"])
def test_no_data_at_all_are_cut_off_where_even_nothing_has_a_frame(coding: str) -> None:
    with pytest.raises(CutOffError):
        Decoder(coding, 100).finish()
    assert decode(coding, PACK[coding](b""), 1) == b""
    assert Decoder("gzip", 100).finish() == b""


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_gzip_members_are_one_body_and_what_else_follows_is_left_out(chunk: int) -> None:
    assert decode("gzip", gzip.compress(b"one ") + gzip.compress(b"two"), chunk) == b"one two"
    for coding in ("gzip", "deflate", "zstd"):
        assert decode(coding, PACK[coding](b"page") + b"\0\0padding", chunk) == b"page"


def test_deflate_is_also_understood_without_its_head() -> None:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = packer.compress(TEXT) + packer.flush()
    assert decode("deflate", packed, 1) == decode("deflate", packed, 1000) == TEXT


def test_brotli_gives_what_goes_beyond_the_length_with_the_next_calls() -> None:
    inflater, out = BrotliInflater(), b""
    packed = brotli.compress(bytes(1_000_000))
    while not inflater.eof:
        part = inflater.decompress(packed, 1000)
        assert inflater.eof or 1000 <= len(part) < 1 << 16
        out, packed = out + part, b""
    assert out == bytes(1_000_000)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_frame_goes_as_far_as_its_own_end(number: int) -> None:
    rest = zstandard.compress(TEXT) * number
    inflater, packed, out = ZstdInflater(), zstandard.compress(TEXT) + rest, b""
    while not inflater.eof:
        out += inflater.decompress(packed, 0)
        packed = inflater.unconsumed_tail
    assert (out, inflater.unused_data, inflater.unconsumed_tail) == (TEXT, rest, b"")


def test_a_frame_of_a_larger_window_than_allowed_is_refused() -> None:
    with pytest.raises(zlib.error, match="memory"):
        ZstdInflater().decompress(of_window(28, TEXT), 10)
    with pytest.raises(CodingError, match="memory"):
        Decoder("zstd", 10**6).feed(of_window(24, TEXT))
    assert decode("zstd", of_window(HTTP_WINDOW.bit_length() - 1, TEXT), 1000) == TEXT


@pytest.mark.parametrize("suffix", FILES)
def test_a_file_of_many_members_is_read_through(suffix: str, tmp_path: Path) -> None:
    packed = b"".join(FILES[suffix](TEXT[i : i + 9000]) for i in range(0, len(TEXT), 9000)) + FILES[suffix](b"")
    (tmp_path / "a").write_bytes(packed)
    with open_plain(tmp_path / "a", suffix) as file:
        assert file.read() == TEXT
    opened = io.BytesIO(packed)
    with open_plain(opened, suffix) as file:
        assert file.read(10) == TEXT[:10]
    assert not opened.closed


def test_a_zstd_file_may_have_a_window_of_two_gibibytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(zstandard.compress(TEXT) + of_window(31, TEXT))
    with open_plain(tmp_path / "a", ".zst") as file:
        assert file.read() == TEXT * 2


@pytest.mark.parametrize("suffix", FILES)
def test_a_cut_or_damaged_file_raises_what_no_machine_does(suffix: str) -> None:
    packed = FILES[suffix](TEXT)
    for broken in (packed[:-5], packed[: len(packed) // 2], packed[:800] + b"\xff" * 64 + packed[864:], b"text" * 9):
        with pytest.raises(DAMAGE) as caught:
            open_plain(io.BytesIO(broken), suffix).read()
        raise_unless_damage(caught.value)  # which lets it be
    with pytest.raises(OSError, match="full"):
        raise_unless_damage(OSError(28, "the disk is full"))


def test_lines_before_the_cut_of_a_zstd_file_are_had() -> None:
    packed = zstandard.ZstdCompressor(level=1).compress(random.Random(2).randbytes(1 << 20))
    file, size = open_plain(io.BytesIO(packed[:-1]), ".zst"), 0
    with pytest.raises(OSError, match="the last frame ends early"):  # noqa: PT012 (all before it is counted)
        while part := file.read1(1 << 16):  # pyright: ignore[reportAttributeAccessIssue]
            size += len(part)
    assert size > 7 << 17


@pytest.mark.parametrize("suffix", FILES)
def test_a_file_that_grows_beyond_measure_is_a_bomb(suffix: str) -> None:
    bomb, text = FILES[suffix](bytes(20 << 20)), FILES[suffix](TEXT)
    with pytest.raises(DecompressionBombError, match="bytes became"):
        open_bounded(io.BytesIO(bomb), suffix, 200, 4 << 20).read()
    assert open_bounded(io.BytesIO(bomb), suffix, 200, 20 << 20).read() == bytes(20 << 20), "as much is free"
    assert open_bounded(io.BytesIO(text), suffix, 200, 0).read() == TEXT
    assert open_bounded(io.BytesIO(TEXT), ".txt", 1, 0).read() == TEXT
