"""The defects of Megatron's URL tools, each done right (numbers are those of the project's survey)."""

import socket
from pathlib import Path

import pytest

from dataprep.urls.blacklists import LISTS, list_files, load_blacklists
from dataprep.urls.rules import Judge
from dataprep.web.domains import registered_domain
from pipelines.command import StageSpec
from pipelines.documents import read_rows
from pipelines.stage import run_command

SPEC = StageSpec.load("dataprep.urls")
JUDGE = Judge(load_blacklists(list_files(LISTS)), 8)


def run(source: Path, output: Path, *options: str) -> list[str]:
    assert run_command(SPEC, [str(source), str(output), "--workers", "1", "--log-level", "error", *options]) == 0
    return [row["url"] for file in sorted(output.glob("part-*.parquet")) for row in read_rows(file)]


def test_1_a_missing_comma_never_joined_7z_and_ai() -> None:
    assert JUDGE("http://garden.test/x.7z").value == ".7z (archives)"
    assert JUDGE("http://garden.test/x.ai").value == ".ai (images)"
    assert JUDGE("http://garden.ai/about").rule == ""


def test_2_the_order_of_the_output_is_that_of_the_urls(tmp_path: Path) -> None:
    """Not that of a set, and not that in which a folder lists its files."""
    (tmp_path / "lists").mkdir()
    for name in ("b.txt", "a.txt", "c.txt"):
        (tmp_path / "lists" / name).write_text("".join(f"http://{name[0]}{i}.test/\n" for i in range(50)))
    found = run(tmp_path / "lists", tmp_path / "out")
    assert found == sorted(found)
    assert len(found) == 150


@pytest.mark.parametrize(
    "line",
    [
        "HTTP://garden.test/page",
        "http://Garden.Test/page",
        "http://garden.test:80/page",
        "http://garden.test/page#top",
        "http://garden.test/p%61ge",
        "http://garden.test/page?utm_source=feed&utm_medium=rss",
        "http://garden.test/x/../page",
    ],
)
def test_3_spellings_of_one_page_are_one(line: str) -> None:
    assert JUDGE(line).canonical == "http://garden.test/page"


def test_3_http_and_https_are_one_page_and_the_output_is_sorted(tmp_path: Path) -> None:
    lines = ["https://b.test/1", "http://b.test/1", "http://z.test/2", "https://z.test/2", "https://a.test/3"]
    (tmp_path / "list.txt").write_text("".join(line + "\n" for line in lines))
    assert run(tmp_path / "list.txt", tmp_path / "out") == ["http://z.test/2", "https://a.test/3", "https://b.test/1"]


def test_3_a_fragment_hides_no_extension() -> None:
    assert JUDGE("http://garden.test/x.pdf#page=2").rule == "extension_blacklist"


@pytest.mark.parametrize(
    "line",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:6379/",
        "http://10.0.0.1",
        "http://0x7f.1/page",
        "http://[fd00::1]/page",
        "http://internal.corp",
        "http://localhost/page",
        "http://db.internal/page",
    ],
)
def test_4_addresses_of_private_networks_are_no_urls(line: str) -> None:
    """The downloader refuses them too, also behind redirects; here they never reach it."""
    assert JUDGE(line).rule == "malformed"


def test_5_an_entry_says_nothing_about_other_endings() -> None:
    lists = load_blacklists(list_files(LISTS))
    assert lists.domains["apps.apple.com"] == "apps"
    for url in ("http://apple.com/", "http://www.apple.org/", "http://imgur.de/", "http://youtube.garden.test/"):
        assert JUDGE(url).rule == "", url


def test_5_public_suffixes_never_come_from_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    registered_domain.cache_clear()
    assert registered_domain("www.garden.co.uk") == "garden.co.uk"


def test_26_a_list_without_a_last_line_end_does_not_join_the_next(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "a.txt").write_text("http://garden.test/1\nhttp://garden.test/2")
    (tmp_path / "lists" / "b.txt").write_text("http://garden.test/3")
    assert run(tmp_path / "lists", tmp_path / "out") == [f"http://garden.test/{i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("output", ["out", "out.jsonl", "deeper/out.jsonl"])
def test_26_an_output_is_never_among_the_lists(output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second run would read its own output."""
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "a.txt").write_text("http://garden.test/1\n")
    assert run_command(SPEC, [str(tmp_path / "lists"), str(tmp_path / "lists" / output), "--workers", "1"]) == 1
    assert f"inside the input {tmp_path / 'lists'}, so the next run would read it" in capsys.readouterr().err
    assert [file.name for file in (tmp_path / "lists").iterdir()] == ["a.txt"], "nor any scratch"
