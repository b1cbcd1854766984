"""docs/gpt2.md names the recipes; its commands are run by tests/test_pages.py."""

import re

from tests.sample_project import ROOT

PAGE = ROOT / "docs/gpt2.md"


def test_the_page_shows_the_recipes_that_there_are() -> None:
    named = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(
        file.stem for file in (ROOT / "configs/recipe").glob("*.yaml") if file.stem != "none"
    )
