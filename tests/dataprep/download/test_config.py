"""The section `download` stops at the stage: what fetches pages is told its own part and nothing else."""

import ast
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dataprep.download.config import CrawlOptions, DownloadConfig, Identity, Limits, Politeness, Retries
from dataprep.download.stage import crawl_options

DOWNLOAD = Path(__file__).parents[3] / "dataprep" / "download"
PARTS = sorted(set(DOWNLOAD.rglob("*.py")) - {DOWNLOAD / "config.py", DOWNLOAD / "stage.py"})


def test_the_parts_of_the_download_are_found() -> None:
    assert DOWNLOAD / "network.py" in PARTS
    assert DOWNLOAD / "crawler" / "visit.py" in PARTS


@pytest.mark.parametrize("file", PARTS, ids=lambda file: file.stem)
def test_no_part_of_the_download_knows_the_stage_or_its_section(file: Path) -> None:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.ImportFrom():
                names |= {str(node.module), *(alias.name for alias in node.names)}
            case ast.Import():
                names |= {alias.name for alias in node.names}
            case ast.Constant(value=str(text)) if text.isidentifier():  # an annotation in quotation marks
                names.add(text)
            case _:
                pass
    assert not names & {"dataprep.download.stage", "DownloadConfig"}


def test_each_part_has_the_values_of_the_section_under_their_names() -> None:
    defaults = dataclasses.asdict(DownloadConfig())
    numbers = {name: value for name, value in defaults.items() if type(value) in (int, float)}
    changed: dict[str, Any] = {name: value + number for number, (name, value) in enumerate(numbers.items(), 1)}
    changed |= {"user_agent": "other/1.0", "robots": False, "opt_outs": ("ai_txt",)}
    options = crawl_options(DownloadConfig(**changed))
    parts = [getattr(options, field.name) for field in dataclasses.fields(CrawlOptions)]
    assert [type(part) for part in parts] == [Identity, Politeness, Limits, Retries]
    for part in parts:
        values = dataclasses.asdict(part)
        assert values == {name: changed[name] for name in values}
