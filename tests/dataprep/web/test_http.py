"""HTTP responses as archives hold them: encodings undone, broken heads understood or refused, nothing unbounded."""

import contextlib
import gzip
import random
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from dataprep.web.http import (
    BodyDecoder,
    BodyEncodingError,
    BodyExpansionError,
    HttpError,
    TooLargeError,
    charset_of,
    join_chunks,
    parse_response,
)
from tests.dataprep.archives import chunked, http

PAGE = b"<!doctype html><html><body>" + b"<p>The miller opens the gate.</p>" * 40 + b"</body></html>"
RAW_DEFLATE = zlib.compressobj(wbits=-15)
LIMIT = 100_000


def body_of(block: bytes, limit: int = LIMIT) -> bytes:
    return parse_response(block).body(limit)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (PAGE, ()),
        (PAGE, ("Content-Encoding: identity",)),
        (gzip.compress(PAGE), ("Content-Encoding: gzip",)),
        (gzip.compress(PAGE[:500]) + gzip.compress(PAGE[500:]), ("content-encoding:GZIP",)),
        (gzip.compress(PAGE) + b"trailing", ("Content-Encoding: x-gzip",)),
        (zlib.compress(PAGE), ("Content-Encoding: deflate",)),
        (RAW_DEFLATE.compress(PAGE) + RAW_DEFLATE.flush(), ("Content-Encoding: deflate",)),
        (brotli.compress(PAGE), ("Content-Encoding: br",)),
        (zstandard.compress(PAGE), ("Content-Encoding: zstd",)),
        (gzip.compress(brotli.compress(PAGE)), ("Content-Encoding: br, gzip",)),
        (gzip.compress(brotli.compress(PAGE)), ("Content-Encoding: br", "Content-Encoding: gzip")),
        (chunked(PAGE[:7], PAGE[7:900], PAGE[900:]), ("Transfer-Encoding: chunked",)),
        (chunked(PAGE).replace(b"\r\n", b"; name=value\r\n", 1), ("Transfer-Encoding: Chunked",)),
        (chunked(gzip.compress(PAGE)), ("Transfer-Encoding: chunked", "Content-Encoding: gzip")),
        (chunked(gzip.compress(PAGE)), ("Transfer-Encoding:\r\n  chunked", "Content-Encoding:\r\n\tgzip")),
        # What was decoded before it was archived, but kept its headers.
        (PAGE, ("Content-Encoding: gzip",)),
        (PAGE, ("Content-Encoding: br",)),
        (PAGE, ("Transfer-Encoding: chunked",)),
        (PAGE, ("Transfer-Encoding: chunked", "Content-Encoding: gzip")),
        (gzip.compress(PAGE), ("Transfer-Encoding: chunked", "Content-Encoding: gzip")),
        (PAGE, ("Content-Encoding: something-new",)),
        (PAGE, ("X-Crawler-Content-Encoding: gzip",)),
    ],
)  # fmt: skip
def test_a_body_is_decoded_from_what_it_really_is_in(body: bytes, headers: tuple[str, ...]) -> None:
    assert body_of(http(body, *headers)) == PAGE


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"", "no status line"),
        (b"\x00\x01\x02", "no status line"),
        (b"HTTP/1.1 OK\r\n\r\n", "no status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n<html>", "the head has no end"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 300_000 + b"\r\n", "the head has no end"),
        (http(b"no gzip", "Content-Encoding: gzip"), "gzip"),
        (http(gzip.compress(PAGE)[:-9], "Content-Encoding: gzip"), "gzip"),
        (http(brotli.compress(PAGE)[:-9], "Content-Encoding: br"), "br"),
        (http(gzip.compress(PAGE)[:-9], "Transfer-Encoding: chunked", "Content-Encoding: gzip"), "gzip"),
        (http(zstandard.compress(PAGE)[:-9], "Content-Encoding: zstd"), "zstd"),
        (http(b"words", "Content-Encoding: lzip"), "'lzip' is unknown"),
        (http(PAGE, "Content-Encoding: " + "gzip, " * 1000), "1000 content encodings"),
        (http(b"-5\r\nwords", "Transfer-Encoding: chunked"), "no chunk begins at byte 0"),
        (http(b"ffffffff\r\nwords", "Transfer-Encoding: chunked"), "a chunk has 5 of 4294967295 bytes"),
        (http(chunked(b"words")[:-5], "Transfer-Encoding: chunked"), "no chunk begins at byte 10"),
        (http(b"f" * 100_000, "Transfer-Encoding: chunked"), "no chunk begins at byte 0"),
    ],
)
def test_what_cannot_be_read_has_its_reason(block: bytes, reason: str) -> None:
    with pytest.raises(HttpError, match=reason):
        body_of(block)


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", brotli.compress), ("zstd", zstandard.compress)],
)
def test_a_bomb_is_stopped_at_the_limit(coding: str, pack: Callable[[bytes], bytes]) -> None:
    bomb = http(pack(b" " * 30_000_000), f"Content-Encoding: {coding}")
    with pytest.raises(TooLargeError):
        body_of(bomb)


def test_heads_of_all_kinds_are_understood() -> None:
    for status, line in (
        (200, b"HTTP/1.1 200 OK"),
        (203, b"HTTP/1.0 203"),
        (200, b"HTTP/2 200"),
        (404, b"http/1.1  404 Not Found"),
        (200, b"ICY 200 OK"),
        (301, b"\r\nHTTP/1.1 301"),
    ):
        found = parse_response(line + b"\nno colon here\n: no name\nCONTENT-TYPE :text/html; charset=x\n\n<p>")
        assert (found.status, found.content_type, found.raw) == (status, "text/html; charset=x", b"<p>"), line


def test_an_interim_response_is_followed_by_the_real_one() -> None:
    found = parse_response(b"HTTP/1.1 100 Continue\r\n\r\n" + http(PAGE))
    assert (found.status, found.body(LIMIT)) == (200, PAGE)


@pytest.mark.parametrize(
    ("declared", "charset"),
    [
        ("text/html; charset=utf-8", "utf-8"),
        ('text/html;CHARSET="ISO-8859-1" ; x=y', "ISO-8859-1"),
        ("text/html; charset = 'koi8-r'", "koi8-r"),
        ("text/html; charset=", None),
        ("text/html", None),
        (None, None),
    ],
)
def test_the_charset_of_a_content_type(declared: str | None, charset: str | None) -> None:
    assert charset_of(declared) == charset


def test_hostile_bytes_raise_nothing_else() -> None:
    chance = random.Random(3)
    seeds = [
        http(gzip.compress(PAGE), "Content-Encoding: gzip"),
        http(brotli.compress(PAGE), "Content-Encoding: br"),
        http(zstandard.compress(PAGE), "Content-Encoding: zstd"),
        http(chunked(PAGE[:50], gzip.compress(PAGE)), "Transfer-Encoding: chunked", "Content-Encoding: gzip, br"),
    ]
    for _ in range(4000):
        block = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 5)):
            at = chance.randrange(len(block))
            block[at : at + chance.randrange(3)] = chance.choice([b"", b"\r\n", b"0", b"\xff", b"\x00", b"f", b","])
        with contextlib.suppress(HttpError, TooLargeError):
            assert len(body_of(bytes(block))) <= LIMIT


def test_chunks_without_line_ends_between_them_are_joined() -> None:
    assert join_chunks(b"3\nabc2\nde0\n") == b"abcde"


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


def decode_in_chunks(encoding: str, sent: bytes, limit: int = 10**6, chunk: int = 1000) -> bytes:
    decoder = BodyDecoder(encoding, limit)
    for start in range(0, len(sent), chunk):
        decoder.feed(sent[start : start + chunk])
    return decoder.finish()


@pytest.mark.parametrize("encoding", SENT)
@pytest.mark.parametrize("chunk", [3, 1000, 10**6])
def test_every_encoding_that_is_asked_for_is_undone_in_any_chunks(encoding: str, chunk: int) -> None:
    assert decode_in_chunks(encoding, SENT[encoding], chunk=chunk) == TEXT


def test_gzip_members_one_after_another_are_one_body() -> None:
    assert decode_in_chunks("gzip", gzip.compress(b"one ") + gzip.compress(b"two"), chunk=5) == b"one two"


def test_what_follows_a_compressed_body_is_left_out() -> None:
    assert decode_in_chunks("gzip", gzip.compress(b"page") + b"\0\0padding") == b"page"


@pytest.mark.parametrize("encoding", ["", "gzip", "deflate"])
def test_a_body_over_the_limit_is_refused(encoding: str) -> None:
    noise = random.Random(1).randbytes(3000)
    sent = {"": noise, "gzip": gzip.compress(noise), "deflate": zlib.compress(noise)}[encoding]
    with pytest.raises(TooLargeError):
        decode_in_chunks(encoding, sent, limit=2999)
    assert decode_in_chunks(encoding, sent, limit=len(sent)) == noise


def test_a_bomb_is_refused_after_the_limit_and_not_unpacked() -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    decoder = BodyDecoder("gzip", 100_000)
    with pytest.raises(TooLargeError, match="more than 100000 bytes decoded"):
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
        decode_in_chunks(encoding, sent[: len(sent) // 2])
    with pytest.raises(BodyEncodingError):
        decode_in_chunks(encoding, sent[:100] + b"\xff" * 50 + sent[150:])


def test_an_encoding_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(BodyEncodingError, match="br was not asked for"):
        BodyDecoder("br", 100)
