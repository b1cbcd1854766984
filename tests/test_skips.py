"""Under CI=true a skip fails unless its reason is on the list, in one process and in several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.nightly import nightly
from tests.skips import ALLOWED

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest

def test_runs(): pass

@pytest.mark.skip(reason="nobody allowed this")
def test_marked(): pass

@pytest.fixture
def absent(): pytest.skip("data not at hand")

def test_by_its_fixture(absent): pass

@pytest.mark.skipif(True, reason="needs the right to mount a tmpfs")
def test_allowed(): pass

@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""
MODULE = "import pytest\npytest.importorskip('no_such_package', reason='no such package')\ndef test_never(): pass\n"


def run(folder: Path, *options: str, ci: str) -> tuple[int, str]:
    (folder / "test_some.py").write_text(TESTS)
    (folder / "test_module.py").write_text(MODULE)
    (folder / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.skips", "-p", "no:cacheprovider", "-rA", *options, "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CI": ci}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize("options", [(), nightly((("-n", "2"),))], ids=["one process", "two processes"])
def test_a_skip_that_nobody_allowed_fails(options: tuple[str, ...], tmp_path: Path) -> None:
    status, said = run(tmp_path, *options, "--continue-on-collection-errors", ci="true")
    assert status == 1
    for name in ("test_some.py::test_marked", "test_some.py::test_by_its_fixture", "test_module.py"):
        assert any(line.startswith(("FAILED", "ERROR")) and name in line for line in said.splitlines()), said
    for reason in ("nobody allowed this", "data not at hand", "no such package"):
        assert f"skipped: {reason}" in said.replace("could not import 'no_such_package': ", "")
    assert "1 passed, 1 skipped" in said.replace("2 failed, ", "").replace("1 failed, ", "")
    assert "1 xfailed" in said


@pytest.mark.parametrize("ci", ["", "false"])
def test_elsewhere_a_skip_is_a_skip(ci: str, tmp_path: Path) -> None:
    status, said = run(tmp_path, ci=ci)
    assert status == 0
    assert "1 passed, 4 skipped, 1 xfailed" in said


def test_each_allowed_reason_is_one_that_a_test_gives() -> None:
    code = "".join(file.read_text("utf-8") for file in sorted(ROOT.glob("tests/**/test_*.py")))
    assert [reason for reason in ALLOWED if reason not in code] == []
