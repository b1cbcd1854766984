"""docs/reference/environment.md has every variable of ours that the code reads, and no other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = re.compile(r"\bMILLRACE_[A-Z_]+")


def test_the_table_of_variables_is_that_of_the_code() -> None:
    files = [file for package in ("pipelines", "dataprep", "trainer") for file in (ROOT / package).rglob("*.py")]
    used = {name for file in files for name in NAME.findall(file.read_text("utf-8"))} - {"MILLRACE_"}
    rows = re.findall(r"^\| `(MILLRACE_\w+)` \|", (ROOT / "docs/reference/environment.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(used), "correct docs/reference/environment.md"
