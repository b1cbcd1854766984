"""`python -m pipelines explain`: from a URL in any spelling to all lines of the lists that mean it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.command import StageSpec
from pipelines.explain import explain
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


def test_the_command_prints_the_lines_of_the_graphs_own_list(stage: GraphStage, tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text(
        "stages:\n  urls:\n    cmd: python -m dataprep.urls lists urls\n    outs:\n      - urls\n"
    )
    (tmp_path / "params.yaml").write_text("{}\n")
    result = subprocess.run(
        [sys.executable, "-m", "pipelines", "explain", "http://garden.test/b"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split(maxsplit=1)[1] for line in result.stdout.splitlines()] == ALL_OF_B
