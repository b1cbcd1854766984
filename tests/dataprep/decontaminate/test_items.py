"""The index over all items: joined pairs, items of no words, equal items in two tasks, what it says of itself."""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from dataprep.decontaminate.hits import CountedIndex
from dataprep.decontaminate.items import ItemSource, build_index, find_targets, read_target
from dataprep.decontaminate.keys import Windows
from dataprep.text.folding import raw_texts
from pipelines.command import Part
from pipelines.errors import ConfigError, UserError
from pipelines.jsonl import BrokenLineError
from pipelines.manifest import Counts

WINDOWS = Windows(ngram=4, min_words=3)
PAIR = {"sentence1": "Alpha beta gamma", "sentence2": "delta epsilon"}


def split(folder: Path, task: str, rows: Sequence[Mapping[str, object]]) -> Path:
    (folder / task).mkdir(parents=True, exist_ok=True)
    file = folder / task / "validation.parquet"
    pq.write_table(pa.Table.from_pylist([{"index": 10 + n, **row} for n, row in enumerate(rows)]), file)
    return file


def build(folder: Path, *files: Path) -> tuple[CountedIndex, Counts]:
    sources = [
        ItemSource.of_split(file, "0" * 64) if file.suffix == ".parquet" else ItemSource.of_target(file.stem, "1" * 64)
        for file in files
    ]
    (folder / "index").mkdir()
    counts = build_index(Part("index", files), folder / "index", sources, WINDOWS)
    for length in range(1, WINDOWS.ngram + 1):
        if (table := folder / "index" / f"keys-{length:02d}.npy").exists():
            np.save(folder / "index" / f"counts-{length:02d}.npy", np.zeros(len(np.load(table)), np.int64))
    return CountedIndex(folder / "index", folder / "index", WINDOWS, 10), counts


def reported(index: CountedIndex, text: str) -> list[tuple[str, int, str, str]]:
    hits = index.index.search(raw_texts([text]), 0)
    return sorted((row["task"], row["index"], row["field"], row["ngram"]) for row in index.rows(hits))


def test_a_pair_is_found_by_each_of_its_sentences_and_by_what_lies_across_them(tmp_path: Path) -> None:
    index, counts = build(tmp_path, split(tmp_path, "rte", [PAIR]))
    assert reported(index, "of alpha beta gamma alone") == [("rte", 10, "sentence1", "alpha beta gamma")]
    assert reported(index, "beta gamma. Delta, epsilon") == [
        ("rte", 10, "sentence1+sentence2", "beta gamma delta epsilon"),
        ("rte", 10, "sentence2", "delta epsilon"),
    ]
    assert counts.totals["items"] == 2
    assert counts.totals["joined_items"] == 1


def test_items_without_words_are_counted_and_found_nowhere(tmp_path: Path) -> None:
    rows = [{"sentence1": "?! …", "sentence2": ""}, {"sentence1": None, "sentence2": "Alpha beta gamma"}]
    index, counts = build(tmp_path, split(tmp_path, "rte", rows))
    assert counts.totals["items_without_words"] == 3
    assert reported(index, "?! … alpha beta gamma") == [("rte", 11, "sentence2", "alpha beta gamma")]
    found = np.zeros(len(index.items), dtype=bool)
    assert index.clean_rows(found) == {"rte": {"validation": [10, 11]}}


def test_an_item_of_two_tasks_is_found_in_both(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("nothing\nALPHA beta, gamma!\n")
    files = [split(tmp_path, task, [{"sentence": "Alpha beta gamma"}]) for task in ("cola", "sst2")]
    index, _ = build(tmp_path, *files, tmp_path / "mine.txt")
    assert [row[:3] for row in reported(index, "Alpha beta gamma")] == [
        ("cola", 10, "sentence"),
        ("mine", 2, "text"),
        ("sst2", 10, "sentence"),
    ]
    found = index.items_of(index.index.search(raw_texts(["alpha beta gamma"]), 0))
    flags = np.isin(np.arange(len(index.items)), found)
    assert index.clean_rows(flags) == {
        "cola": {"validation": []},
        "sst2": {"validation": []},
        "mine": {"items": [1]},
    }


def test_the_index_says_what_it_was_made_of(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_bytes(b"one item\n\xff\n")
    index, counts = build(tmp_path, split(tmp_path, "rte", [PAIR, PAIR]), tmp_path / "mine.txt")
    shown = [(each["task"], each["split"], each["rows"], each["sha256"][0]) for each in index.sources]
    assert shown == [("rte", "validation", 2, "0"), ("mine", "items", 1, "1")]
    assert [each["broken_lines"] for each in index.sources] == [0, 1]
    assert counts.totals["broken_lines"] == 1
    assert [(row["url"], row["rule"]) for row in index.broken_lines] == [("mine:2", "invalid_utf8")]
    assert index.is_glue("rte")
    assert not index.is_glue("mine")


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


LINES = b"\xef\xbb\xbffirst item\n\n  second item \r\n\xff\xfe\nzero \0 byte\nlast"


def items(file: Path) -> list[tuple[int, str]]:
    return [(n, item.rule if isinstance(item, BrokenLineError) else item) for n, item in read_target(file)]


def test_plain_text_is_one_item_per_line_that_is_not_blank(tmp_path: Path) -> None:
    expected = [(1, "first item"), (3, "second item"), (4, "invalid_utf8"), (5, "not_text"), (6, "last")]
    (tmp_path / "a.txt").write_bytes(LINES)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(LINES))
    (tmp_path / "a.zst").write_bytes(zstandard.compress(LINES))
    for name in ("a.txt", "a.txt.gz", "a.zst"):
        assert items(tmp_path / name) == expected


def test_json_lines_have_their_text(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"text": "one"}\n{"txt": "two"}\n\nthree\n{"text": "four", "url": "u"}\n'))
    assert items(file) == [(1, "one"), (2, "no_text"), (4, "invalid_json"), (5, "four")]


def test_names_come_from_the_command_line_or_from_the_files_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    (folder / "inner").mkdir(parents=True)
    for name in ("lambada.test.jsonl.gz", "b.txt", ".hidden"):
        (folder / name).write_text("x")
    file = folder / "b.txt"
    assert find_targets([f"mine={file}", f"twice={file}"], folder) == {
        "mine": file,
        "twice": file,
        "b": file,
        "lambada.test": folder / "lambada.test.jsonl.gz",
    }
    assert find_targets([], file) == {"b": file}
    assert find_targets([], None) == {}


def test_the_manifest_of_a_folder_that_a_command_wrote_is_no_target(tmp_path: Path) -> None:
    """`score_requests` writes one beside its request files; a file of yours may have that name."""
    file, manifest = tmp_path / "quiz.jsonl", tmp_path / "manifest.json"
    file.write_text("x")
    manifest.write_text('{"counts": {}}')
    assert find_targets([], tmp_path) == {"quiz": file}
    manifest.write_text('{"text": "one"}')
    assert find_targets([], tmp_path) == {"quiz": file, "manifest": manifest}
    assert find_targets([], manifest) == {"manifest": manifest}


def test_a_path_may_hold_equals_signs(tmp_path: Path) -> None:
    file = tmp_path / "a=b.txt"
    file.write_text("x")
    assert find_targets([f"n={file}"], None) == {"n": file}


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("lambada.jsonl", "against: expected name=FILE, got 'lambada.jsonl'"),
        ("name=", "against: expected name=FILE, got 'name='"),
        ("name=missing.jsonl", "against: missing.jsonl: no such file"),
        ("name=/", "against: /: is a folder"),
        ("../name={file}", "'../name' cannot be a target's name"),
        ("={file}", "'' cannot be a target's name"),
    ],
)
def test_a_wrong_target_is_one_line(tmp_path: Path, against: str, message: str) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError) as error:
        find_targets([against.replace("{file}", str(tmp_path / "a.txt"))], None)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_one_name_twice_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match="two targets are called a"):
        find_targets([f"a={tmp_path / 'a.txt'}"], tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="holds no file"):
        find_targets([], tmp_path / "none")
