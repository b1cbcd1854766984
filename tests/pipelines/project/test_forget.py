"""`python -m pipelines forget`: what holds a page or was made from it, and a next run without it."""

import shutil
from pathlib import Path

import pytest

from pipelines.__main__ import main
from pipelines.command import StageSpec
from pipelines.documents import read_rows
from pipelines.project.explain import Trail
from pipelines.project.forget import holders, sources
from pipelines.project.graph import GraphStage
from pipelines.stage import run_command
from tests.dataprep.sites import HTML, make_site

ROOT = Path(__file__).parents[3]
G = "http://garden.test"


def run(module: str, *arguments: object) -> None:
    options = ("--overwrite", "--workers", "1", "--log-level", "error")
    assert run_command(StageSpec.load(module), [*map(str, arguments), *options]) == 0


def make(folder: Path, *options: object) -> list[GraphStage]:
    """A crawl of a small site as far as documents, and as if trained upon."""
    urls, fetched, log, documents = (folder / name for name in ("urls", "download", "fetch_log", "extract"))
    (folder / "list.txt").write_text(f"{G}/page/0\n{G}/page/1\n{G}/old\n")
    site = folder / "site"
    if not site.exists():
        moved = {"url": f"{G}/old", "status": 301, "location": "/new"}
        make_site(site, moved, {"url": f"{G}/new", "body": HTML.format("new " * 90)}, pages=2)
    forget = options and ("--forget", *options)
    run("dataprep.urls", folder / "list.txt", urls)
    run("dataprep.download", urls, fetched, "--fetch-log", log, "--local-site", site, *forget)
    run("dataprep.extract", fetched, documents, *forget)
    model, stats = folder / "pretrain", folder / "stats.json"
    for step in (40, 80):
        (model / f"step-{step:08d}").mkdir(parents=True, exist_ok=True)
    stats.write_text(f'{{"examples": ["{G}/page/0"]}}')
    return [
        GraphStage("urls", ("python -m dataprep.urls",), (folder / "list.txt",), (), (urls,), ()),
        GraphStage("download", ("python -m dataprep.download",), (urls, site), (), (fetched, log), ()),
        GraphStage("extract", ("python -m dataprep.extract",), (fetched,), (), (documents,), (stats,)),
        GraphStage("pretrain", ("python -m trainer.pretrain",), (documents,), (), (model,), ()),
        GraphStage("export", ("python -m trainer.export",), (model,), (), (folder / "export",), ()),
    ]


def held(folder: Path, key: str, stages: list[GraphStage]) -> list[tuple[str, str, str]]:
    return [(stage, str(path.relative_to(folder)), what) for stage, path, what in holders(Trail(key, stages), stages)]


def test_everything_that_holds_a_page_is_named_and_the_next_run_is_without_it(tmp_path: Path) -> None:
    stages = make(tmp_path)
    (tmp_path / "export").mkdir()
    assert held(tmp_path, "https://GARDEN.test/page/0#top", stages) == [
        ("urls", "urls/part-00000.parquet", "rows: 1"),
        ("download", "fetch_log/fetch-00000.parquet", "rows: 1"),
        ("download", "download/segment-00000.warc.gz", "the page as it was sent"),
        ("extract", "extract/part-00000-00000.parquet", "rows: 1"),
        ("extract", "stats.json", "names it"),
        ("pretrain", "pretrain/step-00000040", f"made from {tmp_path / 'extract'}"),
        ("pretrain", "pretrain/step-00000080", f"made from {tmp_path / 'extract'}"),
        ("export", "export", f"made from {tmp_path / 'pretrain'}"),
    ]
    assert list(sources(stages)) == [tmp_path / "list.txt", tmp_path / "site", tmp_path / ".fetch_store"]

    trail = Trail(f"{G}/old", stages)
    assert list(holders(trail, stages))
    assert {f"{G}/old", f"{G}/new"} <= trail.urls, "a page is entered under all URLs that led to it"

    (tmp_path / "forget.txt").write_text(f"{G}/page/0\n{G}/new\n")
    stages = make(tmp_path, tmp_path / "forget.txt")
    assert [row["url"] for row in read_rows(tmp_path / "extract" / "part-00000-00000.parquet")] == [f"{G}/page/1"]
    rejected = {
        row["url"]: (row["rule"], row["value"]) for row in read_rows(tmp_path / "extract/rejected/part-00000.parquet")
    }
    assert rejected == {f"{G}/new": ("forgotten", "extract.forget")}, "its URL is not in the list, but where it led to"
    rejected = {
        row["url"]: (row["rule"], row["value"])
        for row in read_rows(tmp_path / "download/rejected/segment-00000.parquet")
    }
    assert rejected == {f"{G}/page/0": ("forgotten", "download.forget")}


def test_prepared_documents_are_left_out_by_url_and_by_id(tmp_path: Path) -> None:
    rows = [f'{{"url": "{G}/{name}", "text": "{name} text"}}' for name in "abc"] + ['{"text": "no address"}']
    (tmp_path / "corpus.jsonl").write_text("\n".join(rows))
    run("dataprep.extract", tmp_path / "corpus.jsonl", tmp_path / "all")
    documents = list(read_rows(tmp_path / "all" / "part-00000-00000.parquet"))
    (tmp_path / "forget.txt").write_text(f"https://garden.test/b\n{documents[3]['doc_id'].hex()}\n")
    run("dataprep.extract", tmp_path / "corpus.jsonl", tmp_path / "some", "--forget", tmp_path / "forget.txt")
    assert list(read_rows(tmp_path / "some" / "part-00000-00000.parquet")) == [documents[0], documents[2]]


def test_the_command_begins_a_list_and_adds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    assert main(["use", "sample"]) == 0
    assert main(["forget", f"{G}/a#top"]) == 0
    assert "no output holds it" in capsys.readouterr().out
    assert (tmp_path / "inputs/forget.txt").read_text() == f"{G}/a#top\n"
    params = (tmp_path / "params.yaml").read_text()
    assert params.count("forget: inputs/forget.txt") == 2, "both stages read it"
    assert main(["forget", f"{G}/b"]) == 0
    assert main(["forget", f"{G}/b"]) == 0
    assert (tmp_path / "inputs/forget.txt").read_text() == f"{G}/a#top\n{G}/b\n"
    assert (tmp_path / "params.yaml").read_text() == params
    assert main(["forget", "garden"]) == 2
    assert "forget garden: neither a URL (http://...) nor a document id" in capsys.readouterr().err
