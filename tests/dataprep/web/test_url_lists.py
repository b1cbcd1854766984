"""What is a list of URLs, by its name in a folder, its first bytes and lines; and long lists in chunks."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataprep.web import url_lists as module
from dataprep.web.url_lists import (
    Chunk,
    UnreadableLineError,
    read_blocks,
    read_record,
    read_url,
    split_lists,
    unescaped,
    url_lists,
)
from pipelines import utf
from pipelines.errors import UserError


def tar() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("list.txt"), io.BytesIO())
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("crawl.warc.gz", gzip.compress(b"WARC/1.0\r\nWARC-Target-URI: http://a.test/\r\n"), "a WARC archive"),
        ("crawl.arc.gz", gzip.compress(b"filedesc://a.arc 0.0.0.0 2009 text/plain 1\n"), "an ARC archive"),
        ("page.html", b"\xef\xbb\xbf\n<!DOCTYPE html>\nhttp://garden.test/\n", "an HTML or XML page"),
        ("page.txt", b"<HTML lang=en>\nhttp://garden.test/\n", "an HTML or XML page"),
        ("sitemap.txt", b"<?xml version='1.0'?>\n", "an HTML or XML page"),
        ("paper.pdf", b"%PDF-1.4\nhttp://garden.test/\n", "a PDF document"),
        ("list.zip", b"PK\x03\x04", "a zip archive"),
        ("list.tar.gz", gzip.compress(tar()), "a tar archive"),
        ("binary.txt", b"http://garden.test/\n\0\1\2", r"binary data \(a zero byte in line 2, at byte 20\)"),
    ],
)
def test_other_data_is_named_by_its_first_bytes(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{name}: is not a list of URLs but {message}") as error:
        url_lists(tmp_path / name)
    assert "\n" not in str(error.value)


ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
LINES = "http://garden.test/rosé\r\n\r\n# ein Kommentar 🌹\r\nhttp://garden.test/水車\r\n{}http://garden.test/end"


@pytest.mark.parametrize("name", ["list.txt", "list.txt.gz", "LIST"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_list_in_utf_16_or_32_is_the_same_list(
    encoding: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of several chunks' size, and with characters cut between blocks."""
    monkeypatch.setattr(module, "CHUNK_BYTES", 50)
    monkeypatch.setattr(utf, "_BLOCK", 7)
    data = {}
    for each in ("utf-8-sig", encoding):
        (tmp_path / each).mkdir()
        packed = gzip.compress if name.endswith(".gz") else bytes
        (tmp_path / each / name).write_bytes(packed(LINES.format("").encode(each)))
        (file,) = url_lists(tmp_path / each)
        text = b"\n".join(block for chunk in split_lists([file]) for _, block in read_blocks(chunk))
        data[each] = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r", b"").split(b"\n")
    assert data[encoding] == data["utf-8-sig"]
    assert data[encoding][0].decode() == "http://garden.test/rosé"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_what_is_no_character_costs_its_line(encoding: str, tmp_path: Path) -> None:
    half = "http://garden.test/\ud83d\n"
    data = LINES.format(half).encode(encoding, "surrogatepass")
    (tmp_path / "list.txt").write_bytes(data + b"\n")  # cut within a character
    text = b"\n".join(block for _, block in read_blocks(Chunk(tmp_path / "list.txt", 0, 0)))
    lines = [line.strip() for line in text.split(b"\n")]
    for line in lines[4:]:
        with pytest.raises(UnreadableLineError, match="not valid UTF-8"):
            read_url(line, in_json=False)
    assert [read_url(line, in_json=False) for line in lines[1:4]] == [
        "",
        "# ein Kommentar 🌹",
        "http://garden.test/水車",
    ]
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("escaped", "meant"),
    [
        ("http://a.test/?x=1&amp;y=2&lt;&copy=3", "http://a.test/?x=1&y=2<&copy=3"),
        ("http://a.test/?x=&amp;lt;", "http://a.test/?x=&lt;"),
        ("http://a.test/?x=1&#38;y=2&#x26;z=3&#038;", "http://a.test/?x=1&y=2&z=3&"),
        ("http://a.test/?x=1&amp;amp;y&amp;#38;z", "http://a.test/?x=1&y&z"),
        ("http://a.test/it&#39;s&quot;&apos;&#xE9;&#8364;", "http://a.test/it's\"'é€"),
        ("http://a.test/&#10;&#32;&#xD800;&#0;&#9999999;", "http://a.test/&#10;&#32;&#xD800;&#0;&#9999999;"),
        ("http://a.test/?amp;x=1&copy;&nbsp;#38;", "http://a.test/?amp;x=1&copy;&nbsp;#38;"),
    ],
)
def test_escapes_of_pages_are_undone(escaped: str, meant: str) -> None:
    assert unescaped(escaped) == meant


@pytest.mark.parametrize(
    "line",
    ['{"url": "a", "n": NaN}', '{"url": "\\ud800", "n": 1e999}', '{"url": "a", "url": "é", "n": [1.50, -0.0, 1e3]}'],
)
def test_json_is_read_as_pythons_own_reader_does(line: str) -> None:
    assert repr(read_record(line)) == repr(read_record(line.encode())) == repr(json.loads(line))


@pytest.mark.parametrize("line", [b"{", b'{"a": \x00}', b'{"a": "\t"}', b"[" * 100_000, '{"a": 1}\ufeff'.encode()])
def test_what_is_no_json_has_its_reason(line: bytes) -> None:
    with pytest.raises(UnreadableLineError, match="not valid JSON"):
        read_record(line)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# mine\ndomain,flag\ngarden.test,fake\n",
            "none of its 2 lines holds a URL; line 2: 'domain,flag' is not an http",
        ),
        ("garden.test\n" * 3, "none of its 3 lines holds a URL; line 1: 'garden.test' is not an http"),
        ("report.pdf\n\nftp://a.test/x\n", "none of its 2 lines holds a URL; line 1: 'report.pdf' is not an http"),
    ],
)
def test_lines_of_which_none_is_a_url_are_no_list(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        url_lists(tmp_path / "list.txt")
    assert "give URLs such as http://garden.test/page" in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing yet\n\n",
        "https://www.youtube.com/watch?v=1\nhttp://10.0.0.1/\n",
        "garden.test\n" * 500 + "http://garden.test/\n",
        "\ufeffhttp://garden.test/\n",
        json.dumps({"url": "http://garden.test/"}),
    ],
)
def test_one_url_makes_a_list_and_so_does_nothing_at_all(text: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(text)
    assert url_lists(tmp_path / "list.txt") == [tmp_path / "list.txt"]


def test_a_file_of_a_folder_without_a_suffix_is_a_list_by_its_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "README").write_text("These lists are mine:\nhttp://garden.test/\n")
    (tmp_path / "LICENSE.gz").write_bytes(gzip.compress(b"You may copy this.\n"))
    (tmp_path / "core").write_bytes(b"\x7fELF\0\xff")
    (tmp_path / "mine").write_text("# a comment\n\nhttp://garden.test/a\n")
    (tmp_path / "RS_2005-06.gz").write_bytes(gzip.compress(b'{"url": "http://garden.test/b"}\n'))
    with caplog.at_level("WARNING"):
        assert [file.name for file in url_lists(tmp_path)] == ["RS_2005-06.gz", "mine"]
    assert caplog.messages[0].endswith("not URL lists by their names or first lines: LICENSE.gz, README, core")


def test_a_file_of_a_folder_that_is_no_list_costs_only_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a.txt").write_bytes(b"PK\x03\x04")
    (tmp_path / "b.jsonl").write_text('{"link": "http://garden.test/"}\n')
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"http://garden.test/")[:12])
    with pytest.raises(UserError, match=r"a\.txt: is not a list of URLs but a zip archive"):
        url_lists(tmp_path)
    (tmp_path / "d.txt").write_text("http://garden.test/\n")
    caplog.clear()
    assert url_lists(tmp_path) == [tmp_path / "d.txt"]
    assert [message.partition(str(tmp_path))[2].partition(":")[0] for message in caplog.messages] == [
        "/a.txt",
        "/b.jsonl",
        "/c.txt.gz",
    ]


def read_chunks(file: Path) -> list[tuple[int, bytes]]:
    lines: list[tuple[int, bytes]] = []
    for chunk in split_lists([file]):
        for first, block in read_blocks(chunk):
            lines += enumerate(block.split(b"\n"), first)
    return lines


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.lists(st.sampled_from([b"\n", b"a", b"long line", b"\r\n"]), max_size=60).map(b"".join))
@pytest.mark.parametrize(("chunk_bytes", "block_bytes"), [(1, 1), (7, 3), (20, 64), (1000, 5)])
def test_chunks_hold_all_lines_with_their_numbers(
    text: bytes, chunk_bytes: int, block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    (tmp_path / "list.txt").write_bytes(text)
    (tmp_path / "list.txt.gz").write_bytes(gzip.compress(text))
    wanted = [(number, line) for number, line in enumerate(text.split(b"\n"), 1) if line]
    assert [(number, line) for number, line in read_chunks(tmp_path / "list.txt") if line] == wanted
    assert [(number, line) for number, line in read_chunks(tmp_path / "list.txt.gz") if line] == wanted


def test_a_long_plain_list_is_many_chunks_and_a_compressed_one_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 100)
    text = b"http://garden.test/page\n" * 50
    (tmp_path / "a.txt").write_bytes(text)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text))
    chunks = split_lists([tmp_path / "a.txt", tmp_path / "b.txt.gz"])
    assert [chunk.number for chunk in chunks] == list(range(11))
    assert [chunk.list_number for chunk in chunks] == [0] * 10 + [1]
    assert [chunk.first_line for chunk in chunks[:3]] == [1, 6, 11]


def test_a_line_without_end_is_one_clear_line_and_not_all_of_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 1000)
    monkeypatch.setattr(module, "BLOCK_BYTES", 100)
    text = b"http://garden.test/\n" + b"x" * 5000
    (tmp_path / "list.txt").write_bytes(text)
    with pytest.raises(UserError, match=r"list.txt:2: is longer than"):
        read_chunks(tmp_path / "list.txt")
    monkeypatch.setattr(module, "CHUNK_BYTES", 50)
    with pytest.raises(UserError, match=r"list.txt:2: is longer than"):
        read_chunks(tmp_path / "list.txt")


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"PK\x03\x04", "a zip archive: unpack it"),
        (b"\x1f\x8b\x08", r"gzip data: let its name end in .gz"),
        (b"http\0", "binary data"),
    ],
)
def test_a_file_that_is_no_text_is_one_clear_line(start: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(start + b"\nhttp://garden.test/\n")
    with pytest.raises(UserError, match=message):
        read_chunks(tmp_path / "list.txt")
