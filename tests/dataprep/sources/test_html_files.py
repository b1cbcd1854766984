"""Pages in files: plain and compressed, in the encodings that they declare themselves, or damaged."""

import gzip
import lzma
from pathlib import Path

from dataprep.pages.charset import decode_html
from dataprep.pages.sniffing import why_not_html
from dataprep.sources.html_files import read_html_file
from dataprep.sources.records import Broken, Page

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
