"""The page of rules in the documentation is the one that the code generates."""

from pathlib import Path

from dataprep.clean.rule_page import rule_page
from dataprep.clean.rules.table import ORDER, QUALITY

ROOT = Path(__file__).parents[3]


def test_the_page_of_rules_is_current() -> None:
    """Made again by `python -m dataprep.clean.rule_page > docs/rules.md`."""
    assert (ROOT / "docs" / "rules.md").read_text("utf-8") == rule_page()


def test_every_reason_has_a_row_of_its_own() -> None:
    rows = [line.split("`")[1] for line in rule_page().splitlines() if line.startswith("| `")]
    assert rows == [*ORDER, QUALITY]
    assert (
        "| `language_probability` | at least | probability (`min_language_probability`) | 0.99 | 0.65 |" in rule_page()
    )
