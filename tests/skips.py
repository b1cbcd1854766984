"""Plugin of pytest: with CI=true a skip that `allowed_skips.yaml` does not name is a failure.

What is skipped is not tested, and a green run does not say so. The outcome is changed where the report is made, so it
holds for every process of pytest-xdist, for a fixture that skips, and for a module that skips all of its tests.
"""

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

ALLOWED: dict[str, str] = yaml.safe_load((Path(__file__).parent / "allowed_skips.yaml").read_text("utf-8"))
"""Reason that a skip gives -> why a run of CI may lack what it needs."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail a test that was skipped without leave."""
    return refuse((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fail a module that was skipped without leave when it was imported."""
    return refuse((yield))


def refuse(report: Any) -> Any:
    """The report, failed if it is of a skip that is not allowed."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return report
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    if reason not in ALLOWED:
        report.outcome = "failed"
        report.longrepr = (
            f"skipped: {reason}\nUnder CI=true every test runs: install what this one needs, ship what it reads, or "
            "put its reason into tests/allowed_skips.yaml."
        )
    return report
