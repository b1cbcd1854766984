"""The command line of OpenWebText's download.py: a list in, one file of JSON lines out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.download.openwebtext import download_texts
from tests.dataprep.sites import make_site
from tests.pipes import pipe_with


@pytest.fixture
def urls(tmp_path: Path) -> Path:
    """A list of five pages, one of which the site lacks, beside the folder of the site."""
    make_site(tmp_path / "site", pages=4)
    (tmp_path / "clean_urls.txt").write_text("".join(f"http://garden.test/page/{i}\n" for i in range(5)))
    return tmp_path / "clean_urls.txt"


def command(urls: Path, *flags: object) -> list[str]:
    site = urls.with_name("site")
    return [str(urls), *map(str, flags), "--output", str(urls.with_name("raw.json")), "--local-site", str(site)]


def pages(urls: Path) -> list[str]:
    rows = [json.loads(line) for line in urls.with_name("raw.json").read_text().splitlines()]
    assert all("The miller opens the gate" in row["text"] for row in rows)
    return [row["url"].rpartition("/")[2] for row in rows]


def test_as_a_command_it_writes_the_texts_of_the_pages(urls: Path) -> None:
    words = [sys.executable, "-m", "dataprep.download", *command(urls, "--n_procs", 50, "--scraper", "newspaper")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert pages(urls) == ["0", "1", "2", "3"]
    assert "note: --scraper: " in done.stderr
    assert (urls.with_name("raw.pages") / "manifest.json").exists()
    assert not urls.with_name("raw.urls.txt").exists()


def test_the_first_urls_alone_and_then_all_of_them(urls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there is not fetched again; an output is replaced only on request."""
    assert download_texts(command(urls, "--n_procs", 2, "--max_urls", 2, "--timeout", 5)) == 0
    assert pages(urls) == ["0", "1"]
    assert download_texts(command(urls, "--n_procs", 2)) == 1
    assert "raw.json: exists already" in capsys.readouterr().err
    assert download_texts(command(urls, "--n_procs", 2, "--overwrite")) == 0
    assert pages(urls) == ["0", "1", "2", "3"]


def test_a_list_named_like_the_output_is_only_read(urls: Path) -> None:
    listed = urls.rename(urls.with_name("raw.urls.txt"))
    before = listed.read_bytes()
    assert download_texts(command(listed, "--n_procs", 2, "--max_urls", 2)) == 0
    assert pages(listed) == ["0", "1"]
    assert listed.read_bytes() == before
    assert not list(listed.parent.glob(".work/*/")), "the shortened list is gone"


def test_the_first_urls_may_come_from_a_pipe(urls: Path) -> None:
    with pipe_with(urls.with_name("pipe"), urls.read_bytes()) as pipe:
        assert download_texts(command(pipe, "--n_procs", 2, "--max_urls", 3)) == 0
    assert pages(urls) == ["0", "1", "2"]


def test_the_number_of_processes_is_that_of_the_environment_unless_it_is_given(
    urls: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MILLRACE_WORKERS", "many")
    assert download_texts(command(urls, "--n_procs", 2)) == 2
    assert "MILLRACE_WORKERS=many" in capsys.readouterr().err
    monkeypatch.setenv("MILLRACE_WORKERS", "1")
    assert download_texts(command(urls, "--n_procs", 2)) == 0


def test_after_a_crawl_whose_texts_were_not_written_it_goes_on(urls: Path) -> None:
    assert download_texts(command(urls, "--n_procs", 2)) == 0
    for file in urls.parent.glob("raw.json*"):
        file.unlink()
    assert download_texts(command(urls, "--n_procs", 2)) == 0
    assert pages(urls) == ["0", "1", "2", "3"]


def test_a_folder_of_texts_is_refused_before_anything_is_fetched(
    urls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert download_texts([str(urls), "--output_dir", str(urls.with_name("scraped")), "--n_procs", "2"]) == 2
    assert "give --output FILE.json" in capsys.readouterr().err
    assert not urls.with_name("raw.pages").exists()
    assert download_texts([str(urls), str(urls.with_name("pages"))]) is None
