"""Plain text and pages in the encodings that people really have, JSON lines, and files that are none of these."""

import gzip
import json
import lzma
import tracemalloc
from pathlib import Path

import pytest
from ftfy.fixes import fix_surrogates

from dataprep.readers.records import Broken, Page, Record, Text
from dataprep.readers.text import is_plain_file, line_starts, read_html_file, read_json_lines, read_plain_file
from dataprep.text.charset import decode_html
from dataprep.web.sniffing import why_not_html
from pipelines.documents import read_rows
from pipelines.errors import UserError
from pipelines.jsonl import ingest_jsonl
from tests.samples import at_hand, find

MB = 10_000_000
FRENCH = "Un café très doux, à côté de la fenêtre où l'on voit passer les élèves, leur maître."


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"plain", "plain"),
        ("ünïcödé 日本".encode(), "ünïcödé 日本"),
        (b"\xef\xbb\xbfmarked", "marked"),
        ("marked".encode("utf-16"), "marked"),
        ("wide without a mark".encode("utf-32-le"), "wide without a mark"),
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


@pytest.mark.parametrize(
    "book",
    at_hand(
        ("text/gutenberg/sample-paths-and-rivers_1__1-8.txt",),
        ("text/gutenberg/sample-quatre-contes_2__2-8.txt",),
        ("text/gutenberg/Great-Expectations_1400__1400-8.txt",),
        ("text/gutenberg/Entre-Nous__44157-8.txt",),
    ),
)
def test_books_in_latin_1_are_what_their_unicode_editions_are(book: str) -> None:
    words: list[set[str]] = []
    for name in (book, book.replace("-8.txt", "-0.txt")):
        record = read_plain_file(find(name), name, MB)
        assert isinstance(record, Text)
        assert "\ufffd" not in record.text
        words.append({word for word in record.text.split() if word.isalpha()})
    foreign = {word for word in words[0] if not word.isascii()}
    assert len(foreign) > 1
    assert len(foreign & words[1]) >= 0.95 * len(foreign)


HTML = "<!doctype html><html><head><meta charset='{}'></head><body><p>Früh am Morgen öffnet der Müller.</p></body>"


def test_a_page_keeps_its_name_and_its_own_encoding(tmp_path: Path) -> None:
    for charset in ("utf-8", "iso-8859-1", "windows-1252"):
        body = HTML.format(charset).encode(charset)
        (tmp_path / "page.html").write_bytes(body)
        found = read_html_file(tmp_path / "page.html", "site.test/a/page.html", 1000)
        assert found == Page("site.test/a/page.html", body, "text/html", None)
        assert "Früh am Morgen öffnet" in decode_html(body, None)


def test_a_compressed_page_is_the_same_page(tmp_path: Path) -> None:
    body = HTML.format("utf-8").encode()
    for name, pack in (("a.html.gz", gzip.compress), ("a.html.xz", lzma.compress)):
        (tmp_path / name).write_bytes(pack(body))
        assert read_html_file(tmp_path / name, name, 1000) == Page(name, body, "text/html")


def test_a_file_of_another_name_is_judged_by_its_first_bytes(tmp_path: Path) -> None:
    for body, why in ((HTML.encode(), ""), (b"\x89PNG\r\n", "PNG declared as nothing"), (b"words", "no type declared")):
        (tmp_path / "index.php").write_bytes(body)
        found = read_html_file(tmp_path / "index.php", "index.php", 1000)
        assert isinstance(found, Page)
        assert why_not_html(found.content_type, found.body) == why


def test_damaged_and_large_files_have_their_reason(tmp_path: Path) -> None:
    (tmp_path / "cut.html.gz").write_bytes(gzip.compress(HTML.encode() * 9)[:-20])
    (tmp_path / "no.html.gz").write_bytes(b"no gzip")
    (tmp_path / "bomb.html.gz").write_bytes(gzip.compress(b" " * 10_000_000))
    found = [read_html_file(tmp_path / name, name, 1000) for name in ("cut.html.gz", "no.html.gz", "bomb.html.gz")]
    assert [each.rule for each in found if isinstance(each, Broken)] == ["damaged_file", "damaged_file", "too_large"]


LINES = [
    {"text": "one", "url": "http://a.test/1", "source": "here", "more": 1},
    {"text": "two"},
    {"text": 3},
    {"body": "no text"},
    ["not", "an", "object"],
]


def write_lines(path: Path) -> Path:
    path.write_bytes(gzip.compress(b"\n\n".join(json.dumps(line).encode() for line in LINES) + b"\nbroken\n\xff\n"))
    return path


def test_lines_are_texts_or_say_why_not(tmp_path: Path) -> None:
    records: list[Record] = list(read_json_lines(write_lines(tmp_path / "a.jsonl.gz"), "text", "url"))
    assert records[:2] == [Text("http://a.test/1", "one", "here", '{"more":1}'), Text("", "two", "a.jsonl.gz")]
    assert [(record.url, record.rule) for record in records if isinstance(record, Broken)] == [
        ("a.jsonl.gz:5", "text_not_text"),
        ("a.jsonl.gz:7", "no_text"),
        ("a.jsonl.gz:9", "not_an_object"),
        ("a.jsonl.gz:10", "invalid_json"),
        ("a.jsonl.gz:11", "invalid_utf8"),
    ]


def test_the_other_stages_read_the_same_lines_the_same_way(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "a.jsonl.gz")
    records = list(read_json_lines(file, "text", "url"))
    counts = ingest_jsonl(file, tmp_path, "out", 0, alone=True)
    rows = list(read_rows(tmp_path / "out-00000.arrow"))
    broken = list(read_rows(tmp_path / "broken" / "out-00000.parquet"))
    assert [Text(row["url"], row["text"], row["source"], row["metadata"]) for row in rows] == records[:2]
    assert [Broken(f"a.jsonl.gz:{row['line']}", row["rule"], row["value"]) for row in broken] == records[2:]
    assert (counts.rows_in, counts.rows_out) == (7, 2)


@pytest.mark.parametrize("split_bytes", [1, 7, 40, 1000])
def test_the_parts_of_a_file_are_the_whole_with_its_line_numbers(tmp_path: Path, split_bytes: int) -> None:
    lines = [f'{{"text": "words {n}"}}' if n % 3 else "no JSON" * (n % 5) for n in range(1, 40)]
    (tmp_path / "a.jsonl").write_text("\r\n".join(lines) + "\n" * (split_bytes % 2))
    whole = list(read_json_lines(tmp_path / "a.jsonl", "text", "url"))
    assert sum(isinstance(record, Broken) for record in whole) > 8
    starts = line_starts(tmp_path / "a.jsonl", split_bytes)
    assert [start for start, _ in starts] == list(range(0, (tmp_path / "a.jsonl").stat().st_size, split_bytes))
    ends = [*(start for start, _ in starts[1:]), None]
    parts = [
        read_json_lines(tmp_path / "a.jsonl", "text", "url", (start, end), before)
        for (start, before), end in zip(starts, ends, strict=True)
    ]
    assert [record for part in parts for record in part] == whole


def test_other_keys_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"content": "words", "link": "http://a.test/"}\n')
    assert list(read_json_lines(tmp_path / "a.jsonl", "content", "link")) == [
        Text("http://a.test/", "words", "a.jsonl")
    ]
    with pytest.raises(UserError, match=r"its only line is no document; line 1: has no key 'body'"):
        list(read_json_lines(tmp_path / "a.jsonl", "body", "url"))


@pytest.mark.parametrize("key", ["text", "url", "source"])
def test_half_of_a_surrogate_pair_is_repaired_as_ftfy_does_wherever_it_stands(key: str, tmp_path: Path) -> None:
    broken = "x \ud83d \ude00y"
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "words", "url": "u", "source": "s", key: broken}) + "\n")
    counts = ingest_jsonl(tmp_path / "a.jsonl", tmp_path, "out", 0, alone=True)
    assert (counts.rows_out, counts.rejected) == (1, {})
    (row,) = read_rows(tmp_path / "out-00000.arrow")
    assert row[key] == fix_surrogates(broken) == "x \ufffd \ufffdy"
    (record,) = read_json_lines(tmp_path / "a.jsonl", "text", "url")
    assert getattr(record, key) == row[key]


def test_a_line_without_end_is_refused_and_never_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.jsonl.MAX_LINE_BYTES", 1 << 20)
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(b'{"text": "before"}\n')
        for _ in range(40):
            file.write(b" " * (1 << 20))
        file.write(b'\n{"text": "after"}\n')
    tracemalloc.start()
    records = list(read_json_lines(tmp_path / "a.jsonl.gz", "text", "url"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    assert [record.text if isinstance(record, Text) else record for record in records] == [
        "before",
        Broken("a.jsonl.gz:2", "too_large", "longer than 1048576 bytes"),
        "after",
    ]


def test_suffixes_may_be_in_capitals(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "A.JSONL.GZ")
    assert len(list(read_json_lines(file, "text", "url"))) == 7


@pytest.mark.parametrize("text", ["", " \\n\\t"])
def test_a_line_with_a_blank_text_is_empty_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "{text}"}}\n{{"text": "x"}}\n')
    first, second = read_json_lines(tmp_path / "a.jsonl", "text", "url")
    assert isinstance(first, Broken)
    assert (first.url, first.rule) == ("a.jsonl:1", "empty_text")
    assert isinstance(second, Text)
