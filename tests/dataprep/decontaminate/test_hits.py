"""What hits mean: common keys, the first item of a row, each item once per row."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep.decontaminate import hits as hits_module
from dataprep.decontaminate.hits import CountedIndex, count_hits, spans_by_row
from dataprep.decontaminate.items import ItemSource, build_index
from dataprep.decontaminate.keys import KeyTable, Windows
from dataprep.dedup.shingles import Words
from dataprep.text.folding import Texts, raw_texts
from pipelines.command import Part

WINDOWS = Windows(ngram=3, min_words=2)
TEXTS = ["x d e, a b c d e. a b c", "nothing", "A b c! one.", "d e"]


def counted_index(folder: Path, threshold: int) -> tuple[CountedIndex, "np.ndarray[tuple[int], np.dtype[np.void]]"]:
    (folder / "mine.txt").write_text("a b c d e\nd e\none\na b c\n")
    build_index(Part("index", (folder / "mine.txt",)), folder, [ItemSource.of_target("mine", "0")], WINDOWS)
    for length in (1, 2, 3):
        np.save(folder / f"counts-{length:02d}.npy", np.zeros(len(np.load(folder / f"keys-{length:02d}.npy"))))
    index = CountedIndex(folder, folder, WINDOWS, threshold)
    hits = index.index.search(raw_texts(TEXTS), 0)
    for length, counts in count_hits([hits], index.index).items():
        np.save(folder / f"counts-{length:02d}.npy", counts)
    return CountedIndex(folder, folder, WINDOWS, threshold), hits


def test_each_item_stands_once_for_each_row_with_its_first_place(tmp_path: Path) -> None:
    index, hits = counted_index(tmp_path, 10)
    rows = [(row["row"], row["index"], row["kind"], row["ngram"], row["word"]) for row in index.rows(hits)]
    assert rows == [
        (0, 2, "whole", "d e", 1),
        (0, 1, "ngram", "a b c", 3),
        (0, 4, "ngram", "a b c", 3),
        (2, 1, "ngram", "a b c", 0),
        (2, 4, "ngram", "a b c", 0),
        (2, 3, "sentence", "one", 3),
        (3, 2, "whole", "d e", 0),
    ]
    firsts = index.first_items(index.long_enough(hits))
    assert {row: item["index"] for row, item in firsts.items()} == {0: 2, 2: 1, 3: 2}
    assert list(spans_by_row(hits)) == [[(2, 5), (7, 16), (18, 23)], [(0, 5), (7, 10)], [(0, 3)]]
    assert list(spans_by_row(hits[:0])) == []


def test_few_items_at_a_time_give_the_same_rows_and_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when thousands of items share a run of words: they are worked on in batches, one row or 1024 items each."""
    index, hits = counted_index(tmp_path, 2)
    expected = list(index.rows(hits)), list(index.ignored())
    texts_at_once: list[int] = []
    hits_at_once: list[int] = []
    compared_words, entries_of = hits_module.compared_words, KeyTable.entries_of

    def counted_words(texts: Texts) -> Words:
        texts_at_once.append(len(texts))
        return compared_words(texts)

    def counted_entries(table: KeyTable, keys: Any) -> Any:
        hits_at_once.append(len(keys))
        return entries_of(table, keys)

    monkeypatch.setattr(hits_module, "_BATCH", 1)
    monkeypatch.setattr(hits_module, "compared_words", counted_words)
    monkeypatch.setattr(KeyTable, "entries_of", counted_entries)
    assert (list(index.rows(hits)), list(index.ignored())) == expected
    assert texts_at_once == [1] * (len(expected[0]) + len(expected[1]))
    assert max(hits_at_once) == 3  # of the first row: a b c, b c d, c d e


def test_found_items_are_looked_up_once_for_each_key_not_for_each_row(tmp_path: Path) -> None:
    index, hits = counted_index(tmp_path, 10)
    rows = np.concatenate([hits] * 50)
    rows["row"] += np.repeat(np.arange(50, dtype=np.uint64) * 4, len(hits))
    items = index.items_of(rows)
    assert sorted(set(items.tolist())) == [0, 1, 2, 3]
    assert len(items) == len(index.items_of(hits))


def test_a_key_in_too_many_rows_counts_once_for_each_row_and_is_listed(tmp_path: Path) -> None:
    index, hits = counted_index(tmp_path, 2)
    assert [(row["ngram"], row["documents"], row["items"]) for row in index.ignored()] == [
        ("d e", 2, 1),
        ("a b c", 2, 2),
    ]
    rows = [(row["row"], row["ngram"]) for row in index.rows(index.without_common(hits))]
    assert rows == [(0, "b c d"), (2, "one")]
