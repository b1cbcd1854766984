"""decontaminate as a command: what drops a document, what is only reported, what stays clean."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.decontamination.hits import CONTAMINATION_SCHEMA
from pipelines import store
from pipelines.command import StageSpec
from pipelines.stage import run_command

ROOT = Path(__file__).parents[2]
LONG = "The miller opens the gate at dawn and the water begins to turn the heavy wheel again ."
SECOND = "Nobody in the village could remember a winter in which the old river had not frozen over"
TEN = "A short item of ten words is matched whole only"
SHORT = "What a lovely film"


def write_glue(folder: Path, tasks: dict[str, dict[str, list[dict[str, Any]]]]) -> Path:
    for task, splits in tasks.items():
        for split, rows in splits.items():
            (folder / task).mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pylist([{"index": number, "label": 0, **row} for number, row in enumerate(rows)])
            pq.write_table(table, folder / task / f"{split}.parquet")
    return folder


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_glue(
        tmp_path / "glue",
        {
            "mrpc": {
                "validation": [
                    {"sentence1": LONG, "sentence2": "Something else entirely in these nine words here"},
                    {"sentence1": "The unrelated first sentence of a pair", "sentence2": SECOND},
                    {"sentence1": "Clean one of eight words for this test", "sentence2": "And its clean partner too"},
                ],
                "test": [{"sentence1": TEN, "sentence2": SECOND}],
                "train": [
                    {"sentence1": "Training items are not looked for at all unless one asks for them", "sentence2": ""}
                ],
            },
            "sst2": {"validation": [{"sentence": SHORT}, {"sentence": "never seen here"}]},
        },
    )


def write_documents(path: Path, texts: Sequence[str]) -> Path:
    rows = ({"text": text, "url": f"http://mill.test/{number}"} for number, text in enumerate(texts))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def decontaminate(folder: Path, texts: Sequence[str], *options: object) -> tuple[set[str], dict[str, str], list[Any]]:
    """URLs kept; URL -> value of those dropped; rows of the contamination report."""
    documents = write_documents(folder / "documents.jsonl", texts)
    arguments = [documents, folder / "glue", folder / "out", folder / "found", "--stats", folder / "stats.json"]
    arguments += ["--workers", 1, "--log-level", "error", "--overwrite", *options]
    assert run_command(StageSpec.load("dataprep.decontaminate"), [str(argument) for argument in arguments]) == 0
    kept = {row["url"][-1] for row in pq.read_table(folder / "out" / "part-00000.parquet").to_pylist()}
    rejected = folder / "out" / "rejected" / "part-00000.parquet"
    rows = pq.read_table(rejected).to_pylist() if rejected.exists() else []
    assert {row["rule"] for row in rows} <= {"glue_overlap"}
    found = pq.read_table(folder / "found" / "part-00000.parquet")
    assert found.schema.equals(CONTAMINATION_SCHEMA)
    return kept, {row["url"][-1]: row["value"] for row in rows}, found.to_pylist()


def clean_rows(folder: Path, task: str) -> dict[str, list[int]]:
    return json.loads((folder / "found" / "clean" / f"{task}.json").read_text())


@pytest.mark.usefixtures("glue")
def test_thirteen_words_of_an_item_drop_a_document_and_twelve_do_not(tmp_path: Path) -> None:
    words = LONG.split()
    texts = [
        f"Before. {' '.join(words[1:14])}, after",  # 13 words from the middle
        f"Before {' '.join(words[1:13])} after",  # 12 only
        "THE MILLER\nopens the gate, at dawn; and (the) water “begins” to turn the heavy wheel",  # as words, the same
    ]
    kept, dropped, found = decontaminate(tmp_path, texts)
    assert kept == {"1"}
    assert dropped == {"0": "mrpc/validation/0", "2": "mrpc/validation/0"}
    assert [(row["row"], row["field"], row["kind"], row["action"], row["word"]) for row in found] == [
        (0, "sentence1", "ngram", "drop", 1),
        (2, "sentence1", "ngram", "drop", 0),
    ]
    assert found[0]["ngram"] == "miller opens the gate at dawn and the water begins to turn the"
    assert found[0]["url"] == "http://mill.test/0"


@pytest.mark.usefixtures("glue")
def test_an_item_of_8_to_12_words_needs_all_of_them(tmp_path: Path) -> None:
    kept, dropped, found = decontaminate(tmp_path, [f"So: {TEN.lower()} here", TEN.rsplit(" ", 1)[0]])
    assert kept == {"1"}
    assert dropped == {"0": "mrpc/test/0"}
    assert found[0]["kind"] == "whole"


@pytest.mark.usefixtures("glue")
def test_a_short_item_is_reported_as_a_sentence_and_drops_nothing(tmp_path: Path) -> None:
    kept, dropped, found = decontaminate(tmp_path, [f"Oh! {SHORT}. Yes.", f"{SHORT} this is, so no sentence"])
    assert kept == {"0", "1"}
    assert dropped == {}
    assert [(row["task"], row["row"], row["kind"], row["action"]) for row in found] == [
        ("sst2", 0, "sentence", "report")
    ]
    assert clean_rows(tmp_path, "sst2") == {"validation": [1]}


@pytest.mark.usefixtures("glue")
def test_every_item_of_a_text_is_reported_and_left_out_of_the_clean_rows(tmp_path: Path) -> None:
    _, dropped, found = decontaminate(tmp_path, ["nothing", f"{SECOND}. {LONG}"])
    assert dropped == {"1": "mrpc/test/0"}  # the first in the text; of its items, the first by file
    assert sorted((row["split"], row["index"], row["field"]) for row in found) == [
        ("test", 0, "sentence2"),
        ("validation", 0, "sentence1"),
        ("validation", 1, "sentence2"),
    ]
    assert clean_rows(tmp_path, "mrpc") == {"test": [], "validation": [2]}


@pytest.mark.usefixtures("glue")
def test_runs_of_words_in_many_documents_do_not_count_but_are_listed(tmp_path: Path) -> None:
    texts = [f"{number} {SECOND}" for number in range(3)] + [LONG]
    kept, dropped, found = decontaminate(tmp_path, texts, "--key-threshold", 3)
    assert kept == {"0", "1", "2"}
    assert set(dropped) == {"3"}
    assert {row["index"] for row in found} == {0}
    assert clean_rows(tmp_path, "mrpc") == {"test": [0], "validation": [1, 2]}
    ignored = pq.read_table(tmp_path / "found" / "ignored" / "part-00000.parquet").to_pylist()
    assert len(ignored) == len(SECOND.split()) - 12
    assert ignored[0].keys() == {"ngram", "kind", "documents", "items"}
    assert all((row["documents"], row["items"], row["kind"]) == (3, 2, "ngram") for row in ignored)
    kept, _, _ = decontaminate(tmp_path, texts, "--key-threshold", 4)
    assert kept == set()


@pytest.mark.usefixtures("glue")
def test_report_drops_nothing_and_train_is_looked_for_when_asked(tmp_path: Path) -> None:
    text = "Training items are not looked for at all unless one asks for them"
    kept, _, found = decontaminate(tmp_path, [text, LONG], "--action", "report")
    assert kept == {"0", "1"}
    assert {(row["row"], row["action"]) for row in found} == {(1, "report")}
    kept, dropped, _ = decontaminate(tmp_path, [text, LONG], "--splits", "train", "--tasks", "mrpc")
    assert dropped == {"0": "mrpc/train/0"}


@pytest.mark.usefixtures("glue")
def test_one_task_alone_and_other_lengths_of_runs(tmp_path: Path) -> None:
    kept, _, found = decontaminate(tmp_path, [LONG, f"{SHORT}."], "--tasks", "sst2", "--splits", "validation")
    assert kept == {"0", "1"}
    assert [row["task"] for row in found] == ["sst2"]
    kept, _, _ = decontaminate(tmp_path, [" ".join(LONG.split()[:6])], "--ngram", 6, "--min-words", 4)
    assert kept == set()


def test_validation_stands_for_matched_and_mismatched(tmp_path: Path) -> None:
    rows = [{"premise": LONG, "hypothesis": "no"}]
    write_glue(tmp_path / "glue", {"mnli": {"validation_matched": rows, "test_mismatched": rows}})
    _, _, found = decontaminate(tmp_path, [LONG])
    assert {row["split"] for row in found} == {"validation_matched", "test_mismatched"}


def test_without_any_glue_every_document_stays(tmp_path: Path) -> None:
    (tmp_path / "glue").write_text("")
    kept, _, found = decontaminate(tmp_path, [LONG])
    assert kept == {"0"}
    assert found == []


@pytest.mark.usefixtures("glue")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tasks", "mprc"], "has no task 'mprc'. Did you mean 'mrpc'?"),
        (["--splits", "dev"], "has no split 'dev'"),
        (["--min-words", "14"], "min_words: 14 is above ngram (13)"),
    ],
)
def test_wrong_parameters_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    documents = write_documents(tmp_path / "documents.jsonl", [LONG])
    arguments = [documents, tmp_path / "glue", tmp_path / "out", tmp_path / "found", "--workers", 1, *options]
    assert run_command(StageSpec.load("dataprep.decontaminate"), [str(argument) for argument in arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_glue_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = write_documents(tmp_path / "documents.jsonl", [LONG])
    (tmp_path / "empty").mkdir()
    arguments = [documents, tmp_path / "empty", tmp_path / "out", tmp_path / "found", "--workers", 1]
    assert run_command(StageSpec.load("dataprep.decontaminate"), [str(argument) for argument in arguments]) == 1
    assert "holds no TASK/SPLIT.parquet" in capsys.readouterr().err


def test_workers_and_hash_seed_change_no_byte(tmp_path: Path, glue: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number, text in enumerate([LONG, SECOND, f"{TEN} {LONG}", f"{SHORT}. {SHORT}."]):
        write_documents(folder / f"{number}.jsonl", ["filler", text, "more"])
    digests: list[dict[str, str]] = []
    for workers, seed in ((1, "1"), (2, "2")):
        outputs = [tmp_path / f"{name}{workers}" for name in ("out", "found")]
        command = [sys.executable, "-m", "dataprep.decontaminate", folder, glue, *outputs, "--workers", workers]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        subprocess.run([str(word) for word in command], cwd=ROOT, env=environment, check=True, capture_output=True)
        files = [(output, file) for output in outputs for file in store.list_files(output)]
        digests.append({f"{o.name[:-1]}/{f.relative_to(o)}": store.sha256(f) for o, f in files})
    assert digests[0] == digests[1]
    assert len(digests[0]) > 10
