"""The index over all items: joined pairs, items of no words, equal items in two tasks, what it says of itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.decontamination.hits import Findings
from dataprep.decontamination.items import ItemSource, build_index
from dataprep.decontamination.ngrams import Windows
from dataprep.text.folding import raw_texts
from pipelines.command import Part
from pipelines.errors import UserError
from pipelines.manifest import Counts

WINDOWS = Windows(ngram=4, min_words=3)
PAIR = {"sentence1": "Alpha beta gamma", "sentence2": "delta epsilon"}


def split(folder: Path, task: str, rows: Sequence[Mapping[str, object]]) -> Path:
    (folder / task).mkdir(parents=True, exist_ok=True)
    file = folder / task / "validation.parquet"
    pq.write_table(pa.Table.from_pylist([{"index": 10 + n, **row} for n, row in enumerate(rows)]), file)
    return file


def build(folder: Path, *files: Path) -> tuple[Findings, Counts]:
    sources = [
        ItemSource.of_split(file, "0" * 64) if file.suffix == ".parquet" else ItemSource.of_target(file.stem, "1" * 64)
        for file in files
    ]
    (folder / "index").mkdir()
    counts = build_index(Part("index", files), folder / "index", sources, WINDOWS)
    for length in range(1, WINDOWS.ngram + 1):
        if (table := folder / "index" / f"keys-{length:02d}.npy").exists():
            np.save(folder / "index" / f"counts-{length:02d}.npy", np.zeros(len(np.load(table)), np.int64))
    return Findings(folder / "index", folder / "index", WINDOWS, 10), counts


def reported(findings: Findings, text: str) -> list[tuple[str, int, str, str]]:
    hits = findings.index.search(raw_texts([text]), 0)
    return sorted((row["task"], row["index"], row["field"], row["ngram"]) for row in findings.rows(hits))


def test_a_pair_is_found_by_each_of_its_sentences_and_by_what_lies_across_them(tmp_path: Path) -> None:
    findings, counts = build(tmp_path, split(tmp_path, "rte", [PAIR]))
    assert reported(findings, "of alpha beta gamma alone") == [("rte", 10, "sentence1", "alpha beta gamma")]
    assert reported(findings, "beta gamma. Delta, epsilon") == [
        ("rte", 10, "sentence1+sentence2", "beta gamma delta epsilon"),
        ("rte", 10, "sentence2", "delta epsilon"),
    ]
    assert counts.totals["items"] == 2
    assert counts.totals["joined_items"] == 1


def test_items_without_words_are_counted_and_found_nowhere(tmp_path: Path) -> None:
    rows = [{"sentence1": "?! …", "sentence2": ""}, {"sentence1": None, "sentence2": "Alpha beta gamma"}]
    findings, counts = build(tmp_path, split(tmp_path, "rte", rows))
    assert counts.totals["items_without_words"] == 3
    assert reported(findings, "?! … alpha beta gamma") == [("rte", 11, "sentence2", "alpha beta gamma")]
    found = np.zeros(len(findings.items), dtype=bool)
    assert findings.clean_rows(found) == {"rte": {"validation": [10, 11]}}


def test_an_item_of_two_tasks_is_found_in_both(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("nothing\nALPHA beta, gamma!\n")
    files = [split(tmp_path, task, [{"sentence": "Alpha beta gamma"}]) for task in ("cola", "sst2")]
    findings, _ = build(tmp_path, *files, tmp_path / "mine.txt")
    assert [row[:3] for row in reported(findings, "Alpha beta gamma")] == [
        ("cola", 10, "sentence"),
        ("mine", 2, "text"),
        ("sst2", 10, "sentence"),
    ]
    found = findings.found_items(findings.index.search(raw_texts(["alpha beta gamma"]), 0))
    flags = np.isin(np.arange(len(findings.items)), found)
    assert findings.clean_rows(flags) == {
        "cola": {"validation": []},
        "sst2": {"validation": []},
        "mine": {"items": [1]},
    }


def test_the_index_says_what_it_was_made_of(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(b"one item\n\xff\n")
    findings, counts = build(tmp_path, split(tmp_path, "rte", [PAIR, PAIR]), tmp_path / "mine.txt")
    shown = [(each["task"], each["split"], each["rows"], each["sha256"][0]) for each in findings.sources]
    assert shown == [("rte", "validation", 2, "0"), ("mine", "items", 1, "1")]
    assert [each["broken_lines"] for each in findings.sources] == [0, 1]
    assert counts.totals["broken_lines"] == 1
    assert [(row["url"], row["rule"]) for row in findings.broken_lines] == [("mine:2", "invalid_utf8")]
    assert findings.is_glue("rte")
    assert not findings.is_glue("mine")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected one text to look for in each line"),
        (b"\n \n", "is empty; expected one text to look for in each line"),
        ("…\n?!\n".encode(), "none of its 2 items has a word to look for"),
        ("\ncaf\xe9\n".encode("latin-1"), "none of its 1 lines is an item; line 2: not valid UTF-8 at byte 3"),
    ],
)
def test_a_target_without_a_word_is_one_line_that_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "mine.txt").write_bytes(content)
    with pytest.raises(UserError) as error:
        build(tmp_path, tmp_path / "mine.txt")
    assert str(error.value) == f"{tmp_path}/mine.txt: {message}"
