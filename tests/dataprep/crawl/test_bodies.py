"""Response bodies: decoded, limited, whole."""

import gzip
import random
import zlib

import pytest

from dataprep.crawl.bodies import BodyDecoder, BodyEncodingError, BodyExpansionError, BodyTooLargeError
from dataprep.pages.sniffing import may_be_html, why_not_html

TEXT = b"".join(b"<p>line %d of the page</p>" % i for i in range(5000))


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


SENT = {
    "": TEXT,
    "identity": TEXT,
    "gzip": gzip.compress(TEXT),
    "X-GZIP": gzip.compress(TEXT),
    "deflate": zlib.compress(TEXT),
    " Deflate ": raw_deflate(TEXT),
}


def decode(encoding: str, sent: bytes, limit: int = 10**6, chunk: int = 1000) -> bytes:
    decoder = BodyDecoder(encoding, limit)
    for start in range(0, len(sent), chunk):
        decoder.feed(sent[start : start + chunk])
    return decoder.finish()


@pytest.mark.parametrize("encoding", SENT)
@pytest.mark.parametrize("chunk", [3, 1000, 10**6])
def test_every_encoding_that_is_asked_for_is_undone_in_any_chunks(encoding: str, chunk: int) -> None:
    assert decode(encoding, SENT[encoding], chunk=chunk) == TEXT


def test_gzip_members_one_after_another_are_one_body() -> None:
    assert decode("gzip", gzip.compress(b"one ") + gzip.compress(b"two"), chunk=5) == b"one two"


def test_what_follows_a_compressed_body_is_left_out() -> None:
    assert decode("gzip", gzip.compress(b"page") + b"\0\0padding") == b"page"


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate"])
def test_a_body_over_the_limit_is_refused(encoding: str) -> None:
    noise = random.Random(1).randbytes(3000)
    sent = {"": noise, "gzip": gzip.compress(noise), "deflate": zlib.compress(noise)}[encoding]
    with pytest.raises(BodyTooLargeError):
        decode(encoding, sent, limit=2999)
    assert decode(encoding, sent, limit=len(sent)) == noise


def test_a_bomb_is_refused_after_the_limit_and_not_unpacked() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    decoder = BodyDecoder("gzip", 100_000)
    with pytest.raises(BodyTooLargeError, match="more than 100000 bytes decoded"):
        decoder.feed(bomb)
    assert len(decoder.body) == 100_001


def test_a_body_that_grew_too_much_is_refused_whatever_its_chunks_and_a_small_one_is_not() -> None:
    for chunk in (7, 1000, 10**6):
        sent = gzip.compress(b"<p>" + b" " * 200_000)
        decoder = BodyDecoder("gzip", 10**6, max_expansion=100)
        for start in range(0, len(sent), chunk):
            decoder.feed(sent[start : start + chunk])
        with pytest.raises(BodyExpansionError, match=rf"200003 bytes decoded, from {len(sent)} sent"):
            decoder.finish()
    small = BodyDecoder("gzip", 10**6, max_expansion=100)
    small.feed(gzip.compress(b" " * 90_000))
    assert small.finish() == b" " * 90_000


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_data_that_stop_short_or_are_damaged_are_refused(encoding: str) -> None:
    sent = SENT[encoding]
    with pytest.raises(BodyEncodingError, match="cut off"):
        decode(encoding, sent[: len(sent) // 2])
    with pytest.raises(BodyEncodingError):
        decode(encoding, sent[:100] + b"\xff" * 50 + sent[150:])


def test_an_encoding_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(BodyEncodingError, match="br was not asked for"):
        BodyDecoder("br", 100)


@pytest.mark.parametrize(
    ("declared", "body", "other"),
    [
        ("text/html", b"anything", ""),
        ("Text/HTML; charset=utf-8", b"", ""),
        ("application/xhtml+xml", b"<?xml?>", ""),
        ("application/json", b"<html>", "application/json"),
        ("image/png", b"", "image/png"),
        ("text/html", b"%PDF-1.4", "PDF declared as text/html"),
        ("text/html", b"\x89PNG\r\n", "PNG declared as text/html"),
        (None, b"PK\x03\x04", "ZIP declared as nothing"),
        (None, b"<!DOCTYPE html><p>", ""),
        (None, b"\xef\xbb\xbf \n<HTML lang=en>", ""),
        ("text/plain", b"<!-- a comment --><head>", ""),
        ("text/plain", b"just words", "text/plain"),
        ("application/xml", b'<?xml version="1.0"?><html>', ""),
        ("application/xml", b'<?xml version="1.0"?><rss>', "application/xml"),
        ("application/octet-stream", "<html>".encode("utf-16"), ""),
        (None, b"", "no type declared"),
    ],
)
def test_html_is_told_by_its_type_and_its_first_bytes(declared: str | None, body: bytes, other: str) -> None:
    assert why_not_html(declared, body) == other


def test_a_body_of_another_type_is_not_even_read() -> None:
    assert may_be_html("text/html; charset=x")
    assert may_be_html(None)
    assert not may_be_html("application/pdf")
