"""decontaminate as a command: what drops or cuts a document, what is only reported, what stays clean."""

import contextlib
import gzip
import json
import os
import pickle
import re
import resource
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.decontaminate.hits import CONTAMINATION_SCHEMA
from dataprep.decontaminate.items import ItemSource, build_index
from dataprep.decontaminate.ngrams import Index
from dataprep.decontaminate.stage import VERSION, Context, DecontaminateConfig, check_parameters, count_part
from dataprep.glue_download.stage import GlueDownloadConfig
from dataprep.text.folding import raw_texts
from pipelines import store
from pipelines.command import Part, StageSpec
from pipelines.config import to_plain, write_yaml
from pipelines.errors import ConfigError
from pipelines.manifest import Counts, FileEntry, Manifest
from pipelines.stage import run_command
from tests.dataprep.corpora import write_documents

ROOT = Path(__file__).parents[3]
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


def run(*arguments: object) -> int:
    level = () if "--log-level" in arguments else ("--log-level", "error")
    words = [str(argument) for argument in (*arguments, "--workers", 1, *level)]
    return run_command(StageSpec.load("dataprep.decontaminate"), words)


def decontaminate(folder: Path, texts: Sequence[str], *options: object) -> tuple[set[str], dict[str, str], list[Any]]:
    """URLs kept; URL -> value of those dropped; rows of the contamination report."""
    documents = write_documents(folder / "documents.jsonl", texts)
    paths = [documents, folder / "out", folder / "found", "--stats", folder / "stats.json", "--overwrite"]
    glue = ["--glue", folder / "glue"] if (folder / "glue").exists() else []
    assert run(*paths, *glue, *options) == 0
    kept = {row["url"][-1] for row in pq.read_table(folder / "out" / "part-00000.parquet").to_pylist()}
    rejected = folder / "out" / "rejected" / "part-00000.parquet"
    rows = pq.read_table(rejected).to_pylist() if rejected.exists() else []
    assert {row["rule"] for row in rows} <= {"glue_overlap", "target_overlap", "too_many_pieces", "nothing_left"}
    found = pq.read_table(folder / "found" / "part-00000.parquet")
    assert found.schema.equals(CONTAMINATION_SCHEMA)
    for row in found.to_pylist():
        span = texts[row["row"]][row["start"] : row["end"]]
        assert re.findall(r"\w+", unicodedata.normalize("NFC", span).casefold()) == row["ngram"].split()
    return kept, {row["url"][-1]: row["value"] for row in rows}, found.to_pylist()


def clean_rows(folder: Path, task: str, subset: str = "clean") -> dict[str, list[int]]:
    return json.loads((folder / "found" / subset / f"{task}.json").read_text())


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
def test_an_item_with_a_changed_word_drops_a_document_only_if_edits_are_allowed(tmp_path: Path) -> None:
    changed = TEN.replace("matched", "always matched")
    texts = [LONG.replace("water", "river").replace("gate", "door"), f"So: {changed}.", "nothing", TEN]
    documents = write_documents(tmp_path / "documents.jsonl", texts)
    kept: list[list[str]] = []
    for edits in (0, 1):
        paths = [documents, tmp_path / f"out{edits}", tmp_path / f"found{edits}", "--glue", tmp_path / "glue"]
        assert run(*paths, "--edits", edits, "--stats", tmp_path / "stats.json") == 0
        rows = pq.read_table(tmp_path / f"out{edits}" / "part-00000.parquet").to_pylist()
        kept.append([row["url"][-1] for row in rows])
    assert kept == [["0", "1", "2"], ["0", "2"]]
    found = pq.read_table(tmp_path / "found1" / "part-00000.parquet").to_pylist()
    assert [
        (row["row"], row["kind"], row["action"], texts[row["row"]][row["start"] : row["end"]]) for row in found
    ] == [
        (1, "near", "drop", changed),
        (3, "whole", "drop", TEN),
    ]
    assert found[0]["ngram"] == TEN.lower()
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert (stats["hits_near"], stats["hits_whole"]) == (1, 1)


def test_the_log_and_the_stats_say_how_many_seeds_are_too_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dataprep.decontaminate.near.MOST_PLACES", 1)
    (tmp_path / "mine.txt").write_text(f"{TEN}\n{TEN}\n{SHORT}\n")
    targets = ["--against", f"mine={tmp_path / 'mine.txt'}"]
    decontaminate(tmp_path, ["nothing"], *targets, "--edits", 1, "--log-level", "info")
    assert "decontaminate: 6 seeds are left out, at more than 500 places in the items" in capsys.readouterr().err
    assert json.loads((tmp_path / "stats.json").read_text())["common_seeds"] == 6


def test_contractions_and_entities_are_compared_as_they_read(tmp_path: Path) -> None:
    write_glue(
        tmp_path / "glue",
        {
            "sst2": {
                "validation": [
                    {"sentence": "it ca n't be denied that Q & A -LRB- of a kind -RRB- was there"},
                    {"sentence": "you can &quot;not&quot; say that the café was closed that day"},
                ]
            }
        },
    )
    texts = [
        "So: it can't be denied that Q&amp;A (of a kind) was there!",
        "Well, you can “not” say that the caf&eacute; was clo\u00adsed that day",
        "it ca not be denied that Q & A of a kind was there",
    ]
    documents = write_documents(tmp_path / "documents.jsonl", texts)
    paths = [documents, tmp_path / "out", tmp_path / "found"]
    assert run(*paths, "--glue", tmp_path / "glue", "--splits", "validation", "--action", "report") == 0
    found = pq.read_table(tmp_path / "found" / "part-00000.parquet").to_pylist()
    assert [(row["row"], row["index"], texts[row["row"]][row["start"] : row["end"]]) for row in found] == [
        (0, 0, texts[0][4:-1]),
        (1, 1, texts[1][6:]),
    ]


@pytest.mark.usefixtures("glue")
def test_after_brackets_at_line_ends_items_are_reported_and_cut_where_they_stand(tmp_path: Path) -> None:
    before = "He said so -LRB-\nquietly -RRB-\nand left. " * 20
    _, _, found = decontaminate(tmp_path, [f"{before}{TEN}. {before}"], "--action", "cut", "--cut-margin", 0)
    assert [(row["start"], row["end"]) for row in found] == [(len(before), len(before) + len(TEN))]
    pieces = pq.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist()
    assert [piece["text"].strip() for piece in pieces] == [before.strip()] * 2


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
        (["--edits", "3"], "decontaminate.edits: expected 0 to 2 with ngram 13, got 3"),
        (["--edits", "4", "--ngram", "40"], "decontaminate.edits: expected 0 to 3 with ngram 40, got 4"),
        (["--edits", "1", "--ngram", "7", "--min-words", "5"], "expected 0 to 0 with ngram 7, got 1"),
        (["--edits", "-1"], "expected 0 to 2 with ngram 13, got -1"),
    ],
)
def test_wrong_parameters_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    documents = write_documents(tmp_path / "documents.jsonl", [LONG])
    assert run(documents, tmp_path / "out", tmp_path / "found", "--glue", tmp_path / "glue", *options) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_glue_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = write_documents(tmp_path / "documents.jsonl", [LONG])
    (tmp_path / "empty").mkdir()
    assert run(documents, tmp_path / "out", tmp_path / "found", "--glue", tmp_path / "empty") == 1
    assert "holds no TASK/SPLIT.parquet" in capsys.readouterr().err


def test_a_project_without_glue_keeps_every_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `glue=none`, `glue_download` publishes a folder without a table."""
    write_yaml(tmp_path / "params.yaml", {"glue_download": {**to_plain(GlueDownloadConfig()), "tasks": []}}, "# None.")
    empty = tmp_path / "none"
    assert (
        run_command(StageSpec.load("dataprep.glue_download"), [str(empty), "--params", f"{tmp_path}/params.yaml"]) == 0
    )
    kept, dropped, found = decontaminate(tmp_path, [LONG, SECOND], "--glue", empty, "--log-level", "info")
    assert len(kept) == 2
    assert (dropped, found) == ({}, [])
    said = capsys.readouterr().err
    assert "decontaminate: no benchmark rows to look for, so every document is kept" in said
    assert "0 of 0 rows" not in said


def test_nothing_to_look_for_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = write_documents(tmp_path / "documents.jsonl", [LONG])
    assert run(documents, tmp_path / "out", tmp_path / "found") == 2
    assert "nothing to look for; give --glue FOLDER or --against NAME=FILE" in capsys.readouterr().err


@pytest.mark.usefixtures("glue")
def test_a_pair_is_also_found_across_its_two_sentences(tmp_path: Path) -> None:
    text = f"and frozen over. {' '.join(LONG.split()[-9:])} Something else entirely in these. More words."
    kept, dropped, found = decontaminate(tmp_path, [text, text.replace("Something", "")])
    assert kept == {"1"}
    assert dropped == {"0": "mrpc/validation/0"}
    assert [(row["field"], row["kind"]) for row in found] == [("sentence1+sentence2", "ngram")]
    assert clean_rows(tmp_path, "mrpc") == {"test": [0], "validation": [1, 2]}


@pytest.mark.usefixtures("glue")
def test_the_closing_line_counts_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pair is looked for as three texts, and is one row."""
    documents = write_documents(tmp_path / "documents.jsonl", [f"and {LONG} Something else."])
    assert run(documents, tmp_path / "o", tmp_path / "c", "--glue", tmp_path / "glue", "--log-level", "info") == 0
    rows = [pq.read_metadata(file).num_rows for file in (tmp_path / "glue").glob("*/[vt][ae][ls]*.parquet")]
    found = {
        (row["task"], row["split"], row["index"])
        for row in pq.read_table(tmp_path / "c" / "part-00000.parquet").to_pylist()
    }
    assert found
    assert f"decontaminate: {len(found)} of {sum(rows)} rows are in documents" in capsys.readouterr().err


SENTENCES = [
    f"This is sentence {number} of a page about mills, and it says that the wheel turns." for number in range(99)
]


def cut_pieces(folder: Path) -> list[dict[str, Any]]:
    return pq.read_table(folder / "out" / "part-00000.parquet").to_pylist()


@pytest.mark.usefixtures("glue")
def test_cut_keeps_a_document_in_pieces_that_say_where_they_stood(tmp_path: Path) -> None:
    before, after = " ".join(SENTENCES[:8]), " ".join(SENTENCES[8:16])
    hit = LONG.upper()
    texts = [f"İİ {before} {hit} {after}", "No item is here.", f"Oh! {SHORT}. Yes."]
    kept, dropped, found = decontaminate(tmp_path, texts, "--action", "cut")
    assert kept == {"0", "1", "2"}
    assert dropped == {}
    assert [(row["row"], row["action"]) for row in found] == [(0, "cut"), (2, "report")]
    pieces = cut_pieces(tmp_path)
    assert [piece["url"][-1] for piece in pieces] == ["0", "0", "1", "2"]
    assert len({piece["doc_id"] for piece in pieces}) == 3
    for piece in pieces:
        assert piece["text"] == texts[int(piece["url"][-1])][piece["piece_start"] : piece["piece_end"]]
    first, second = pieces[:2]
    assert first["text"] == f"İİ {' '.join(SENTENCES[:5])}"  # 200 characters are two and a half sentences
    assert second["text"] == " ".join(SENTENCES[11:16])
    assert texts[0][first["piece_end"] : second["piece_start"]].count(hit) == 1
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert (stats["in"], stats["out"]) == (3, 4)
    assert (stats["totals"]["cut_documents"], stats["totals"]["pieces"]) == (1, 2)


@pytest.mark.usefixtures("glue")
def test_rows_are_clean_of_what_came_in_and_of_what_came_out(tmp_path: Path) -> None:
    """A short item stays in a piece that is kept, and goes with one that is cut out, or with its document."""
    filler = " ".join(SENTENCES[:8])
    cases = {
        f"{SHORT}. {filler} {LONG}. {filler}": {"report": [], "drop": [0], "cut": []},
        f"{filler} {SHORT}. {LONG}. {filler}": {"report": [], "drop": [0], "cut": [0]},
        f"{SHORT}. {LONG}.": {"report": [], "drop": [0], "cut": [0]},
        f"{SHORT}.": {"report": [], "drop": [], "cut": []},
    }
    for text, expected in cases.items():
        for action, clean in expected.items():
            decontaminate(tmp_path, [filler, text], "--action", action)
            assert clean_rows(tmp_path, "sst2") == {"validation": [1]}
            assert clean_rows(tmp_path, "sst2", "kept_clean") == {"validation": [*clean, 1]}
            long = LONG in text
            assert clean_rows(tmp_path, "mrpc")["validation"] == ([1, 2] if long else [0, 1, 2])
            left = [1, 2] if long and action == "report" else [0, 1, 2]
            assert clean_rows(tmp_path, "mrpc", "kept_clean")["validation"] == left


@pytest.mark.usefixtures("glue")
def test_cut_drops_what_is_left_in_too_many_pieces_or_not_at_all(tmp_path: Path) -> None:
    filler = " ".join(SENTENCES[:12])
    texts = [LONG, f"{filler} {LONG} {filler} {LONG} {filler}", f"{filler} {LONG} {filler}"]
    kept, dropped, found = decontaminate(tmp_path, texts, "--action", "cut", "--cut-max-pieces", 2)
    assert kept == {"2"}
    assert dropped == {"0": "mrpc/validation/0", "1": "3 pieces without mrpc/validation/0"}
    assert [row["action"] for row in found] == ["drop", "drop", "cut"]
    rejected = pq.read_table(tmp_path / "out" / "rejected" / "part-00000.parquet")
    assert rejected["rule"].to_pylist() == ["nothing_left", "too_many_pieces"]


@pytest.mark.usefixtures("glue")
def test_pieces_that_are_cut_again_keep_the_offsets_of_the_first_text(tmp_path: Path) -> None:
    filler = " ".join(SENTENCES[:9])
    text = f"{filler} {LONG} {filler} {SECOND}. {filler}"
    decontaminate(tmp_path, [text], "--action", "cut", "--splits", "validation", "--key-threshold", 2)
    only = tmp_path / "second.txt"
    only.write_text(" ".join(SENTENCES[4].split()[:13]))
    outputs = [tmp_path / "again", tmp_path / "found2"]
    assert (
        run(
            tmp_path / "out",
            *outputs,
            "--against",
            f"second={only}",
            "--action",
            "cut",
            "--cut-margin",
            0,
            "--cut-min-chars",
            0,
        )
        == 0
    )
    pieces = pq.read_table(outputs[0] / "part-00000.parquet").to_pylist()
    assert len(pieces) > 2
    assert [text[piece["piece_start"] : piece["piece_end"]] for piece in pieces] == [piece["text"] for piece in pieces]


def test_texts_of_the_users_own_are_looked_for_without_any_glue(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl.gz").write_bytes(gzip.compress(json.dumps({"text": LONG}).encode() + b"\nbroken\n"))
    (tmp_path / "other.txt").write_text(f"{TEN}\n\n{SECOND}\n")
    targets = ["--against", f"mine={tmp_path / 'mine.jsonl.gz'}", f"other={tmp_path / 'other.txt'}"]
    kept, dropped, found = decontaminate(tmp_path, [LONG, f"so: {TEN}", "clean"], *targets)
    assert kept == {"2"}
    assert dropped == {"0": "mine/items/1", "1": "other/items/1"}
    assert [(row["task"], row["split"], row["index"], row["kind"]) for row in found] == [
        ("mine", "items", 1, "ngram"),
        ("other", "items", 1, "whole"),
    ]
    rules = pq.read_table(tmp_path / "out" / "rejected" / "part-00000.parquet")["rule"].to_pylist()
    assert rules == ["target_overlap", "target_overlap"]
    assert clean_rows(tmp_path, "other") == {"items": [3]}
    broken = pq.read_table(tmp_path / "found" / "rejected" / "part-00000.parquet").to_pylist()
    assert [(row["url"], row["rule"]) for row in broken] == [("mine:2", "invalid_json")]


@pytest.mark.usefixtures("glue")
def test_targets_of_a_folder_go_beside_glue_under_other_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "targets"
    folder.mkdir()
    (folder / "mine.txt").write_text(TEN)
    _, _, found = decontaminate(tmp_path, [TEN], "--targets", folder)
    assert [row["task"] for row in found] == ["mrpc", "mine"]
    (folder / "mine.txt").rename(folder / "sst2.txt")
    documents = write_documents(tmp_path / "documents.jsonl", [LONG])
    outputs = [tmp_path / "out2", tmp_path / "found2"]
    assert run(documents, *outputs, "--glue", tmp_path / "glue", "--targets", folder) == 2
    assert "sst2 is a GLUE task already; rename the target" in capsys.readouterr().err


def test_the_index_says_by_which_rules_from_which_files_it_was_made(tmp_path: Path, glue: Path) -> None:
    decontaminate(tmp_path, [LONG])
    index = json.loads((tmp_path / "found" / "index.json").read_text())
    assert (index["version"], index["ngram"], index["min_words"], index["key_threshold"]) == (VERSION, 13, 8, 10)
    digests = {(each["task"], each["split"]): each["sha256"] for each in index["sources"]}
    names = [("mrpc", "test"), ("mrpc", "validation"), ("sst2", "validation")]
    assert digests == {(task, split): store.sha256(glue / task / f"{split}.parquet") for task, split in names}


def test_another_target_under_the_same_path_is_another_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    identities: list[dict[str, Any]] = []
    for content in (LONG, SECOND):
        file.write_text(content)
        identities.append(DecontaminateConfig(against=(f"mine={file}",)).identity())
    moved = file.rename(tmp_path / "moved.txt")
    assert identities[0] != identities[1] == DecontaminateConfig(against=(f"mine={moved}",)).identity()


def test_files_that_the_graph_would_not_see_are_refused_in_a_profile() -> None:
    with pytest.raises(ConfigError, match=r"set decontaminate\.targets=FOLDER"):
        check_parameters({"decontaminate": {"against": ["a=b.txt"]}})
    check_parameters({"decontaminate": {"against": []}})


@pytest.mark.usefixtures("glue")
def test_shards_without_rows_and_a_document_of_megabytes(tmp_path: Path) -> None:
    """An empty shard comes out empty; a hit at the end of a long text has its right place."""
    folder = tmp_path / "documents"
    folder.mkdir()
    fill = "mill wheel 水 Ünï water.\n" * 20_000
    schema = pa.schema([("doc_id", pa.binary(16)), *((name, pa.string()) for name in ("url", "text", "source"))])
    rows = [{"doc_id": bytes(16), "url": "http://mill.test/0", "text": f"{fill}{LONG}. {fill}", "source": ""}]
    for number, table in enumerate((schema.empty_table(), pa.Table.from_pylist(rows, schema))):
        pq.write_table(table, folder / f"part-{number:05d}.parquet")
    Manifest(
        {file.name: FileEntry(1, file.stat().st_size, store.sha256(file)) for file in sorted(folder.glob("*.parquet"))},
        Counts(),
    ).save(folder / "manifest.json")
    outputs = [tmp_path / "out", tmp_path / "found"]
    assert run(folder, *outputs, "--glue", tmp_path / "glue", "--action", "cut") == 0
    assert pq.read_metadata(outputs[0] / "part-00000.parquet").num_rows == 0
    (hit,) = pq.read_table(outputs[1] / "part-00001.parquet").to_pylist()
    assert (hit["shard"], hit["row"], hit["start"]) == (1, 0, len(fill))
    pieces = pq.read_table(outputs[0] / "part-00001.parquet").to_pylist()
    assert [rows[0]["text"][piece["piece_start"] : piece["piece_end"]] for piece in pieces] == [
        piece["text"] for piece in pieces
    ]
    assert len(pieces) == 2


def test_broken_lines_and_items_too_short_for_any_run_of_words_are_no_crash(tmp_path: Path) -> None:
    """Defect 25: a line that is no JSON, and a dictionary without an n-gram, ended the original."""
    (tmp_path / "documents.jsonl").write_text(json.dumps({"text": f"{SHORT}. More."}) + "\nno JSON\n")
    (tmp_path / "mine.txt").write_text(SHORT)
    arguments = [tmp_path / "out", tmp_path / "found", "--against", f"mine={tmp_path / 'mine.txt'}", "--action", "cut"]
    assert run(tmp_path / "documents.jsonl", *arguments, "--stats", tmp_path / "stats.json") == 0
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert (stats["in"], stats["out"], stats["rejected"]) == (2, 1, {"invalid_json": 1})
    assert (stats["keys_sentence"], stats["hits_sentence"]) == (1, 1)


def test_lines_of_targets_that_are_no_items_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_bytes(b"one item\ncaf\xe9\n")
    documents = write_documents(tmp_path / "documents.jsonl", [LONG])
    arguments = [documents, tmp_path / "out", tmp_path / "found", "--against", f"mine={tmp_path / 'mine.txt'}"]
    arguments += ["--workers", 1]
    assert run_command(StageSpec.load("dataprep.decontaminate"), [str(word) for word in arguments]) == 0
    assert f"1 line of targets is not an item; {tmp_path}/found/rejected says why" in capsys.readouterr().err


def test_a_run_is_told_where_the_index_is_and_never_sent_it(tmp_path: Path) -> None:
    """Defect 25: the original sent its whole dictionary with every 500 lines."""
    config = DecontaminateConfig()
    assert len(pickle.dumps(Context(tmp_path, tmp_path, config))) < 2000


def test_hits_of_any_number_of_shards_are_counted_with_few_open_files(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(LONG)
    windows = DecontaminateConfig().windows
    build_index(Part("index", (tmp_path / "mine.txt",)), tmp_path, [ItemSource.of_target("mine", "0")], windows)
    np.save(tmp_path / "hits.npy", Index(tmp_path, windows).search(raw_texts([LONG]), 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as files:
        free = [files.enter_context(Path(os.devnull).open()).fileno() for _ in range(30)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, hard))
    try:
        part = Part("counts", (tmp_path / "hits.npy",) * 100)
        counts = count_part(part, tmp_path, tmp_path, windows, threshold=101)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert counts.totals == {"ignored_ngrams": 0}
    assert np.load(tmp_path / "counts-13.npy").tolist() == [100] * (len(LONG.split()) - 13)


@pytest.mark.usefixtures("glue")
def test_documents_of_one_id_are_cut_each_for_itself(tmp_path: Path) -> None:
    text = f"{' '.join(SENTENCES[:9])} {LONG} {' '.join(SENTENCES[9:18])}"
    paths = [tmp_path / "documents.jsonl", tmp_path / "out", tmp_path / "found"]
    paths[0].write_text(2 * (json.dumps({"text": text, "url": "http://mill.test/0"}) + "\n"))
    assert run(*paths, "--glue", tmp_path / "glue", "--action", "cut") == 0
    pieces = cut_pieces(tmp_path)
    assert len(pieces) == 4
    assert pieces[:2] == pieces[2:]


def test_workers_and_hash_seed_change_no_byte(tmp_path: Path, glue: Path) -> None:
    folder = tmp_path / "documents"
    folder.mkdir()
    for number, text in enumerate([LONG, SECOND, f"{TEN} {LONG}", f"{SHORT}. {SHORT}."]):
        write_documents(folder / f"{number}.jsonl", ["filler", text, "more"])
    digests: list[dict[str, str]] = []
    for workers, seed in ((1, "1"), (2, "2")):
        outputs = [tmp_path / f"{name}{workers}" for name in ("out", "found")]
        command = [sys.executable, "-m", "dataprep.decontaminate", folder, *outputs, "--glue", glue]
        command += ["--workers", workers, "--action", "cut", "--cut-min-chars", 0]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
        subprocess.run([str(word) for word in command], cwd=ROOT, env=environment, check=True, capture_output=True)
        files = [(output, file) for output in outputs for file in store.list_files(output)]
        digests.append({f"{o.name[:-1]}/{f.relative_to(o)}": store.sha256(f) for o, f in files})
    assert digests[0] == digests[1]
    assert len(digests[0]) > 10
