"""The reference of commands is what their help says today."""

import subprocess
import sys
from pathlib import Path

import pytest

from docs.commands import FOLDER, PAGES, plain

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_pages_of_commands_are_current(tmp_path: Path) -> None:
    """Made again by `python -m docs.commands`."""
    subprocess.run([sys.executable, "-m", "docs.commands", str(tmp_path)], cwd=ROOT, check=True)
    for name in PAGES:
        assert (FOLDER / name).read_text("utf-8") == (tmp_path / name).read_text("utf-8"), name


def test_frames_are_left_out() -> None:
    framed = "usage: x\n\n╭─ options ─────╮\n│ How to run.   │\n│ ───────────── │\n│ --seed INT    │\n╰───────────────╯"
    assert plain(framed) == "usage: x\n\noptions:\n  How to run.\n  --seed INT"
