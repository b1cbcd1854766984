"""Plain text in the encodings that people really have, and files that are none."""

import gzip
from pathlib import Path

import pytest

from dataprep.sources.records import Broken, Page, Text
from dataprep.sources.text_reader import is_plain_file, read_plain_file

GUTENBERG = Path(__file__).parents[4] / "shared" / "data" / "text" / "gutenberg"
needs_gutenberg = pytest.mark.skipif(not GUTENBERG.exists(), reason="needs the books in ../shared/data/text/gutenberg")
MB = 10_000_000
FRENCH = "Un café très doux, à côté de la fenêtre où l'on voit passer les élèves, leur maître."


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"plain", "plain"),
        ("ünïcödé 日本".encode(), "ünïcödé 日本"),
        (b"\xef\xbb\xbfmarked", "marked"),
        ("marked".encode("utf-16"), "marked"),
        ("\ufeffmarked".encode("utf-16-be"), "marked"),
        (FRENCH.encode("latin-1"), FRENCH),
        ("Съешь же ещё этих мягких французских булок. ".encode("cp1251") * 5, None),
        (b"dos\r\nmac\runix\n", "dos\nmac\nunix\n"),
        (b'<meta charset="shift_jis"> is what a page would say', '<meta charset="shift_jis"> is what a page would say'),
    ],
)
def test_text_is_utf8_or_what_its_bytes_look_like(body: bytes, text: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(body)
    record = read_plain_file(tmp_path / "a.txt", "books/a.txt", MB)
    assert record == Text("books/a.txt", text if text is not None else body.decode("cp1251"))


@pytest.mark.parametrize(
    ("name", "body", "rule"),
    [
        ("a.txt", b"a\0b", "not_text"),
        ("a.txt", b" \n\t", "empty_text"),
        ("a.txt", b"x" * 101, "too_large"),
        ("a.txt.gz", gzip.compress(b"x" * 101), "too_large"),
        ("a.txt.gz", gzip.compress(b"words " * 9)[:-9], "damaged_file"),
        ("a.txt.gz", b"no gzip at all", "damaged_file"),
        ("a.txt.xz", b"no xz at all", "damaged_file"),
        ("a.txt.zst", b"no zstd at all", "damaged_file"),
    ],
)
def test_what_is_no_text_is_a_counted_rule(name: str, body: bytes, rule: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(body)
    record = read_plain_file(tmp_path / name, name, 100)
    assert isinstance(record, Broken)
    assert (record.url, record.rule) == (name, rule)


def test_names_say_what_is_a_text_and_what_a_page(tmp_path: Path) -> None:
    named = ["a.txt", "a.TXT.gz", "README.md", "pep.rst", "a.htm", "a.html.zst", "a.pdf", "txt", "a.txt.tar"]
    assert [name for name in named if is_plain_file(name)] == named[:6]
    (tmp_path / "a.html.gz").write_bytes(gzip.compress(b"<p>caf\xe9"))
    assert read_plain_file(tmp_path / "a.html.gz", "a.html.gz", MB) == Page("a.html.gz", b"<p>caf\xe9", "text/html")


@needs_gutenberg
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Great-Expectations_1400__1400-8.txt", "Great-Expectations_1400__1400-0.txt"),
        ("Entre-Nous__44157-8.txt", "Entre-Nous__44157-0.txt"),
    ],
)
def test_real_books_in_latin_1_are_what_their_unicode_editions_are(old: str, new: str) -> None:
    words: list[set[str]] = []
    for name in (old, new):
        record = read_plain_file(GUTENBERG / name, name, MB)
        assert isinstance(record, Text)
        assert "\ufffd" not in record.text
        words.append({word for word in record.text.split() if word.isalpha()})
    foreign = {word for word in words[0] if not word.isascii()}
    assert len(foreign) > 1
    assert len(foreign & words[1]) >= 0.95 * len(foreign)
