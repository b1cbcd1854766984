"""What is a list of URLs: by its name in a folder, and by its first bytes and lines."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import pytest

from dataprep.url_lists.files import url_lists
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
    ],
)
def test_other_data_is_named_by_its_first_bytes(name: str, data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=f"{name}: is no list of URLs but {message}") as error:
        url_lists(tmp_path / name)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "# mine\ndomain,flag\ngarden.test,fake\n",
            "none of its 2 lines holds a URL; line 2: 'domain,flag' is no http",
        ),
        ("garden.test\n" * 3, "none of its 3 lines holds a URL; line 1: 'garden.test' is no http"),
        ("report.pdf\n\nftp://a.test/x\n", "none of its 2 lines holds a URL; line 1: 'report.pdf' is no http"),
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
    assert caplog.messages[0].endswith("left out: LICENSE.gz, README, core")
