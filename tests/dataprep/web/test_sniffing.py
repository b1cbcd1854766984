"""What is HTML by its declared type and first bytes, whatever somebody put there."""

import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.web.sniffing import may_be_html, why_not_html

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("declared", "body", "expected"),
    [
        ("text/html; charset=utf-8", b"anything", ""),
        ("text/html", b"%PDF-1.7", "PDF declared as text/html"),
        ("image/png", b"<html>", "image/png"),
        (None, b"<!-- one --> <!-- <p> two -->\n<HTML lang=en>", ""),
        ("text/plain", b"<!-- one --> <!-- <p> two -->\nwords", "text/plain"),
        ("text/plain", b"<!-- never closed <p >", "text/plain"),
        ("text/xml", b'<?xml version="1.0"?>\n<!doctype html>', ""),
        ("application/octet-stream", "\ufeff<html >".encode("utf-16-le"), ""),
        (None, b"words", "no type declared"),
    ],
)
def test_the_type_decides_and_the_first_bytes_where_it_does_not(
    declared: str | None, body: bytes, expected: str
) -> None:
    assert why_not_html(declared, body) == expected


def test_a_page_of_comments_takes_no_time() -> None:
    """Each comment once doubled the time, and this runs where the crawler waits for everybody."""
    code = "from dataprep.web.sniffing import why_not_html; print(why_not_html('text/plain', b'<!---->' * 140 + b'x'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "text/plain\n"


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
