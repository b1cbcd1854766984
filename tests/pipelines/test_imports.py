"""Commands and their workers run without pandas, which pyarrow would import; a library that needs it has it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number in range(2):
        lines = (json.dumps({"text": f"the mill number {number} grinds {row}"}) + "\n" for row in range(50))
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return folder


def test_no_command_imports_pandas(documents: Path) -> None:
    """Not in itself, nor in its workers: each would take 0.4 s for it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPROFILEIMPORTTIME": "1"}
    asked = False
    for words in ("tokenizer documents tokenizer --vocab-size 300", "tokenize documents tokenizer out --workers 2"):
        command = [sys.executable, "-m", *f"dataprep.{words}".split()]
        done = subprocess.run(
            command, cwd=documents.parent, env=environment, capture_output=True, text=True, check=True
        )
        lines = [line.split("|")[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
        asked |= "pandas" in lines
        assert not [name for name in lines if name.startswith("pandas.")]
        assert words.startswith("tokenizer") or "pyarrow.compute" not in lines, "0.05 s of a start-up of 0.8"
    assert asked, "pyarrow no longer imports it: pipelines.imports can go"


def test_what_needs_pandas_may_have_it() -> None:
    script = """
import importlib.util, pyarrow
from pipelines.imports import hide_pandas, show_pandas
hide_pandas()
assert importlib.util.find_spec("pandas") is None, "as torch asks"
assert pyarrow.array([1, 2]).to_numpy().tolist() == [1, 2]
show_pandas()
import datasets, pandas
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_a_command_line_is_parsed_without_typeguard_and_leaves_no_stand_in() -> None:
    script = """
import sys
from pipelines.command import StageSpec, parse
call = parse(StageSpec.load("dataprep.deduplicate"), ["in.jsonl", "out.jsonl", "--sources", "a", "b"])
assert call.sections["config"].sources == ("a", "b")
assert sys.modules.keys().isdisjoint({"typeguard", "unittest.mock"}), "0.1 s of a start-up of 1"
import typeguard
assert typeguard.check_type(1, int) == 1
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_a_command_starts_no_threads_for_matrices() -> None:
    code = """
import os, sys
sys.argv, sys.orig_argv = ["-m"], ["python", "-m", "dataprep.clean"]
import dataprep, numpy
print(len(os.listdir("/proc/self/task")))
"""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1
