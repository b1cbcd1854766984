"""`--shard-range`: tasks share the shards of a stage in any order and number, and the bytes are those of a plain run."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import pytest

from dataprep.download.stage import FETCH_STORE
from pipelines import shares, store
from pipelines.command import StageSpec, parse
from pipelines.errors import ConfigError
from pipelines.project.slurm import count_arrays
from pipelines.shares import MAPS, ShardRange
from pipelines.stage import run_command
from tests.dataprep.corpora import digests
from tests.test_limit import STAGES, TRIALS, texts

ROOT = Path(__file__).parents[2]
SHARED = {name: words for name, (_, words, *_) in TRIALS.items() if name in MAPS}
MORE = {
    # What makes several shards of a few documents in every map that has any.
    "download": ["--urls-per-segment", "5"],
    "urls": ["--rows-per-part", "10"],
    "find_duplicates": ["--save-fingerprints", "prints"],
    "ledger": ["--extract", "extract", "--remove-duplicates", "unique", "--decontaminate", "clear", "--val", "val"],
    "split": ["--documents-per-shard", "4"],
    "shuffle": ["--documents-per-shard", "4"],
    "tokenize": ["--tokens-per-shard", "400"],
}
NOT_DONE = "which are done here"


def run(name: str, words: list[str], *more: str) -> int:
    return run_command(STAGES[name], [*words, *more, "--workers", "1"])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the outputs of every data stage, each by a plain run on those before it, as several shards."""
    folder = tmp_path_factory.mktemp("shares")
    for name in ("raw.jsonl", "bad.jsonl"):
        (folder / name).mkdir()
    for number in range(4):
        lines = [
            json.dumps({"url": f"http://mill.test/{n}", "text": text, **({"date": "2020"} if n % 2 else {})})
            for n, text in enumerate(texts())
            if n % 4 == number
        ]
        (folder / "raw.jsonl" / f"{number}.jsonl").write_text("\n".join(lines))
        lines = [json.dumps({"text": f"Subscribe to list {n}!"}) for n in range(number, 24, 4)]
        (folder / "bad.jsonl" / f"{number}.jsonl").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("dataprep.dedup.search.PAIRS_PER_JOB", 1)
        patch.setattr("dataprep.ledger.stage.ROWS_PER_PART", 1)
        patch.setattr("dataprep.split.shuffle.SMALLEST_RUN", 4000)
        patch.setattr("dataprep.split.shuffle.SEGMENT", 500)
        for name in SHARED:
            assert run(name, arguments(name)) == 0, name
        shutil.copytree(FETCH_STORE, f"shared/{FETCH_STORE}")
        yield folder


def arguments(name: str, prefix: str = "") -> list[str]:
    """Return the words of a stage's command; `prefix` is put before the names of its outputs."""
    site = ROOT / "dataprep" / "sample" / "site"
    named = {"SITE": str(site), "LIST": str(site / "urls.txt"), "GLUE": str(site.parent / "glue")}
    named["ROWS"] = str(ROOT / "tests" / "data" / "scores" / "rows")
    words = [*(named.get(word, word) for word in SHARED[name]), *MORE.get(name, [])]
    for path in map(str, parse(STAGES[name], words).outputs.values()):
        place = len(words) - 1 - words[::-1].index(path)  # a task may have the name of its output, and comes first
        words[place] = f"{prefix}{path}"
    return words


def published(name: str, prefix: str = "") -> dict[str, str]:
    """Return the digests of all files that a stage published."""
    found: dict[str, str] = {}
    for path in parse(STAGES[name], arguments(name)).outputs.values():
        real = Path(f"{prefix}{path}")
        files = [*real.parent.glob(f"{real.name}*")] if real.is_file() else store.list_files(real)
        found |= {str(file).removeprefix(prefix): store.sha256(file) for file in files}
    return found


def test_every_data_stage_can_be_shared() -> None:
    """A stage that is not in MAPS fails: count the maps over shards that it makes, and add it."""
    assert {name for name, spec in STAGES.items() if spec.command.startswith("dataprep.")} == {*MAPS}


@pytest.mark.parametrize("name", SHARED)
def test_three_tasks_and_a_plain_run_give_the_bytes_of_a_plain_run_alone(
    name: str, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And as many arrays of tasks as `millrace slurm` prints leave no shard of a map to the plain run."""
    words = arguments(name, "shared/")
    call = parse(STAGES[name], words)
    shared = 0
    for _ in range(count_arrays(STAGES[name], call)):
        for index in (2, 0, 1):
            assert run(name, words, "--shard-range", f"{index}/3") == 0
        said = capsys.readouterr().err
        shared += "has done its share" in said
    assert not any(path.exists() for path in call.outputs.values())
    assert (shared > 0) == (MAPS[name] > 0), "that a stage of several shards is shared"
    assert run(name, words) == 0
    said = capsys.readouterr().err
    left = [line for line in said.splitlines() if NOT_DONE in line and "add metadata" not in line]
    assert not left or name == "glue_download"
    assert published(name, "shared/") == published(name)
    assert not [path for path in Path("shared").glob(f".work/{next(iter(call.outputs.values())).name}-*")]
