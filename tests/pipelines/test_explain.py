"""`python -m pipelines explain`: from a URL in any spelling to all lines of the lists that mean it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.command import StageSpec
from pipelines.explain import explain, nearest
from pipelines.graph import GraphStage
from pipelines.stage import run_command

ROOT = Path(__file__).parents[2]
SUBMISSION = {"subreddit": "x", "score": 9, "created_utc": 0, "url": "http://garden.test/s?a=1&amp;b=2"}


@pytest.fixture
def stage(tmp_path: Path) -> GraphStage:
    """The URL list of two files, published."""
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "a.txt").write_text(
        "# first\nhttp://Garden.test/b#top\nhttp://garden.test/x.pdf#1\nhttp://garden.test/c\n"
    )
    (lists / "b.txt").write_text("http://garden.test/b\nHTTP://GARDEN.test:80/b?utm_source=x\nnot a url at all\n")
    (lists / "d.txt").write_text("https://www.garden.test/d#1\nhttp://www.garden.test/d\n")
    (lists / "c.jsonl").write_text(2 * (json.dumps(SUBMISSION) + "\n"))
    out = tmp_path / "urls"
    spec = StageSpec.load("dataprep.urls")
    assert run_command(spec, [str(lists), str(out), "--workers", "1", "--log-level", "error"]) == 0
    return GraphStage("urls", ("python -m dataprep.urls",), (), (), (out,), ())


ALL_OF_B = [
    "urls/part-00000.parquet: a.txt:2 http://Garden.test/b#top",
    "rejected by duplicate: of http://Garden.test/b#top (b.txt:1 http://garden.test/b)",
    "rejected by duplicate: of http://Garden.test/b#top (b.txt:2 HTTP://GARDEN.test:80/b?utm_source=x)",
]
ALL_OF_D = [
    "urls/part-00000.parquet: d.txt:1 https://www.garden.test/d#1",
    "rejected by duplicate: of https://www.garden.test/d#1 (d.txt:2 http://www.garden.test/d)",
]
ALL_OF_S = [
    f"urls/part-00000.parquet: c.jsonl:1 {SUBMISSION['url']}",
    f"rejected by duplicate: of {SUBMISSION['url']} (c.jsonl:2 {SUBMISSION['url']})",
]


@pytest.mark.parametrize(
    ("key", "verdicts"),
    [
        ("http://garden.test/b", ALL_OF_B),
        ("http://Garden.test/b#top", ALL_OF_B),
        ("HTTP://GARDEN.test:80/b?utm_source=x", ALL_OF_B),
        ("https://garden.test/b", ALL_OF_B),
        ("http://garden.test/B", []),
        ("http://www.garden.test/d", ALL_OF_D),
        ("https://www.garden.test/d#2", ALL_OF_D),
        ("http://garden.test/c", ["urls/part-00000.parquet: a.txt:4 http://garden.test/c"]),
        (
            "http://garden.test/x.pdf",
            ["rejected by extension_blacklist: .pdf (documents) (a.txt:3 http://garden.test/x.pdf#1)"],
        ),
        (
            "not a url at all",
            ["rejected by malformed: not an http or https URL with a valid host (b.txt:3 not a url at all)"],
        ),
        ("http://garden.test/s?a=1&b=2", ALL_OF_S),
        (SUBMISSION["url"], ALL_OF_S),
    ],
)
def test_each_spelling_leads_to_all_lines_of_its_page(stage: GraphStage, key: str, verdicts: list[str]) -> None:
    assert [verdict for _, verdict in explain(key, [stage])] == verdicts


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("garden.test/b", "http://garden.test/b"),
        ("www.garden.test/b/", "http://garden.test/b"),
        ("https://garden.test/b/#top", "http://garden.test/b"),
        ("garden.test/d", "http://www.garden.test/d"),
        ("http://garden.test/d/?utm_source=x", "http://www.garden.test/d"),
        ("http://garden.test:8080/b", None),
        ("garden.test/e", None),
        ("not a url", None),
        ("0" * 32, None),
    ],
)
def test_a_url_that_is_not_known_leads_to_the_one_that_was_meant(
    stage: GraphStage, key: str, meant: str | None
) -> None:
    assert list(explain(key, [stage])) == []
    assert nearest(key, [stage]) == meant


def test_a_rejection_says_value_and_threshold(tmp_path: Path) -> None:
    source, out = tmp_path / "raw.jsonl", tmp_path / "clean"
    source.write_text(json.dumps({"url": "http://garden.test/stub", "text": "A stub."}) + "\n")
    spec = StageSpec.load("dataprep.clean")
    assert run_command(spec, [str(source), str(out), "--workers", "1", "--log-level", "error"]) == 0
    stage = GraphStage("clean", ("python -m dataprep.clean",), (), (), (out,), ())
    ((_, verdict),) = explain("http://garden.test/stub", [stage])
    assert verdict == "rejected by too_few_tokens: 3 pre-tokens; the threshold is at least 128 pre-tokens"


@pytest.fixture
def project(stage: GraphStage, tmp_path: Path) -> Path:
    """A graph of the published list alone."""
    assert stage.outs == (tmp_path / "urls",)
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  urls:\n    cmd: python -m dataprep.urls lists urls\n    outs:\n      - urls\n"
    )
    (tmp_path / "params.yaml").write_text("{}\n")
    return tmp_path


def command(project: Path, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pipelines", *arguments],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_the_command_prints_the_lines_of_the_graphs_own_list(project: Path) -> None:
    result = command(project, "explain", "http://garden.test/b")
    assert result.returncode == 0
    assert [line.split(maxsplit=1)[1] for line in result.stdout.splitlines()] == ALL_OF_B


def test_the_command_says_which_url_was_meant(project: Path) -> None:
    result = command(project, "explain", "garden.test/b/")
    first, *verdicts = result.stdout.splitlines()
    assert first == "no output knows garden.test/b/; nearest: http://garden.test/b"
    assert [line.split(maxsplit=1)[1] for line in verdicts] == ALL_OF_B
    unknown = command(project, "explain", "garden.test/e")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no published output knows this URL" in unknown.stderr


def test_a_reader_that_has_enough_ends_the_command_quietly(project: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    result = command(project, "explain", "http://garden.test/b", stdout=theirs)
    os.close(theirs)
    assert (result.returncode, result.stderr) == (141, "")
