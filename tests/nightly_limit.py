"""Plugin of pytest: with NIGHTLY_UNTIL, a time in seconds since 1970, no nightly test begins after it.

A slow machine then runs fewer of them. Each day begins at another file, so that it comes to all of them within days.
"""

import os
import time
from datetime import date

import pytest

UNTIL = float(os.environ.get("NIGHTLY_UNTIL", "inf"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin at the file of the day, if not all may be reached."""
    files = list(dict.fromkeys(item.path for item in items))
    if files and time.time() < UNTIL < float("inf"):
        first = date.today().toordinal() * max(len(files) // 7, 1) % len(files)
        items.sort(key=lambda item: (files.index(item.path) - first) % len(files))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a nightly test for which there is no time, before anything is made for it."""
    if time.time() > UNTIL and item.get_closest_marker("nightly"):
        pytest.skip("the time for nightly tests is over")
